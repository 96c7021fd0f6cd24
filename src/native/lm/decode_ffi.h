// The custom call of a language model that writes, for the module that registers it.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* phalanx_lm_write(XLA_FFI_CallFrame* frame);
}
