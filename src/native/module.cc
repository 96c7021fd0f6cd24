// The Python module `phalanx._native`.

#include "module.h"

#include <algorithm>

#include "common/cpu_features.h"
#include "common/parallel.h"

namespace nb = nanobind;

NB_MODULE(_native, module) {
  using namespace phalanx;
  module.doc() = "Compiled kernels of Phalanx.";
  uses_avx2();  // an invalid PHALANX_ISA makes the import fail
  static FfiTargets targets;
  bind_arc(module, targets);
  bind_data(module);
  bind_kg(module);
  bind_lm(targets);
  bind_proofs(module, targets);
  bind_puzzles(module);
  module.def(
      "ffi_targets",
      [] {
        nb::typed<nb::dict, nb::str, nb::object> handlers;
        for (const auto& [name, handler] : targets)
          handlers[name] = nb::capsule(reinterpret_cast<void*>(handler));
        return handlers;
      },
      "Return the custom calls by name, for `jax.ffi.register_ffi_target`.");
  module.def(
      "set_num_devices", [](int64_t devices) { num_devices() = std::max<int64_t>(1, devices); },
      nb::arg("num_devices"), "Set how many devices of this process run custom calls at the same time.");
  module.def("instruction_set", &instruction_set, "Return the instruction set of the kernels in use.");
}
