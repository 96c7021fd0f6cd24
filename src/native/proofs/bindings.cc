// Programs as Python objects: one holds its program in the registry for as long as it lives.

#include <nanobind/ndarray.h>

#include "proofs/expand_ffi.h"
#include "proofs/program.h"

namespace nb = nanobind;

namespace phalanx::proofs {
namespace {

template <typename Shape>
using Numbers = nb::ndarray<const int32_t, Shape, nb::c_contig, nb::device::cpu>;

class HeldProgram {
 public:
  HeldProgram(int64_t key, Numbers<nb::shape<-1, -1>> facts, Numbers<nb::shape<-1, -1>> heads,
              Numbers<nb::shape<-1, -1, -1>> bodies, int64_t predicates, int64_t constants)
      : key(key) {
    if (heads.shape(1) != facts.shape(1) || bodies.shape(2) != facts.shape(1))
      throw nb::value_error("facts, heads and bodies must have atoms of the same length");
    if (heads.shape(0) != bodies.shape(0)) throw nb::value_error("heads and bodies must be of the same rules");
    auto program = find_program(key);
    if (program == nullptr)
      program = std::make_shared<const Program>(facts.data(), facts.shape(0), heads.data(), bodies.data(),
                                                heads.shape(0), bodies.shape(1), predicates, constants,
                                                static_cast<int64_t>(facts.shape(1)) - 1);
    keep_program(key, std::move(program));
  }
  ~HeldProgram() { release_program(key); }
  HeldProgram(const HeldProgram&) = delete;
  HeldProgram& operator=(const HeldProgram&) = delete;

  const int64_t key;
};

}  // namespace

void bind_proofs(nb::module_& module) {
  nb::class_<HeldProgram>(module, "ProofProgram", "A program that the proof kernel can name by its key.")
      .def(nb::init<int64_t, Numbers<nb::shape<-1, -1>>, Numbers<nb::shape<-1, -1>>,
                    Numbers<nb::shape<-1, -1, -1>>, int64_t, int64_t>(),
           nb::arg("key"), nb::arg("facts"), nb::arg("heads"), nb::arg("bodies"), nb::arg("predicates"),
           nb::arg("constants"))
      .def_ro("key", &HeldProgram::key);
}

}  // namespace phalanx::proofs
