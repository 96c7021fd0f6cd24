// Plans: short sequences of operations that turn one grid into another.
//
// A plan ends with the fills that paint what is wrong (arc_plan_fills.h). What comes before is found step by
// step: of many candidates (the whole grid mirrored or turned, something copied, moved or flooded) the one is
// taken after which the fewest steps remain, as long as one shortens the plan.

#pragma once

#include <optional>

#include "arc/planner_match.h"

namespace phalanx::arc {
namespace {

constexpr size_t kMatches = 64, kShifts = 4;  // how many copies and moves are tried in a round

// The steps of a plan so far, the grid they lead to, and the whole plan's cost with its last fills.
struct Draft {
  Grid grid;
  Steps steps;
  int total;
  int painted = 0;  // how many of the newest steps paint what is copied then
};

class Planner {
 public:
  Planner(const Grid& start, const Grid& target, const Means& means)
      : start_(start), target_(target), means_(means) {}

  Finish plan() {
    best_ = {start_, {}, 1 << 30};
    Trial plain = trial(best_);
    plain.resize();
    consider(plain);
    if (!best_.grid.fits(target_)) return {{}, kRows * kRows};  // it cannot even be resized
    const Draft untouched{start_, {}, best_.total};
    if (best_.total > 1) {
      whole_symmetries(untouched);
      copies(untouched);
      shorten(untouched);
    }
    for (int before = best_.total + 1; best_.total < before && best_.total > 1;) {
      before = best_.total;
      const Draft base = best_;
      floods(base);
      if (!base.steps.empty()) copies(base);  // from the start they have been tried
      if (best_.total < before) shorten(base);
    }
    const Finish last = finish(best_.grid, target_, means_);
    Steps steps = best_.steps;
    steps.insert(steps.end(), last.steps.begin(), last.steps.end());
    return {last.missing == 0 ? tidy(steps) : steps, last.missing};
  }

 private:
  // A draft that grows: steps are carried out as they are added; it is given up where one is not possible.
  struct Trial {
    const Planner& planner;
    Grid grid;
    Steps steps;
    int painted = 0;
    bool possible = true;

    void add(int operation, const std::optional<Rows>& cells) {
      possible = possible && cells && planner.means_.can(operation);
      if (!possible) return;
      steps.push_back({operation, *cells});
      grid.apply(steps.back());
    }
    void add(int operation, const Box& box) { add(operation, planner.selection(grid, box)); }
    void resize() {
      const Grid& target = planner.target_;
      if (!grid.fits(target)) resize_to(target.height(), target.width());
    }
    void resize_to(int height, int width) {
      const bool point = planner.means_.format == Format::kPoint;
      add(kResize, point ? cell_at(height - 1, width - 1) : cells_of({0, height - 1, 0, width - 1}));
    }
    void turn(Box box, int symmetry) {
      for (const int operation : operations_of(symmetry)) {
        add(operation, box);
        if (operation < kFlipHorizontal)
          box = {box.top, box.top + box.right - box.left, box.left, box.left + box.bottom - box.top};
      }
    }
  };

  Trial trial(const Draft& base) const { return {*this, base.grid, base.steps}; }

  // How an action of the format selects a box of the grid, if it can: a point selects everything from
  // outside of the area, where the canvas has room for it.
  std::optional<Rows> selection(const Grid& grid, const Box& box) const {
    const bool one_cell = box.top == box.bottom && box.left == box.right;
    if (means_.format != Format::kPoint || one_cell) return cells_of(box);
    if (!(box == grid.area())) return std::nullopt;
    if (grid.height() < means_.rows) return cell_at(grid.height(), 0);
    if (grid.width() < means_.columns) return cell_at(0, grid.width());
    return std::nullopt;
  }

  void consider(const Trial& trial) {
    const int steps = static_cast<int>(trial.steps.size());
    if (!trial.possible || steps >= best_.total || !trial.grid.fits(target_)) return;
    const int total = steps + finish(trial.grid, target_, means_, best_.total - steps - 1).cost();
    if (total < best_.total) best_ = {trial.grid, trial.steps, total, trial.painted};
  }

  void whole_symmetries(const Draft& base) {
    const Box area = base.grid.area();
    const int side = std::max(base.grid.height(), base.grid.width());
    for (int symmetry = 1; symmetry < kSymmetries; ++symmetry) {
      Trial trial = this->trial(base);
      if (symmetry & kTransposed && base.grid.height() != base.grid.width()) {
        if (side > means_.rows || side > means_.columns) continue;
        const bool roomy = target_.height() >= side && target_.width() >= side;
        trial.resize_to(roomy ? target_.height() : side, roomy ? target_.width() : side);
      }
      trial.turn(area, symmetry);
      trial.resize();
      consider(trial);
    }
  }

  // Each region of the grid takes the color that most of its cells should have.
  void floods(const Draft& base) {
    Rows left = wrong_cells(base.grid, target_);
    Rows of[10];
    for (int color = 0; color < 10; ++color) of[color] = target_.of_color(color);
    for (int r = 0; r < target_.height(); ++r) {
      while (left[r] != 0) {
        const int c = lowest(left[r]), old = base.grid.color(r, c);
        const Rows region = base.grid.region(r, c);
        int most = 0, chosen = 0;
        for (int color = 0; color < 10; ++color) {
          const int cells = color == old ? 0 : count(region & of[color]);
          if (cells > most) {
            most = cells;
            chosen = color;
          }
        }
        for (int k = 0; k < kRows; ++k) left[k] &= ~region[k];
        const Box box = box_of(region.data(), kRows);
        Trial trial = this->trial(base);
        trial.add(kFlood + chosen, cell_at(box.top, lowest(region[box.top])));
        consider(trial);
      }
    }
  }

  // Copies of parts of the grid, or of what it shall become, to where the target has the same.
  void copies(const Draft& base) {
    Trial framed = trial(base);
    framed.resize();
    if (!framed.possible) return;
    const Worth worth(framed.grid, target_, means_);
    if (means_.format == Format::kPoint) {
      Trial trial = this->trial(base);
      trial.add(kCopy, base.grid.area());
      trial.resize();
      paste_everywhere(trial, worth);
      consider(trial);
      shifts(base);
      return;
    }
    const bool same_size = base.grid.fits(target_);
    Matcher matcher(target_, worth);
    matcher.search(base.grid, false);
    if (same_size) matcher.search(target_, true);
    for (const Match& match : matcher.best(kMatches)) {
      if (same_size && !match.planned) in_place(base, match);
      const Rows inside = worth.wrong & cells_of(match.to);
      for (const Box& to : {box_of(inside.data(), kRows), match.to}) copy(base, match, to, worth);
    }
  }

  // Move the whole grid, for formats that cannot copy a part of it.
  void shifts(const Draft& base) {
    struct Shift {
      int wrong, down, aside;
    };
    std::vector<Shift> found;
    for (int down = 1 - base.grid.height(); down < base.grid.height(); ++down) {
      for (int aside = 1 - base.grid.width(); aside < base.grid.width(); ++aside) {
        const int moves = std::abs(down) + std::abs(aside);
        if (moves == 0 || moves + static_cast<int>(base.steps.size()) >= best_.total) continue;
        found.push_back({moves - count(target_.equal(base.grid, -down, -aside)), down, aside});
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Shift& a, const Shift& b) { return a.wrong < b.wrong; });
    for (size_t i = 0; i < std::min(found.size(), kShifts); ++i) {
      Trial trial = this->trial(base);
      for (int k = 0; k < std::abs(found[i].down); ++k)
        trial.add(found[i].down < 0 ? kMoveUp : kMoveDown, trial.grid.area());
      for (int k = 0; k < std::abs(found[i].aside); ++k)
        trial.add(found[i].aside < 0 ? kMoveLeft : kMoveRight, trial.grid.area());
      trial.resize();
      consider(trial);
    }
  }

  // Move, mirror or turn a part where it stands.
  void in_place(const Draft& base, const Match& match) {
    const Box from = match.from(match.to);
    Trial trial = this->trial(base);
    if (match.symmetry == 0) {
      if (std::abs(match.down) + std::abs(match.aside) != 1) return;
      const int along = match.down > 0 ? kMoveUp : kMoveDown;
      const int across = match.aside > 0 ? kMoveLeft : kMoveRight;
      trial.add(match.down != 0 ? along : across, from);
    } else {
      const Box both = intersection(from, match.to);
      if (is_empty(both) || (match.symmetry & kTransposed && !(from == match.to))) return;
      trial.turn(both, match.symmetry);
    }
    consider(trial);
  }

  void copy(const Draft& base, const Match& match, const Box& to, const Worth& worth) {
    const Box from = match.from(to);
    if (match.symmetry & kTransposed && to.bottom - to.top != to.right - to.left) return;
    for (const int operation : {kCopy, kCut}) {
      if (operation == kCut && (match.planned || !base.grid.fits(target_))) continue;
      Trial trial = this->trial(base);
      if (match.planned) {
        Grid goal = base.grid;
        for (int r = from.top; r <= from.bottom; ++r) {
          const uint32_t part = span(from.left, from.right);
          for (int plane = 0; plane < 4; ++plane) {
            uint32_t& row = goal.boards[plane * kRows + r];
            row = (row & ~part) | (target_.boards[plane * kRows + r] & part);
          }
        }
        const Finish painted = finish(base.grid, goal, means_);
        if (painted.missing != 0) return;
        trial.steps.insert(trial.steps.end(), painted.steps.begin(), painted.steps.end());
        trial.painted = static_cast<int>(painted.steps.size());
        trial.grid.apply(painted.steps);
      }
      trial.add(operation, from);
      trial.resize();
      trial.add(kPaste, cell_at(to.top, to.left));
      trial.turn(to, match.symmetry);
      if (match.symmetry == 0) paste_everywhere(trial, worth);
      consider(trial);
    }
  }

  // Paste the clipboard wherever the target has its content and that saves more than a step.
  void paste_everywhere(Trial& trial, const Worth& worth) {
    if (!trial.possible) return;
    const Grid& grid = trial.grid;
    const uint32_t* mask = grid.boards + kClipboardMask * kRows;
    const Box size = box_of(mask, kRows);
    while (trial.possible && static_cast<int>(trial.steps.size()) < best_.total) {
      const Sums right(worth.cells, wrong_cells(grid, target_));
      int best = kUnit, row = -1, column = 0;
      for (int r = 0; r < target_.height(); ++r) {
        for (int c = 0; c < target_.width(); ++c) {
          const Box place = intersection({r, r + size.bottom, c, c + size.right}, target_.area());
          const int gain = right.of(place);
          if (gain <= best) continue;
          uint32_t unequal = 0;
          for (int k = place.top; k <= place.bottom && unequal == 0; ++k)
            for (int plane = 0; plane < 4; ++plane)
              unequal |= (shifted(grid.boards[(kClipboard + plane) * kRows + k - r], c) ^
                          target_.boards[plane * kRows + k]) &
                         shifted(mask[k - r], c) & low_bits(target_.width());
          if (unequal != 0) continue;
          best = gain;
          row = r;
          column = c;
        }
      }
      if (row < 0) return;
      trial.add(kPaste, cell_at(row, column));
    }
  }

  // What is painted in order to be copied has a plan of its own, which may be shorter.
  void shorten(const Draft& base) {
    if (best_.painted < 3) return;
    const auto first = best_.steps.begin() + static_cast<int64_t>(base.steps.size());
    const auto end = first + best_.painted;
    Grid goal = base.grid;
    goal.apply(Steps(first, end));
    const Steps shorter = Planner(base.grid, goal, means_).plan().steps;
    if (shorter.size() >= static_cast<size_t>(best_.painted)) return;
    best_.total -= best_.painted - static_cast<int>(shorter.size());
    best_.steps.insert(best_.steps.erase(first, end), shorter.begin(), shorter.end());
    best_.painted = 0;
  }

  bool leads_to_target(const Steps& steps) const {
    Grid grid = start_;
    grid.apply(steps);
    return grid.fits(target_) && count(wrong_cells(grid, target_)) == 0;
  }

  // Leave out steps that are not needed, and select no more for a move, a flip or a rotation than is.
  Steps tidy(Steps steps) const {
    for (size_t i = 0; i < steps.size();) {
      Steps fewer = steps;
      fewer.erase(fewer.begin() + static_cast<int64_t>(i));
      if (leads_to_target(fewer)) {
        steps = std::move(fewer);
      } else {
        ++i;
      }
    }
    if (means_.format == Format::kPoint) return steps;
    for (Step& step : steps) {
      if (step.operation < kMoveUp || step.operation >= kCopy) continue;
      // One side after the other, and both sides at once, about which a flip is symmetric.
      for (const Box& by : std::vector<Box>{
               {1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {1, 1, 0, 0}, {0, 0, 1, 1}}) {
        for (bool smaller = true; smaller;) {
          const Rows before = step.cells;
          const Box box = box_of(before.data(), kRows);
          const Box rest{box.top + by.top, box.bottom - by.bottom, box.left + by.left, box.right - by.right};
          if (is_empty(rest)) break;
          step.cells = cells_of(rest);
          smaller = leads_to_target(steps);
          if (!smaller) step.cells = before;
        }
      }
    }
    return steps;
  }

  const Grid start_, target_;
  const Means means_;
  Draft best_;
};

}  // namespace
}  // namespace phalanx::arc
