// The ARC custom calls, for the module that registers them.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* phalanx_arc_step(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* phalanx_arc_reset(XLA_FFI_CallFrame* frame);
}
