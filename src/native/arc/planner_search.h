// Plans short sequences of operations that turn one grid into another. A plan ends with fills that correct
// the remaining cells. The steps before are found greedily: of many candidates (transforming the grid,
// copying, moving or flooding parts of it), the one is added after which the fewest steps remain, for as long
// as it shortens the plan.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "arc/planner_fills.h"

namespace phalanx::arc {
namespace {

constexpr int kStepGain = 5040;  // gain of saving one step; divisible by 1 to 10

inline Box intersection(const Box& a, const Box& b) {
  return {std::max(a.top, b.top), std::min(a.bottom, b.bottom), std::max(a.left, b.left),
          std::min(a.right, b.right)};
}

inline bool is_empty(const Box& box) { return box.top > box.bottom || box.left > box.right; }

// Sums of cell values over boxes.
struct BoxSums {
  int sums[kRows + 1][kRows + 1] = {};

  BoxSums(const int (&cells)[kRows][kRows], const CellSet& where) {
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

// The gain of correcting each wrong cell: one fill step, shared by the cells that it corrects.
struct CellGains {
  CellSet wrong;
  int cells[kRows][kRows] = {};

  CellGains(Grid grid, const Grid& target, const PlannerOptions& options) : wrong(wrong_cells(grid, target)) {
    const Steps last = plan_fills(grid, target, options).steps;
    int painting_step[kRows][kRows] = {};
    std::vector<int> num_painted(last.size() + 1, 0);
    for (size_t i = 0; i < last.size(); ++i) {
      const Grid before = grid;
      grid.apply(last[i]);
      for_each_cell(wrong_cells(before, grid) & wrong,
                    [&](int r, int c) { painting_step[r][c] = static_cast<int>(i) + 1; });
    }
    for_each_cell(wrong, [&](int r, int c) { ++num_painted[painting_step[r][c]]; });
    for_each_cell(wrong, [&](int r, int c) { cells[r][c] = kStepGain / num_painted[painting_step[r][c]]; });
  }
};

// A box of the target that equals a box of a transformed source at an offset.
struct Match {
  int gain, symmetry, rows_down, columns_right;
  bool from_target;   // the source is the target itself: it must be painted before it can be copied
  int height, width;  // size of the source
  Box to;

  // Returns the box of the source that equals a part of `to`.
  Box from(const Box& part) const {
    int r1 = part.top + rows_down, c1 = part.left + columns_right, r2 = part.bottom + rows_down,
        c2 = part.right + columns_right;
    source_cell(symmetry, height, width, r1, c1);
    source_cell(symmetry, height, width, r2, c2);
    return {std::min(r1, r2), std::max(r1, r2), std::min(c1, c2), std::max(c1, c2)};
  }

  // If source and destination overlap, as in a repeating pattern, returns a part of `to` for which they do
  // not.
  Box first_strip() const {
    if (is_empty(intersection(from(to), to))) return to;
    const int rows = std::abs(rows_down) * (to.right - to.left + 1);
    const int columns = std::abs(columns_right) * (to.bottom - to.top + 1);
    if (rows >= columns)
      return rows_down > 0 ? Box{to.top, to.top + rows_down - 1, to.left, to.right}
                           : Box{to.bottom + rows_down + 1, to.bottom, to.left, to.right};
    return columns_right > 0 ? Box{to.top, to.bottom, to.left, to.left + columns_right - 1}
                             : Box{to.top, to.bottom, to.right + columns_right + 1, to.right};
  }
};

// Finds all matches that may save more steps than they need.
class MatchFinder {
 public:
  MatchFinder(const Grid& target, const CellGains& gains)
      : target_(target),
        gains_(gains),
        wrong_gains_(gains.cells, gains.wrong),
        cleared_gains_(gains.cells, gains.wrong & target.cells_of_color(0)) {}

  void search(const Grid& source, bool from_target) {
    for (int symmetry = 0; symmetry < kSymmetries; ++symmetry) search(source, from_target, symmetry);
  }

  // Returns the matches with the largest gains.
  std::vector<Match> best(size_t max_count) {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Match& a, const Match& b) { return a.gain > b.gain; });
    if (found_.size() > max_count) found_.resize(max_count);
    return found_;
  }

 private:
  void search(const Grid& source, bool from_target, int symmetry) {
    const int num_operations = static_cast<int>(symmetry_operations(symmetry).size());
    const int in_place_cost = kStepGain * std::max(num_operations, 1),
              copy_cost = kStepGain * (2 + num_operations);
    // An object that is moved leaves zeros behind, which may be correct as well.
    const int cleared_gain = from_target ? 0 : cleared_gains_.of(target_.area());
    if (wrong_gains_.of(target_.area()) + cleared_gain <= (from_target ? copy_cost : in_place_cost)) return;
    const Grid image_grid = transform_grid(source, symmetry);
    for (int rows_down = 1 - target_.height(); rows_down < image_grid.height(); ++rows_down) {
      for (int columns_right = 1 - target_.width(); columns_right < image_grid.width(); ++columns_right) {
        if (symmetry == 0 && rows_down == 0 && columns_right == 0) continue;
        const bool is_movable =
            !from_target && (symmetry != 0 || std::abs(rows_down) + std::abs(columns_right) == 1);
        const CellSet equal = target_.equal(image_grid, rows_down, columns_right);
        int gain = cleared_gain;
        for_each_cell(equal & gains_.wrong, [&](int r, int c) { gain += gains_.cells[r][c]; });
        if (gain <= (is_movable ? in_place_cost : copy_cost)) continue;
        for_each_maximal_box(equal, equal & gains_.wrong, target_.height(), [&](const Box& box) {
          Match match{0,           symmetry,        rows_down,      columns_right,
                      from_target, source.height(), source.width(), box};
          if (from_target && symmetry == 0) match.to = match.first_strip();
          const Box from = match.from(match.to), overlap = intersection(from, match.to);
          const int gain_at_target = wrong_gains_.of(match.to);
          match.gain = gain_at_target - (is_movable && !is_empty(overlap) ? in_place_cost : copy_cost);
          if (from_target) {
            match.gain -= wrong_gains_.of(overlap);
          } else if (source.same_size(target_)) {
            match.gain += cleared_gains_.of(from) - cleared_gains_.of(overlap);
          }
          if (gain_at_target > 0 && match.gain > 0) found_.push_back(match);
        });
      }
    }
  }

  const Grid& target_;
  const CellGains& gains_;
  const BoxSums wrong_gains_, cleared_gains_;
  std::vector<Match> found_;
};

constexpr size_t kMaxMatches = 64, kMaxShifts = 4;  // copies and shifts that are tried per round

// The first steps of a plan, the grid after them, and the cost of the plan including the fills.
struct PartialPlan {
  Grid grid;
  Steps steps;
  int total;
  int num_painted = 0;  // number of last steps that paint what is copied afterwards
};

class Planner {
 public:
  Planner(const Grid& start, const Grid& target, const PlannerOptions& options)
      : start_(start), target_(target), options_(options) {}

  FillPlan plan() {
    best_ = {start_, {}, 1 << 30};
    Candidate direct = candidate(best_);
    direct.resize();
    keep_if_better(direct);
    if (!best_.grid.same_size(target_)) return {{}, kRows * kRows};  // resizing is not allowed
    const PartialPlan initial{start_, {}, best_.total};
    if (best_.total > 1) {
      try_symmetries(initial);
      try_copies(initial);
      shorten_painting(initial);
    }
    for (int before = best_.total + 1; best_.total < before && best_.total > 1;) {
      before = best_.total;
      const PartialPlan base = best_;
      try_floods(base);
      if (!base.steps.empty()) try_copies(base);  // copies from the start have been tried
      if (best_.total < before) shorten_painting(base);
    }
    const FillPlan last = plan_fills(best_.grid, target_, options_);
    Steps steps = best_.steps;
    steps.insert(steps.end(), last.steps.begin(), last.steps.end());
    return {last.num_wrong == 0 ? simplify(steps) : steps, last.num_wrong};
  }

 private:
  // A plan under construction. Steps are applied as they are added; it is impossible if one of them is.
  struct Candidate {
    const Planner& planner;
    Grid grid;
    Steps steps;
    int num_painted = 0;
    bool possible = true;

    void add(int operation, const std::optional<CellSet>& cells) {
      possible = possible && cells && planner.options_.is_allowed(operation);
      if (!possible) return;
      steps.push_back({operation, *cells});
      grid.apply(steps.back());
    }
    void add(int operation, const Box& box) { add(operation, planner.selection(grid, box)); }
    void resize() {
      const Grid& target = planner.target_;
      if (!grid.same_size(target)) resize_to(target.height(), target.width());
    }
    void resize_to(int height, int width) {
      const bool point = planner.options_.format == SelectionFormat::kPoint;
      add(kResize, point ? single_cell(height - 1, width - 1) : cells_in_box({0, height - 1, 0, width - 1}));
    }
    void apply_symmetry(Box box, int symmetry) {
      for (const int operation : symmetry_operations(symmetry)) {
        add(operation, box);
        if (operation < kFlipHorizontal)
          box = {box.top, box.top + box.right - box.left, box.left, box.left + box.bottom - box.top};
      }
    }
  };

  Candidate candidate(const PartialPlan& base) const { return {*this, base.grid, base.steps}; }

  // Returns how an action selects a box, if it can. A point outside of the grid selects the entire grid.
  std::optional<CellSet> selection(const Grid& grid, const Box& box) const {
    const bool one_cell = box.top == box.bottom && box.left == box.right;
    if (options_.format != SelectionFormat::kPoint || one_cell) return cells_in_box(box);
    if (!(box == grid.area())) return std::nullopt;
    if (grid.height() < options_.rows) return single_cell(grid.height(), 0);
    if (grid.width() < options_.columns) return single_cell(0, grid.width());
    return std::nullopt;
  }

  void keep_if_better(const Candidate& candidate) {
    const int steps = static_cast<int>(candidate.steps.size());
    if (!candidate.possible || steps >= best_.total || !candidate.grid.same_size(target_)) return;
    const int total = steps + plan_fills(candidate.grid, target_, options_, best_.total - steps - 1).cost();
    if (total < best_.total) best_ = {candidate.grid, candidate.steps, total, candidate.num_painted};
  }

  void try_symmetries(const PartialPlan& base) {
    const Box area = base.grid.area();
    const int side = std::max(base.grid.height(), base.grid.width());
    for (int symmetry = 1; symmetry < kSymmetries; ++symmetry) {
      Candidate candidate = this->candidate(base);
      if (symmetry & kTransposes && base.grid.height() != base.grid.width()) {
        if (side > options_.rows || side > options_.columns) continue;
        const bool fits_target = target_.height() >= side && target_.width() >= side;
        candidate.resize_to(fits_target ? target_.height() : side, fits_target ? target_.width() : side);
      }
      candidate.apply_symmetry(area, symmetry);
      candidate.resize();
      keep_if_better(candidate);
    }
  }

  // Flood-fills each region of the grid with the color that most of its cells should have.
  void try_floods(const PartialPlan& base) {
    CellSet left = wrong_cells(base.grid, target_);
    CellSet of[10];
    for (int color = 0; color < 10; ++color) of[color] = target_.cells_of_color(color);
    for (int r = 0; r < target_.height(); ++r) {
      while (left[r] != 0) {
        const int c = lowest_bit(left[r]), old = base.grid.color(r, c);
        const CellSet region = base.grid.region(r, c);
        int max_count = 0, chosen = 0;
        for (int color = 0; color < 10; ++color) {
          const int cells = color == old ? 0 : count(region & of[color]);
          if (cells > max_count) {
            max_count = cells;
            chosen = color;
          }
        }
        for (int k = 0; k < kRows; ++k) left[k] &= ~region[k];
        const Box box = bounding_box(region.data(), kRows);
        Candidate candidate = this->candidate(base);
        candidate.add(kFlood + chosen, single_cell(box.top, lowest_bit(region[box.top])));
        keep_if_better(candidate);
      }
    }
  }

  // Copies parts of the grid, or of the target once they are painted, to where the target has the same
  // content.
  void try_copies(const PartialPlan& base) {
    Candidate resized = candidate(base);
    resized.resize();
    if (!resized.possible) return;
    const CellGains gains(resized.grid, target_, options_);
    if (options_.format == SelectionFormat::kPoint) {
      Candidate candidate = this->candidate(base);
      candidate.add(kCopy, base.grid.area());
      candidate.resize();
      paste_repeatedly(candidate, gains);
      keep_if_better(candidate);
      shift_grid(base);
      return;
    }
    const bool same_size = base.grid.same_size(target_);
    MatchFinder finder(target_, gains);
    finder.search(base.grid, false);
    if (same_size) finder.search(target_, true);
    for (const Match& match : finder.best(kMaxMatches)) {
      if (same_size && !match.from_target) transform_in_place(base, match);
      const CellSet inside = gains.wrong & cells_in_box(match.to);
      for (const Box& to : {bounding_box(inside.data(), kRows), match.to}) try_copy(base, match, to, gains);
    }
  }

  // Moves the entire grid, for formats that cannot select a part of it.
  void shift_grid(const PartialPlan& base) {
    struct Shift {
      int wrong, rows_down, columns_right;
    };
    std::vector<Shift> found;
    for (int rows_down = 1 - base.grid.height(); rows_down < base.grid.height(); ++rows_down) {
      for (int columns_right = 1 - base.grid.width(); columns_right < base.grid.width(); ++columns_right) {
        const int moves = std::abs(rows_down) + std::abs(columns_right);
        if (moves == 0 || moves + static_cast<int>(base.steps.size()) >= best_.total) continue;
        found.push_back(
            {moves - count(target_.equal(base.grid, -rows_down, -columns_right)), rows_down, columns_right});
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Shift& a, const Shift& b) { return a.wrong < b.wrong; });
    for (size_t i = 0; i < std::min(found.size(), kMaxShifts); ++i) {
      Candidate candidate = this->candidate(base);
      for (int k = 0; k < std::abs(found[i].rows_down); ++k)
        candidate.add(found[i].rows_down < 0 ? kMoveUp : kMoveDown, candidate.grid.area());
      for (int k = 0; k < std::abs(found[i].columns_right); ++k)
        candidate.add(found[i].columns_right < 0 ? kMoveLeft : kMoveRight, candidate.grid.area());
      candidate.resize();
      keep_if_better(candidate);
    }
  }

  // Moves, flips or rotates a part where it is.
  void transform_in_place(const PartialPlan& base, const Match& match) {
    const Box from = match.from(match.to);
    Candidate candidate = this->candidate(base);
    if (match.symmetry == 0) {
      if (std::abs(match.rows_down) + std::abs(match.columns_right) != 1) return;
      const int along = match.rows_down > 0 ? kMoveUp : kMoveDown;
      const int across = match.columns_right > 0 ? kMoveLeft : kMoveRight;
      candidate.add(match.rows_down != 0 ? along : across, from);
    } else {
      const Box overlap = intersection(from, match.to);
      if (is_empty(overlap) || (match.symmetry & kTransposes && !(from == match.to))) return;
      candidate.apply_symmetry(overlap, match.symmetry);
    }
    keep_if_better(candidate);
  }

  void try_copy(const PartialPlan& base, const Match& match, const Box& to, const CellGains& gains) {
    const Box from = match.from(to);
    if (match.symmetry & kTransposes && to.bottom - to.top != to.right - to.left) return;
    for (const int operation : {kCopy, kCut}) {
      if (operation == kCut && (match.from_target || !base.grid.same_size(target_))) continue;
      Candidate candidate = this->candidate(base);
      if (match.from_target) {
        Grid goal = base.grid;
        for (int r = from.top; r <= from.bottom; ++r) {
          const uint32_t part = column_range(from.left, from.right);
          for (int plane = 0; plane < 4; ++plane) {
            uint32_t& row = goal.boards[plane * kRows + r];
            row = (row & ~part) | (target_.boards[plane * kRows + r] & part);
          }
        }
        const FillPlan painting = plan_fills(base.grid, goal, options_);
        if (painting.num_wrong != 0) return;
        candidate.steps.insert(candidate.steps.end(), painting.steps.begin(), painting.steps.end());
        candidate.num_painted = static_cast<int>(painting.steps.size());
        candidate.grid.apply(painting.steps);
      }
      candidate.add(operation, from);
      candidate.resize();
      candidate.add(kPaste, single_cell(to.top, to.left));
      candidate.apply_symmetry(to, match.symmetry);
      if (match.symmetry == 0) paste_repeatedly(candidate, gains);
      keep_if_better(candidate);
    }
  }

  // Pastes the clipboard wherever the target has its content and that saves more than a step.
  void paste_repeatedly(Candidate& candidate, const CellGains& gains) {
    if (!candidate.possible) return;
    const Grid& grid = candidate.grid;
    const uint32_t* mask = grid.boards + kClipboardMask * kRows;
    const Box size = bounding_box(mask, kRows);
    while (candidate.possible && static_cast<int>(candidate.steps.size()) < best_.total) {
      const BoxSums remaining_gains(gains.cells, wrong_cells(grid, target_));
      int best = kStepGain, row = -1, column = 0;
      for (int r = 0; r < target_.height(); ++r) {
        for (int c = 0; c < target_.width(); ++c) {
          const Box area = intersection({r, r + size.bottom, c, c + size.right}, target_.area());
          const int gain = remaining_gains.of(area);
          if (gain <= best) continue;
          uint32_t unequal = 0;
          for (int k = area.top; k <= area.bottom && unequal == 0; ++k)
            for (int plane = 0; plane < 4; ++plane)
              unequal |= (shift_columns(grid.boards[(kClipboard + plane) * kRows + k - r], c) ^
                          target_.boards[plane * kRows + k]) &
                         shift_columns(mask[k - r], c) & low_bits(target_.width());
          if (unequal != 0) continue;
          best = gain;
          row = r;
          column = c;
        }
      }
      if (row < 0) return;
      candidate.add(kPaste, single_cell(row, column));
    }
  }

  // Painting what is copied afterwards is a planning problem of its own, which may have a shorter solution.
  void shorten_painting(const PartialPlan& base) {
    if (best_.num_painted < 3) return;
    const auto first = best_.steps.begin() + static_cast<int64_t>(base.steps.size());
    const auto end = first + best_.num_painted;
    Grid goal = base.grid;
    goal.apply(Steps(first, end));
    const Steps shorter = Planner(base.grid, goal, options_).plan().steps;
    if (shorter.size() >= static_cast<size_t>(best_.num_painted)) return;
    best_.total -= best_.num_painted - static_cast<int>(shorter.size());
    best_.steps.insert(best_.steps.erase(first, end), shorter.begin(), shorter.end());
    best_.num_painted = 0;
  }

  bool reaches_target(const Steps& steps) const {
    Grid grid = start_;
    grid.apply(steps);
    return grid.same_size(target_) && count(wrong_cells(grid, target_)) == 0;
  }

  // Removes unnecessary steps, and shrinks the selections of moves, flips and rotations to what is needed.
  Steps simplify(Steps steps) const {
    for (size_t i = 0; i < steps.size();) {
      Steps fewer = steps;
      fewer.erase(fewer.begin() + static_cast<int64_t>(i));
      if (reaches_target(fewer)) {
        steps = std::move(fewer);
      } else {
        ++i;
      }
    }
    if (options_.format == SelectionFormat::kPoint) return steps;
    for (Step& step : steps) {
      if (step.operation < kMoveUp || step.operation >= kCopy) continue;
      // One side at a time, and opposite sides together, because a flip is symmetric.
      for (const Box& by : std::vector<Box>{
               {1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {1, 1, 0, 0}, {0, 0, 1, 1}}) {
        for (bool smaller = true; smaller;) {
          const CellSet before = step.cells;
          const Box box = bounding_box(before.data(), kRows);
          const Box rest{box.top + by.top, box.bottom - by.bottom, box.left + by.left, box.right - by.right};
          if (is_empty(rest)) break;
          step.cells = cells_in_box(rest);
          smaller = reaches_target(steps);
          if (!smaller) step.cells = before;
        }
      }
    }
    return steps;
  }

  const Grid start_, target_;
  const PlannerOptions options_;
  PartialPlan best_;
};

}  // namespace
}  // namespace phalanx::arc
