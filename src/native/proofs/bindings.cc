// Python class: a program that custom calls can refer to.

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "common/arrays.h"
#include "module.h"
#include "proofs/program.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_proofs_expand);

namespace phalanx {
namespace proofs {
namespace {

using Atoms = InputArray<int32_t, nb::shape<-1, -1>>;
using Bodies = InputArray<int32_t, nb::shape<-1, -1, -1>>;

// Keeps a program registered for as long as the Python object exists.
class ProgramHandle {
 public:
  ProgramHandle(int64_t key, Atoms facts, Atoms heads, Bodies bodies, int64_t num_predicates,
                int64_t num_constants)
      : key(key) {
    if (heads.shape(1) != facts.shape(1) || bodies.shape(2) != facts.shape(1))
      throw nb::value_error("facts, heads and bodies must have atoms of the same length");
    if (heads.shape(0) != bodies.shape(0))
      throw nb::value_error("heads and bodies must have the same length");
    auto program = find_program(key);
    if (program == nullptr)
      program = std::make_shared<const Program>(facts.data(), facts.shape(0), heads.data(), bodies.data(),
                                                heads.shape(0), bodies.shape(1), num_predicates,
                                                num_constants, static_cast<int64_t>(facts.shape(1)) - 1);
    register_program(key, std::move(program));
  }
  ~ProgramHandle() { release_program(key); }
  ProgramHandle(const ProgramHandle&) = delete;
  ProgramHandle& operator=(const ProgramHandle&) = delete;

  const int64_t key;
};

}  // namespace
}  // namespace proofs

void bind_proofs(nb::module_& module, FfiTargets& targets) {
  using proofs::Atoms, proofs::Bodies, proofs::ProgramHandle;
  targets.emplace_back("phalanx_proofs_expand", phalanx_proofs_expand);
  nb::class_<ProgramHandle>(module, "ProofProgram", "A program that custom calls can refer to by its key.")
      .def(nb::init<int64_t, Atoms, Atoms, Bodies, int64_t, int64_t>(), nb::arg("key"), nb::arg("facts"),
           nb::arg("heads"), nb::arg("bodies"), nb::arg("num_predicates"), nb::arg("num_constants"))
      .def_ro("key", &ProgramHandle::key);
}

}  // namespace phalanx
