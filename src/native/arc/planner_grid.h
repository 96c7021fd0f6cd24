// What a plan is made of: steps, the grid they work on, and the ways to look at it.
// A grid is a state of the environment itself, so that a plan means exactly what the kernels do.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arc/environment.h"

namespace phalanx::arc {
namespace {

using Rows = std::array<uint32_t, kRows>;  // a set of cells

enum class Format { kPoint, kBox, kMask };

// An operation and the cells that its action names, on the canvas.
struct Step {
  int operation;
  Rows cells;
};

using Steps = std::vector<Step>;

inline bool operator==(const Box& a, const Box& b) {
  return a.top == b.top && a.bottom == b.bottom && a.left == b.left && a.right == b.right;
}

inline Rows cells_of(const Box& box) {
  Rows cells{};
  for (int r = box.top; r <= box.bottom; ++r) cells[r] = span(box.left, box.right);
  return cells;
}

inline Rows cell_at(int row, int column) { return cells_of({row, row, column, column}); }

// Without the instruction, which not every processor has, the built-in one is a call.
inline int count(uint32_t row) {
  row -= row >> 1 & 0x55555555u;
  row = (row & 0x33333333u) + (row >> 2 & 0x33333333u);
  return static_cast<int>(((row + (row >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24);
}

inline int count(const Rows& cells) {
  int total = 0;
  for (const uint32_t row : cells) total += count(row);
  return total;
}

// Calls `visit(row, column)` for every cell.
template <typename Visit>
void each(const Rows& cells, const Visit& visit) {
  for (int r = 0; r < kRows; ++r)
    for (uint32_t row = cells[r]; row != 0; row &= row - 1) visit(r, lowest(row));
}

// Calls `visit(box)` for every box of `open` cells that cannot grow, those without a `wanted` cell left out.
template <typename Visit>
void each_largest_box(const Rows& open, const Rows& wanted, int height, const Visit& visit) {
  Rows useful{};  // columns in which a row or one below has a wanted cell
  for (int r = height - 1; r >= 0; --r) useful[r] = wanted[r] | (r + 1 < height ? useful[r + 1] : 0);
  for (int top = 0; top < height; ++top) {
    uint32_t common = open[top];
    for (int bottom = top; bottom < height && ((common &= open[bottom]) & useful[top]) != 0; ++bottom) {
      if (bottom + 1 < height && (common & open[bottom + 1]) == common) continue;  // it can grow down
      for (uint32_t rest = common; rest != 0;) {
        const uint32_t run = rest & ~(rest + (rest & -rest));
        rest &= ~run;
        if (top > 0 && (open[top - 1] & run) == run) continue;  // it can grow up
        visit(Box{top, bottom, lowest(run), highest(run)});
      }
    }
  }
}

inline Rows operator&(const Rows& a, const Rows& b) {
  Rows both;
  for (int r = 0; r < kRows; ++r) both[r] = a[r] & b[r];
  return both;
}

struct Grid {
  uint32_t boards[kBoards * kRows] = {};
  int32_t registers[kRegisters] = {};

  int height() const { return registers[kHeight]; }
  int width() const { return registers[kWidth]; }
  Box area() const { return {0, height() - 1, 0, width() - 1}; }
  bool fits(const Grid& other) const { return height() == other.height() && width() == other.width(); }

  int color(int r, int c) const {
    int color = 0;
    for (int plane = 0; plane < 4; ++plane) color |= (boards[plane * kRows + r] >> c & 1) << plane;
    return color;
  }

  void put(int r, int c, int color) {
    for (int plane = 0; plane < 4; ++plane) boards[plane * kRows + r] |= (color >> plane & 1u) << c;
  }

  // The cells of one color, inside the area.
  Rows of_color(int color) const {
    Rows cells{};
    for (int r = 0; r < height(); ++r) {
      cells[r] = low_bits(width());
      for (int plane = 0; plane < 4; ++plane)
        cells[r] &= color >> plane & 1 ? boards[plane * kRows + r] : ~boards[plane * kRows + r];
    }
    return cells;
  }

  // The cells whose color another grid has `down` rows below and `aside` columns to the right of them.
  Rows equal(const Grid& other, int down, int aside) const {
    Rows cells{};
    const int first = down < 0 ? -down : 0;
    const int end = height() < other.height() - down ? height() : other.height() - down;
    const uint32_t inside = low_bits(width()) & shifted(low_bits(other.width()), -aside);
    for (int plane = 0; plane < 4; ++plane) {
      const uint32_t *mine = boards + plane * kRows, *theirs = other.boards + plane * kRows + down;
      if (aside >= 0) {
        for (int r = first; r < end; ++r) cells[r] |= mine[r] ^ theirs[r] >> aside;
      } else {
        for (int r = first; r < end; ++r) cells[r] |= mine[r] ^ theirs[r] << -aside;
      }
    }
    for (int r = first; r < end; ++r) cells[r] = ~cells[r] & inside;
    return cells;
  }

  // The 4-connected region of equal color around a cell.
  Rows region(int r, int c) const {
    const Rows open = of_color(color(r, c));
    Rows grown = cell_at(r, c);
    flood(open.data(), grown.data(), height());
    return grown;
  }

  void apply(const Step& step) {
    static const Tasks none{};
    const Environment view{none, kRows, kRows, boards, registers};
    Rows inside = step.cells & cells_of(area());
    const bool empty = is_empty(inside.data(), kRows);
    Rows object = empty ? cells_of(area()) : inside;
    const int operation = step.operation;
    if (operation < kFlood) {
      view.paint(inside.data(), operation);
    } else if (operation < kMoveUp) {
      view.flood_fill(inside.data(), operation - kFlood);
    } else if (operation < kCopy) {
      view.transform(operation, object.data());
    } else if (operation == kPaste) {
      if (!empty) view.paste(inside.data());
    } else if (operation == kResize) {
      view.resize(step.cells.data());
    } else {
      if (operation != kClear) view.copy(object.data());
      if (operation != kCopy) view.paint(object.data(), 0);
    }
  }

  void apply(const Steps& steps) {
    for (const Step& step : steps) apply(step);
  }
};

// The cells at which two boards of one size differ.
inline Rows wrong_cells(const Grid& grid, const Grid& target) {
  Rows wrong = target.equal(grid, 0, 0);
  for (int r = 0; r < target.height(); ++r) wrong[r] = ~wrong[r] & low_bits(target.width());
  return wrong;
}

// The eight symmetries of a grid: bit 0 mirrors columns, bit 1 rows, bit 2 exchanges rows and columns.
constexpr int kSymmetries = 8, kTransposed = 4;

// Where a cell of the symmetric image comes from.
inline void preimage(int symmetry, int height, int width, int& r, int& c) {
  if (symmetry & kTransposed) {
    const int swap = r;
    r = c;
    c = swap;
  }
  if (symmetry & 1) c = width - 1 - c;
  if (symmetry & 2) r = height - 1 - r;
}

inline Grid image(const Grid& grid, int symmetry) {
  Grid result;
  const bool turned = symmetry & kTransposed;
  result.registers[kHeight] = turned ? grid.width() : grid.height();
  result.registers[kWidth] = turned ? grid.height() : grid.width();
  for (int r = 0; r < result.height(); ++r) {
    for (int c = 0; c < result.width(); ++c) {
      int row = r, column = c;
      preimage(symmetry, grid.height(), grid.width(), row, column);
      result.put(r, c, grid.color(row, column));
    }
  }
  return result;
}

// The operations that make the image, in order.
inline std::vector<int> operations_of(int symmetry) {
  static const std::vector<int> table[kSymmetries] = {
      {},
      {kFlipHorizontal},
      {kFlipVertical},
      {kFlipHorizontal, kFlipVertical},
      {kRotateClockwise, kFlipHorizontal},
      {kRotateCounterclockwise},
      {kRotateClockwise},
      {kRotateClockwise, kFlipVertical}};
  return table[symmetry];
}

}  // namespace
}  // namespace phalanx::arc
