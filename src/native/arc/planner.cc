// `plan` of `phalanx._native`. Python checks the arguments and words the errors; what is checked here again
// is what would otherwise read or write outside an array.

#include "arc/planner.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "arc/planner_search.h"

namespace nb = nanobind;

namespace phalanx::arc {
namespace {

constexpr int kMaxSide = 30;

using Cells = nb::ndarray<const int8_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Grid grid_of(const Cells& cells, int rows, int columns) {
  const int height = static_cast<int>(cells.shape(0)), width = static_cast<int>(cells.shape(1));
  if (height < 1 || height > rows || width < 1 || width > columns || rows > kMaxSide || columns > kMaxSide)
    throw std::invalid_argument("a grid must fit the canvas, and a canvas has at most 30 rows and columns");
  Grid grid;
  grid.registers[kHeight] = height;
  grid.registers[kWidth] = width;
  for (int r = 0; r < height; ++r)
    for (int c = 0; c < width; ++c) {
      const int color = cells.data()[r * width + c];
      if (color < 0 || color > 9) throw std::invalid_argument("a cell's color must be 0 to 9");
      grid.put(r, c, color);
    }
  return grid;
}

Format format_of(const std::string& name) {
  if (name == "point") return Format::kPoint;
  if (name == "bbox") return Format::kBox;
  if (name == "mask") return Format::kMask;
  throw std::invalid_argument("unknown selection format " + name);
}

nb::tuple plan(const Cells& start, const Cells& target, int rows, int columns, const std::string& format,
               uint64_t allowed) {
  const Grid from = grid_of(start, rows, columns), to = grid_of(target, rows, columns);
  const Means means{format_of(format), allowed, rows, columns};
  Finish found;
  {
    nb::gil_scoped_release unlocked;
    found = Planner(from, to, means).plan();
  }
  std::vector<int32_t> operations;
  std::vector<uint32_t> cells;
  for (const Step& step : found.steps) {
    operations.push_back(step.operation);
    cells.insert(cells.end(), step.cells.begin(), step.cells.begin() + rows);
  }
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(operations.data()), 4 * operations.size()),
                        nb::bytes(reinterpret_cast<const char*>(cells.data()), 4 * cells.size()),
                        found.missing);
}

}  // namespace

void bind_plans(nb::module_& module) {
  module.def("plan", &plan, nb::arg("start").noconvert(), nb::arg("target").noconvert(), nb::arg("rows"),
             nb::arg("columns"), nb::arg("format"), nb::arg("allowed"),
             "Steps from one grid to another: operations (int32), the cells of each as `rows` row words "
             "(uint32), and how many cells they leave wrong.");
}

}  // namespace phalanx::arc
