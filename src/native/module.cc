// The Python module `phalanx._native`: the custom calls by name, for jax.ffi to register, and the
// functions that Python calls by themselves.

#include <nanobind/nanobind.h>

#include "arc/step_ffi.h"
#include "arc/step.h"
#include "arc/planner.h"
#include "lm/attention_ffi.h"
#include "kg/rules.h"
#include "data/packing.h"
#include "common/parallel.h"
#include "kg/path_network.h"
#include "arc/color_equivariant_ffi.h"
#include "proofs/expand_ffi.h"
#include "puzzles/puzzles.h"
#include "lm/decode_ffi.h"

namespace nb = nanobind;

namespace {

nb::capsule target(XLA_FFI_Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Compiled kernels of Phalanx; `phalanx.core.native` registers them with JAX.";
  module.def(
      "targets",
      [] {
        nb::dict table;
        table["phalanx_arc_step"] = target(phalanx_arc_step);
        table["phalanx_arc_reset"] = target(phalanx_arc_reset);
        table["phalanx_attention_forward"] = target(phalanx_attention_forward);
        table["phalanx_attention_backward"] = target(phalanx_attention_backward);
        table["phalanx_lm_write"] = target(phalanx_lm_write);
        table["phalanx_planes_forward"] = target(phalanx_planes_forward);
        table["phalanx_planes_forward_saving"] = target(phalanx_planes_forward_saving);
        table["phalanx_planes_backward"] = target(phalanx_planes_backward);
        table["phalanx_proof_expand"] = target(phalanx_proof_expand);
        return table;
      },
      "Custom-call targets by name.");
  module.def(
      "share_threads", [](int64_t devices) { phalanx::sharing_devices() = devices < 1 ? 1 : devices; },
      nb::arg("devices"), "Say how many devices of this process run kernels at the same time.");
  module.def("isa", [] { return phalanx::arc::kernels().isa; }, "The instruction set that the kernels use here.");
  phalanx::arc::bind_plans(module);
  phalanx::mining::bind_mining(module);
  phalanx::packing::bind_packing(module);
  phalanx::paths::bind_paths(module);
  phalanx::proofs::bind_proofs(module);
  phalanx::puzzles::bind_puzzles(module);
}
