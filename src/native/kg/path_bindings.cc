// The path network as Python calls it: parameters, gradients and scores are arrays of the caller's.

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <stdexcept>

#include "kg/path_network.h"

namespace nb = nanobind;

namespace phalanx::paths {
namespace {

template <typename T, typename Shape>
using In = nb::ndarray<const T, Shape, nb::c_contig, nb::device::cpu>;
template <typename T, typename Shape>
using Out = nb::ndarray<T, Shape, nb::c_contig, nb::device::cpu>;

std::shared_ptr<Questions> make(std::shared_ptr<mining::Graph> graph, int32_t layers, bool specific,
                                int32_t threads) {
  if (layers < 1 || layers > kMostLayers) throw nb::value_error("the layers are out of range");
  if (threads < 1 || threads > 1024) throw nb::value_error("there must be 1 to 1024 threads");
  return std::make_shared<Questions>(graph, layers, specific, threads);
}

void check(const Questions& questions, size_t parameters, const int32_t* rows, size_t count, int32_t columns) {
  if (static_cast<int64_t>(parameters) != questions.layout().size())
    throw nb::value_error("the parameters are not as many as those of this network");
  const mining::Graph& graph = questions.graph();
  for (size_t i = 0; i < count; ++i)
    for (int32_t k = 0; k < columns; ++k) {
      const int32_t number = rows[i * columns + k];
      if (number < 0 || number >= (k == 1 ? graph.directed : graph.entities))
        throw nb::value_error("a question is outside the graph");
    }
}

double learn(Questions& questions, In<float, nb::ndim<1>> parameters, In<int32_t, nb::shape<-1, 3>> rows,
             Out<float, nb::ndim<1>> gradient) {
  check(questions, parameters.shape(0), rows.data(), rows.shape(0), 3);
  if (gradient.shape(0) != parameters.shape(0)) throw nb::value_error("a parameter has one slope");
  nb::gil_scoped_release unlocked;
  return questions.learn(parameters.data(), rows.data(), static_cast<int64_t>(rows.shape(0)), gradient.data());
}

void scores(Questions& questions, In<float, nb::ndim<1>> parameters, In<int32_t, nb::shape<-1, 2>> rows,
            Out<float, nb::ndim<2>> table) {
  check(questions, parameters.shape(0), rows.data(), rows.shape(0), 2);
  if (table.shape(0) != rows.shape(0) || static_cast<int32_t>(table.shape(1)) != questions.graph().entities)
    throw nb::value_error("the table must have a row for each question and a column for each entity");
  nb::gil_scoped_release unlocked;
  questions.scores(parameters.data(), rows.data(), static_cast<int64_t>(rows.shape(0)), table.data());
}

}  // namespace

void bind_paths(nb::module_& module) {
  nb::class_<Questions>(module, "PathQuestions", "Questions to a path network over a graph.")
      .def(nb::new_(&make), nb::arg("graph"), nb::arg("layers"), nb::arg("specific"), nb::arg("threads"))
      .def("learn", &learn)
      .def("scores", &scores);
}

}  // namespace phalanx::paths
