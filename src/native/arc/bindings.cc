// Python function of the planner, and the custom calls of ARC. Python code validates the arguments; the
// checks here only prevent reads and writes outside of arrays.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "arc/planner_search.h"
#include "common/arrays.h"
#include "module.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_arc_step);
XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_arc_reset);
XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_arc_color_equivariant_forward);
XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_arc_color_equivariant_forward_with_residuals);
XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_arc_color_equivariant_backward);

namespace phalanx {
namespace arc {
namespace {

using Cells = InputArray<int8_t, nb::ndim<2>>;

Grid read_grid(const Cells& cells, int rows, int columns) {
  const int height = static_cast<int>(cells.shape(0)), width = static_cast<int>(cells.shape(1));
  if (height < 1 || height > rows || width < 1 || width > columns || rows > kMaxSide || columns > kMaxSide)
    throw std::invalid_argument("grids must fit into rows x columns, which must be at most 30 x 30");
  Grid grid;
  grid.registers[kHeight] = height;
  grid.registers[kWidth] = width;
  for (int r = 0; r < height; ++r)
    for (int c = 0; c < width; ++c) {
      const int color = cells.data()[r * width + c];
      if (color < 0 || color > 9) throw std::invalid_argument("colors must be 0 to 9");
      grid.set_color(r, c, color);
    }
  return grid;
}

SelectionFormat to_format(const std::string& name) {
  if (name == "point") return SelectionFormat::kPoint;
  if (name == "bbox") return SelectionFormat::kBox;
  if (name == "mask") return SelectionFormat::kMask;
  throw std::invalid_argument("unknown selection format " + name);
}

std::tuple<nb::bytes, nb::bytes, int> plan_grid_edit(const Cells& start, const Cells& target, int rows,
                                                     int columns, const std::string& selection_format,
                                                     uint64_t allowed_operations) {
  const Grid from = read_grid(start, rows, columns), to = read_grid(target, rows, columns);
  const PlannerOptions options{to_format(selection_format), allowed_operations, rows, columns};
  FillPlan plan;
  {
    nb::gil_scoped_release unlocked;
    plan = Planner(from, to, options).plan();
  }
  std::vector<int32_t> operations;
  std::vector<uint32_t> selections;
  for (const Step& step : plan.steps) {
    operations.push_back(step.operation);
    selections.insert(selections.end(), step.cells.begin(), step.cells.begin() + rows);
  }
  return {nb::bytes(reinterpret_cast<const char*>(operations.data()), 4 * operations.size()),
          nb::bytes(reinterpret_cast<const char*>(selections.data()), 4 * selections.size()), plan.num_wrong};
}

}  // namespace
}  // namespace arc

void bind_arc(nb::module_& module, FfiTargets& targets) {
  targets.emplace_back("phalanx_arc_step", phalanx_arc_step);
  targets.emplace_back("phalanx_arc_reset", phalanx_arc_reset);
  targets.emplace_back("phalanx_arc_color_equivariant_forward", phalanx_arc_color_equivariant_forward);
  targets.emplace_back("phalanx_arc_color_equivariant_forward_with_residuals",
                       phalanx_arc_color_equivariant_forward_with_residuals);
  targets.emplace_back("phalanx_arc_color_equivariant_backward", phalanx_arc_color_equivariant_backward);
  module.def(
      "plan_grid_edit", &arc::plan_grid_edit, nb::arg("start").noconvert(), nb::arg("target").noconvert(),
      nb::arg("rows"), nb::arg("columns"), nb::arg("selection_format"), nb::arg("allowed_operations"),
      "Plan the steps from one grid to another. Return the operations (int32), the selected cells of each as "
      "`rows` bit masks of columns (uint32), and the number of cells that remain wrong.");
}

}  // namespace phalanx
