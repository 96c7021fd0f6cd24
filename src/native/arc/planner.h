// Plans for pairs of grids, as `phalanx._native` offers them; how they are found is in arc_plan_search.h.
#pragma once

#include <nanobind/nanobind.h>

namespace phalanx::arc {

void bind_plans(nanobind::module_& module);

}  // namespace phalanx::arc
