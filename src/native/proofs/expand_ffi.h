// The proof custom call and the Python class that holds a program, for the module that registers them.
#pragma once

#include <nanobind/nanobind.h>

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* phalanx_proof_expand(XLA_FFI_CallFrame* frame);
}

namespace phalanx::proofs {
void bind_proofs(nanobind::module_& module);
}
