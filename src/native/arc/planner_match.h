// Where a grid already holds what the target wants elsewhere: boxes to copy, move, mirror or turn.
// Whether one shortens a plan is tried in arc_plan_search.h.
#pragma once

#include <cstdlib>

#include "arc/planner_fills.h"

namespace phalanx::arc {
namespace {

constexpr int kUnit = 5040;  // what one step is worth

inline Box intersection(const Box& a, const Box& b) {
  return {std::max(a.top, b.top), std::min(a.bottom, b.bottom), std::max(a.left, b.left),
          std::min(a.right, b.right)};
}

inline bool is_empty(const Box& box) { return box.top > box.bottom || box.left > box.right; }

// Sums of cells over boxes; nothing in an empty one.
struct Sums {
  int sums[kRows + 1][kRows + 1] = {};

  Sums(const int (&cells)[kRows][kRows], const Rows& where) {
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kRows; ++c)
        sums[r + 1][c + 1] =
            sums[r][c + 1] + sums[r + 1][c] - sums[r][c] + (where[r] >> c & 1 ? cells[r][c] : 0);
  }

  int of(const Box& box) const {
    if (is_empty(box)) return 0;
    return sums[box.bottom + 1][box.right + 1] - sums[box.top][box.right + 1] -
           sums[box.bottom + 1][box.left] + sums[box.top][box.left];
  }
};

// What making a wrong cell right is worth: a step of the last fills, shared among the cells that it paints.
struct Worth {
  Rows wrong;
  int cells[kRows][kRows] = {};

  Worth(Grid grid, const Grid& target, const Means& means) : wrong(wrong_cells(grid, target)) {
    const Steps last = finish(grid, target, means).steps;
    int painter[kRows][kRows] = {};
    std::vector<int> painted(last.size() + 1, 0);
    for (size_t i = 0; i < last.size(); ++i) {
      const Grid before = grid;
      grid.apply(last[i]);
      each(wrong_cells(before, grid) & wrong, [&](int r, int c) { painter[r][c] = static_cast<int>(i) + 1; });
    }
    each(wrong, [&](int r, int c) { ++painted[painter[r][c]]; });
    each(wrong, [&](int r, int c) { cells[r][c] = kUnit / painted[painter[r][c]]; });
  }
};

// A box of the target that a symmetric image of the source holds as well, so many rows and columns away.
struct Match {
  int gain, symmetry, down, aside;
  bool planned;       // the source is the target itself: it must be painted before it can be copied
  int height, width;  // of the source
  Box to;

  // The box of the source that a part of `to` equals.
  Box from(const Box& part) const {
    int r1 = part.top + down, c1 = part.left + aside, r2 = part.bottom + down, c2 = part.right + aside;
    preimage(symmetry, height, width, r1, c1);
    preimage(symmetry, height, width, r2, c2);
    return {std::min(r1, r2), std::max(r1, r2), std::min(c1, c2), std::max(c1, c2)};
  }

  // Where source and place overlap, which is where a pattern repeats, a part in which they do not.
  Box first_strip() const {
    if (is_empty(intersection(from(to), to))) return to;
    const int rows = std::abs(down) * (to.right - to.left + 1);
    const int columns = std::abs(aside) * (to.bottom - to.top + 1);
    if (rows >= columns)
      return down > 0 ? Box{to.top, to.top + down - 1, to.left, to.right}
                      : Box{to.bottom + down + 1, to.bottom, to.left, to.right};
    return aside > 0 ? Box{to.top, to.bottom, to.left, to.left + aside - 1}
                     : Box{to.top, to.bottom, to.right + aside + 1, to.right};
  }
};

// All matches that promise to save more steps than they take.
class Matcher {
 public:
  Matcher(const Grid& target, const Worth& worth)
      : target_(target),
        worth_(worth),
        right_(worth.cells, worth.wrong),
        cleared_(worth.cells, worth.wrong & target.of_color(0)) {}

  void search(const Grid& source, bool planned) {
    for (int symmetry = 0; symmetry < kSymmetries; ++symmetry) search(source, planned, symmetry);
  }

  // The best ones, the most promising first.
  std::vector<Match> best(size_t most) {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Match& a, const Match& b) { return a.gain > b.gain; });
    if (found_.size() > most) found_.resize(most);
    return found_;
  }

 private:
  void search(const Grid& source, bool planned, int symmetry) {
    const int turns = static_cast<int>(operations_of(symmetry).size());
    const int in_place = kUnit * std::max(turns, 1), copied = kUnit * (2 + turns);
    // An object that leaves its place leaves zeros behind, which may be right as well.
    const int zeros = planned ? 0 : cleared_.of(target_.area());
    if (right_.of(target_.area()) + zeros <= (planned ? copied : in_place)) return;
    const Grid image = arc::image(source, symmetry);
    for (int down = 1 - target_.height(); down < image.height(); ++down) {
      for (int aside = 1 - target_.width(); aside < image.width(); ++aside) {
        if (symmetry == 0 && down == 0 && aside == 0) continue;
        const bool movable = !planned && (symmetry != 0 || std::abs(down) + std::abs(aside) == 1);
        const Rows equal = target_.equal(image, down, aside);
        int gain = zeros;
        each(equal & worth_.wrong, [&](int r, int c) { gain += worth_.cells[r][c]; });
        if (gain <= (movable ? in_place : copied)) continue;
        each_largest_box(equal, equal & worth_.wrong, target_.height(), [&](const Box& box) {
          Match match{0, symmetry, down, aside, planned, source.height(), source.width(), box};
          if (planned && symmetry == 0) match.to = match.first_strip();
          const Box from = match.from(match.to), both = intersection(from, match.to);
          const int wins = right_.of(match.to);
          match.gain = wins - (movable && !is_empty(both) ? in_place : copied);
          if (planned) {
            match.gain -= right_.of(both);
          } else if (source.fits(target_)) {
            match.gain += cleared_.of(from) - cleared_.of(both);
          }
          if (wins > 0 && match.gain > 0) found_.push_back(match);
        });
      }
    }
  }

  const Grid& target_;
  const Worth& worth_;
  const Sums right_, cleared_;
  std::vector<Match> found_;
};

}  // namespace
}  // namespace phalanx::arc
