// The custom calls of color planes, for the module that registers them.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* phalanx_planes_forward(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* phalanx_planes_forward_saving(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* phalanx_planes_backward(XLA_FFI_CallFrame* frame);
}
