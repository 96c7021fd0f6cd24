// The functions that add the Python functions and custom calls of each folder to the extension module.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace phalanx {

// Custom calls by name.
using FfiTargets = std::vector<std::pair<const char*, XLA_FFI_Handler*>>;

void bind_arc(nanobind::module_& module, FfiTargets& targets);
void bind_data(nanobind::module_& module);
void bind_kg(nanobind::module_& module);
void bind_lm(FfiTargets& targets);
void bind_proofs(nanobind::module_& module, FfiTargets& targets);
void bind_puzzles(nanobind::module_& module);

}  // namespace phalanx
