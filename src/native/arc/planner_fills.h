// The last part of a plan: fills (and flood fills) that paint whatever is still wrong.
// What is done before, because it makes these fewer, is in arc_plan.cc.
#pragma once

#include <algorithm>

#include "arc/planner_grid.h"

namespace phalanx::arc {
namespace {

// What a plan may be made of.
struct Means {
  Format format;
  uint64_t allowed;   // a bit for each operation
  int rows, columns;  // of the canvas

  bool can(int operation) const { return allowed >> operation & 1; }
  // The operation that paints selected cells; -1 where there is none.
  int fill(int color) const { return can(color) ? color : color == 0 && can(kClear) ? kClear : -1; }
};

// Steps that paint what is wrong, and how many cells they cannot make right.
struct Finish {
  Steps steps;
  int missing = 0;

  // A cell that stays wrong outweighs any number of steps.
  int cost() const { return static_cast<int>(steps.size()) + 1000 * missing; }
};

// Boxes of one color, painted over one another. Found from the last to the first: the last box may hold only
// cells of its color; whatever it covers may have any color before, so that earlier boxes can be larger.
inline Finish fill_boxes(const Grid& grid, const Grid& target, const Means& means, int limit) {
  struct Layer {
    int color;
    Rows fresh;  // the cells that no later layer covers
  };
  const int height = target.height();
  const Rows wrong = wrong_cells(grid, target);
  Finish out;
  Rows of[10], left{}, covered{};
  std::vector<int> colors;
  for (int color = 0; color < 10; ++color) {
    of[color] = target.of_color(color);
    const Rows here = wrong & of[color];
    if (is_empty(here.data(), kRows)) continue;
    if (means.fill(color) < 0) {
      out.missing += count(here);
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
      Rows open{};
      for (int r = 0; r < height; ++r) open[r] = of[color][r] | covered[r];
      const Rows wanted = left & of[color];
      each_largest_box(open, wanted, height, [&](const Box& box) {
        const uint32_t run = span(box.left, box.right);
        int gain = 0, fresh = 0;
        uint32_t beyond = (box.top > 0 ? wanted[box.top - 1] & run : 0) | (wanted[box.bottom + 1] & run);
        for (int r = box.top; r <= box.bottom; ++r) {
          gain += count(wanted[r] & run);
          fresh += count(run & ~covered[r]);
          beyond |= wanted[r] & (run << 1 | run >> 1) & ~run;
        }
        // First what makes all of a region right, which needs a step of its own anyway; then most wrong
        // cells, then most cells that become free for the layers below.
        const int score = gain == 0 ? 0 : (beyond == 0 ? 1 << 24 : 0) + gain * 1024 + fresh;
        if (score > best) {
          best = score;
          best_color = color;
          best_box = box;
        }
      });
    }
    Layer layer{best_color, cells_of(best_box)};
    for (int r = best_box.top; r <= best_box.bottom; ++r) {
      const uint32_t row = layer.fresh[r];
      layer.fresh[r] &= ~covered[r];
      covered[r] |= row;
      left[r] &= ~row;
    }
    layers.push_back(layer);
  }

  // From the first to the last each layer shrinks to what it is needed for.
  Rows bad = wrong;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    const Rows needed = layer->fresh & bad;
    if (is_empty(needed.data(), kRows)) continue;
    const Rows cells = cells_of(box_of(needed.data(), kRows));
    for (int r = 0; r < height; ++r) bad[r] = (bad[r] & ~cells[r]) | (cells[r] & ~of[layer->color][r]);
    out.steps.push_back({means.fill(layer->color), cells});
  }
  return out;
}

// All wrong cells of a color at once.
inline Finish fill_masks(const Grid& grid, const Grid& target, const Means& means) {
  const Rows wrong = wrong_cells(grid, target);
  Finish out;
  for (int color = 0; color < 10; ++color) {
    const Rows here = wrong & target.of_color(color);
    if (is_empty(here.data(), kRows)) continue;
    if (means.fill(color) < 0) {
      out.missing += count(here);
    } else {
      out.steps.push_back({means.fill(color), here});
    }
  }
  return out;
}

inline Rows neighbors(const Rows& cells) {
  Rows near{};
  for (int r = 0; r < kRows; ++r) {
    near[r] = cells[r] << 1 | cells[r] >> 1;
    if (r > 0) near[r] |= cells[r - 1];
    if (r + 1 < kRows) near[r] |= cells[r + 1];
  }
  return near;
}

// Make one region of the target right, cell by cell where its color would run out over its border, and by
// flood fills inside of that.
inline Finish fill_region(Grid& grid, const Rows& region, int color, const Means& means) {
  Finish out;
  const int fill = means.fill(color), flood_fill = means.can(kFlood + color) ? kFlood + color : -1;
  for (int old = 0; old < 10; ++old) {
    const Rows of_old = grid.of_color(old);
    Rows part = region & of_old;
    if (old == color || is_empty(part.data(), kRows)) continue;
    Rows outside{};
    for (int r = 0; r < kRows; ++r) outside[r] = of_old[r] & ~region[r];
    Rows border = part & neighbors(outside);
    if (flood_fill < 0) border = part;
    // Without fills a piece that touches its border cannot be painted.
    if (fill >= 0) {
      each(border, [&](int r, int c) { out.steps.push_back({fill, cell_at(r, c)}); });
      for (int r = 0; r < kRows; ++r) part[r] &= ~border[r];
    }
    for (int r = 0; r < kRows; ++r) {
      while (part[r] != 0) {
        Rows piece = cell_at(r, lowest(part[r]));
        flood(part.data(), piece.data(), kRows);
        for (int k = 0; k < kRows; ++k) part[k] &= ~piece[k];
        const Rows open = piece & border;
        if (fill >= 0 && count(piece) == 1) {
          out.steps.push_back({fill, piece});
        } else if (flood_fill >= 0 && (fill >= 0 || is_empty(open.data(), kRows))) {
          out.steps.push_back({flood_fill, cell_at(r, lowest(piece[r]))});
        } else {
          out.missing += count(piece);
        }
      }
    }
  }
  grid.apply(out.steps);
  return out;
}

// Region by region of the target, those first that take the fewest steps for their cells.
inline Finish fill_regions(Grid grid, const Grid& target, const Means& means, int limit) {
  struct Region {
    Rows cells;
    int color, saved;
  };
  std::vector<Region> regions;
  const Rows wrong = wrong_cells(grid, target);
  Rows left = wrong;
  for (int r = 0; r < target.height(); ++r) {
    while (left[r] != 0) {
      const int c = lowest(left[r]), color = target.color(r, c);
      const Rows cells = target.region(r, c);
      for (int k = 0; k < kRows; ++k) left[k] &= ~cells[k];
      Grid scratch = grid;
      const int saved = count(cells & wrong) - fill_region(scratch, cells, color, means).cost();
      regions.push_back({cells, color, saved});
    }
  }
  std::stable_sort(regions.begin(), regions.end(),
                   [](const Region& a, const Region& b) { return a.saved > b.saved; });
  Finish out;
  for (const Region& region : regions) {
    const Finish part = fill_region(grid, region.cells, region.color, means);
    out.steps.insert(out.steps.end(), part.steps.begin(), part.steps.end());
    out.missing += part.missing;
    if (static_cast<int>(out.steps.size()) > limit) return {{}, kRows * kRows};
  }
  return out;
}

// The shortest of these ways from a grid to a target of its size; more steps than `limit` are not wanted.
inline Finish finish(const Grid& grid, const Grid& target, const Means& means, int limit = kRows * kRows) {
  if (means.format == Format::kPoint) return fill_regions(grid, target, means, limit);
  Finish out = means.format == Format::kBox ? fill_boxes(grid, target, means, limit)
                                            : fill_masks(grid, target, means);
  if (out.missing == 0 || out.missing == kRows * kRows) return out;
  Finish other = fill_regions(grid, target, means, limit);
  return other.cost() < out.cost() ? other : out;
}

}  // namespace
}  // namespace phalanx::arc
