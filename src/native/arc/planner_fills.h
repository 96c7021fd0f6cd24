// The last steps of a plan: fills and flood fills that correct all cells that are still wrong.
#pragma once

#include <algorithm>
#include <vector>

#include "arc/planner_grid.h"

namespace phalanx::arc {
namespace {

struct PlannerOptions {
  SelectionFormat format;
  uint64_t allowed;   // a bit per operation
  int rows, columns;  // maximum size of a grid

  bool is_allowed(int operation) const { return allowed >> operation & 1; }
  // Returns the operation that fills the selection with a color, or -1 if none is allowed.
  int fill_operation(int color) const {
    return is_allowed(color) ? color : color == 0 && is_allowed(kClear) ? kClear : -1;
  }
};

// Steps, and the number of cells that remain wrong.
struct FillPlan {
  Steps steps;
  int num_wrong = 0;

  // A wrong cell outweighs any number of steps.
  int cost() const { return static_cast<int>(steps.size()) + 1000 * num_wrong; }
};

// Boxes of one color that may overlap, found from the last to the first. The last box may only contain cells
// of its color. What it covers can have any color before, so earlier boxes can be larger.
inline FillPlan fill_boxes(const Grid& grid, const Grid& target, const PlannerOptions& options, int limit) {
  struct Layer {
    int color;
    CellSet uncovered;  // cells that no later layer covers
  };
  const int height = target.height();
  const CellSet wrong = wrong_cells(grid, target);
  FillPlan out;
  CellSet of[10], left{}, covered{};
  std::vector<int> colors;
  for (int color = 0; color < 10; ++color) {
    of[color] = target.cells_of_color(color);
    const CellSet here = wrong & of[color];
    if (is_empty(here.data(), kRows)) continue;
    if (options.fill_operation(color) < 0) {
      out.num_wrong += count(here);
      continue;
    }
    colors.push_back(color);
    for (int r = 0; r < height; ++r) left[r] |= here[r];
  }

  std::vector<Layer> layers;
  while (!is_empty(left.data(), height)) {
    if (static_cast<int>(layers.size()) >= limit) return {{}, kRows * kRows};
    int best = 0, best_color = 0;
    Box best_box{};
    for (const int color : colors) {
      CellSet open{};
      for (int r = 0; r < height; ++r) open[r] = of[color][r] | covered[r];
      const CellSet wanted = left & of[color];
      for_each_maximal_box(open, wanted, height, [&](const Box& box) {
        const uint32_t run = column_range(box.left, box.right);
        int gain = 0, uncovered = 0;
        uint32_t adjacent = (box.top > 0 ? wanted[box.top - 1] & run : 0) | (wanted[box.bottom + 1] & run);
        for (int r = box.top; r <= box.bottom; ++r) {
          gain += count(wanted[r] & run);
          uncovered += count(run & ~covered[r]);
          adjacent |= wanted[r] & (run << 1 | run >> 1) & ~run;
        }
        // Prefer boxes that complete a region, which needs its own step in any case, then the number of wrong
        // cells, then the number of cells that become free for earlier layers.
        const int score = gain == 0 ? 0 : (adjacent == 0 ? 1 << 24 : 0) + gain * 1024 + uncovered;
        if (score > best) {
          best = score;
          best_color = color;
          best_box = box;
        }
      });
    }
    Layer layer{best_color, cells_in_box(best_box)};
    for (int r = best_box.top; r <= best_box.bottom; ++r) {
      const uint32_t row = layer.uncovered[r];
      layer.uncovered[r] &= ~covered[r];
      covered[r] |= row;
      left[r] &= ~row;
    }
    layers.push_back(layer);
  }

  // From the first to the last, shrink each layer to the cells that it is needed for.
  CellSet wrong_now = wrong;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    const CellSet needed = layer->uncovered & wrong_now;
    if (is_empty(needed.data(), kRows)) continue;
    const CellSet cells = cells_in_box(bounding_box(needed.data(), kRows));
    for (int r = 0; r < height; ++r)
      wrong_now[r] = (wrong_now[r] & ~cells[r]) | (cells[r] & ~of[layer->color][r]);
    out.steps.push_back({options.fill_operation(layer->color), cells});
  }
  return out;
}

// Fills all wrong cells of a color at once.
inline FillPlan fill_masks(const Grid& grid, const Grid& target, const PlannerOptions& options) {
  const CellSet wrong = wrong_cells(grid, target);
  FillPlan out;
  for (int color = 0; color < 10; ++color) {
    const CellSet here = wrong & target.cells_of_color(color);
    if (is_empty(here.data(), kRows)) continue;
    if (options.fill_operation(color) < 0) {
      out.num_wrong += count(here);
    } else {
      out.steps.push_back({options.fill_operation(color), here});
    }
  }
  return out;
}

inline CellSet neighbors(const CellSet& cells) {
  CellSet near{};
  for (int r = 0; r < kRows; ++r) {
    near[r] = cells[r] << 1 | cells[r] >> 1;
    if (r > 0) near[r] |= cells[r - 1];
    if (r + 1 < kRows) near[r] |= cells[r + 1];
  }
  return near;
}

// Corrects one region of the target: cell by cell where a flood fill would cross its border, and by flood
// fills inside.
inline FillPlan fill_region(Grid& grid, const CellSet& region, int color, const PlannerOptions& options) {
  FillPlan out;
  const int fill_operation = options.fill_operation(color),
            flood_fill = options.is_allowed(kFlood + color) ? kFlood + color : -1;
  for (int old = 0; old < 10; ++old) {
    const CellSet of_old = grid.cells_of_color(old);
    CellSet part = region & of_old;
    if (old == color || is_empty(part.data(), kRows)) continue;
    CellSet outside{};
    for (int r = 0; r < kRows; ++r) outside[r] = of_old[r] & ~region[r];
    CellSet border = part & neighbors(outside);
    if (flood_fill < 0) border = part;
    // If fills are not allowed, a piece that touches the border cannot be corrected.
    if (fill_operation >= 0) {
      for_each_cell(border, [&](int r, int c) { out.steps.push_back({fill_operation, single_cell(r, c)}); });
      for (int r = 0; r < kRows; ++r) part[r] &= ~border[r];
    }
    for (int r = 0; r < kRows; ++r) {
      while (part[r] != 0) {
        CellSet piece = single_cell(r, lowest_bit(part[r]));
        flood(part.data(), piece.data(), kRows);
        for (int k = 0; k < kRows; ++k) part[k] &= ~piece[k];
        const CellSet open = piece & border;
        if (fill_operation >= 0 && count(piece) == 1) {
          out.steps.push_back({fill_operation, piece});
        } else if (flood_fill >= 0 && (fill_operation >= 0 || is_empty(open.data(), kRows))) {
          out.steps.push_back({flood_fill, single_cell(r, lowest_bit(piece[r]))});
        } else {
          out.num_wrong += count(piece);
        }
      }
    }
  }
  grid.apply(out.steps);
  return out;
}

// Corrects the target region by region, those with the fewest steps per cell first.
inline FillPlan fill_regions(Grid grid, const Grid& target, const PlannerOptions& options, int limit) {
  struct Region {
    CellSet cells;
    int color, saved;
  };
  std::vector<Region> regions;
  const CellSet wrong = wrong_cells(grid, target);
  CellSet left = wrong;
  for (int r = 0; r < target.height(); ++r) {
    while (left[r] != 0) {
      const int c = lowest_bit(left[r]), color = target.color(r, c);
      const CellSet cells = target.region(r, c);
      for (int k = 0; k < kRows; ++k) left[k] &= ~cells[k];
      Grid scratch = grid;
      const int saved = count(cells & wrong) - fill_region(scratch, cells, color, options).cost();
      regions.push_back({cells, color, saved});
    }
  }
  std::stable_sort(regions.begin(), regions.end(),
                   [](const Region& a, const Region& b) { return a.saved > b.saved; });
  FillPlan out;
  for (const Region& region : regions) {
    const FillPlan part = fill_region(grid, region.cells, region.color, options);
    out.steps.insert(out.steps.end(), part.steps.begin(), part.steps.end());
    out.num_wrong += part.num_wrong;
    if (static_cast<int>(out.steps.size()) > limit) return {{}, kRows * kRows};
  }
  return out;
}

// Returns the best of these plans. Plans with more than `limit` steps are not needed.
inline FillPlan plan_fills(const Grid& grid, const Grid& target, const PlannerOptions& options,
                           int limit = kRows * kRows) {
  if (options.format == SelectionFormat::kPoint) return fill_regions(grid, target, options, limit);
  FillPlan out = options.format == SelectionFormat::kBox ? fill_boxes(grid, target, options, limit)
                                                         : fill_masks(grid, target, options);
  if (out.num_wrong == 0 || out.num_wrong == kRows * kRows) return out;
  FillPlan other = fill_regions(grid, target, options, limit);
  return other.cost() < out.cost() ? other : out;
}

}  // namespace
}  // namespace phalanx::arc
