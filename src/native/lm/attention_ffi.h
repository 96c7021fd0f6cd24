// The custom calls of attention, for the module that registers them.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* phalanx_attention_forward(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* phalanx_attention_backward(XLA_FFI_CallFrame* frame);
}
