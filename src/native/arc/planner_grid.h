// Grids, cell sets and steps of the planner. A grid is a state of the environment, so a step has exactly the
// effect that it has in the kernels.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arc/operations.h"

namespace phalanx::arc {
namespace {

using CellSet = std::array<uint32_t, kRows>;  // a bit mask of columns per row

enum class SelectionFormat { kPoint, kBox, kMask };

// An operation and the cells that it selects.
struct Step {
  int operation;
  CellSet cells;
};

using Steps = std::vector<Step>;

inline bool operator==(const Box& a, const Box& b) {
  return a.top == b.top && a.bottom == b.bottom && a.left == b.left && a.right == b.right;
}

inline CellSet cells_in_box(const Box& box) {
  CellSet cells{};
  for (int r = box.top; r <= box.bottom; ++r) cells[r] = column_range(box.left, box.right);
  return cells;
}

inline CellSet single_cell(int row, int column) { return cells_in_box({row, row, column, column}); }

// Without the popcount instruction, which is not part of the baseline, the built-in function is slower than
// this.
inline int count(uint32_t row) {
  row -= row >> 1 & 0x55555555u;
  row = (row & 0x33333333u) + (row >> 2 & 0x33333333u);
  return static_cast<int>(((row + (row >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24);
}

inline int count(const CellSet& cells) {
  int total = 0;
  for (const uint32_t row : cells) total += count(row);
  return total;
}

// Calls `visit(row, column)` for every cell.
template <typename Visit>
void for_each_cell(const CellSet& cells, const Visit& visit) {
  for (int r = 0; r < kRows; ++r)
    for (uint32_t row = cells[r]; row != 0; row &= row - 1) visit(r, lowest_bit(row));
}

// Calls `visit(box)` for every box of `open` cells that cannot grow and contains a `wanted` cell.
template <typename Visit>
void for_each_maximal_box(const CellSet& open, const CellSet& wanted, int height, const Visit& visit) {
  CellSet useful{};  // columns with a wanted cell in this row or below
  for (int r = height - 1; r >= 0; --r) useful[r] = wanted[r] | (r + 1 < height ? useful[r + 1] : 0);
  for (int top = 0; top < height; ++top) {
    uint32_t common = open[top];
    for (int bottom = top; bottom < height && ((common &= open[bottom]) & useful[top]) != 0; ++bottom) {
      if (bottom + 1 < height && (common & open[bottom + 1]) == common) continue;  // can grow down
      for (uint32_t rest = common; rest != 0;) {
        const uint32_t run = rest & ~(rest + (rest & -rest));
        rest &= ~run;
        if (top > 0 && (open[top - 1] & run) == run) continue;  // can grow up
        visit(Box{top, bottom, lowest_bit(run), highest_bit(run)});
      }
    }
  }
}

inline CellSet operator&(const CellSet& a, const CellSet& b) {
  CellSet result;
  for (int r = 0; r < kRows; ++r) result[r] = a[r] & b[r];
  return result;
}

struct Grid {
  uint32_t boards[kNumBoards * kRows] = {};
  int32_t registers[kNumRegisters] = {};

  int height() const { return registers[kHeight]; }
  int width() const { return registers[kWidth]; }
  Box area() const { return {0, height() - 1, 0, width() - 1}; }
  bool same_size(const Grid& other) const { return height() == other.height() && width() == other.width(); }

  int color(int r, int c) const {
    int color = 0;
    for (int plane = 0; plane < 4; ++plane) color |= (boards[plane * kRows + r] >> c & 1) << plane;
    return color;
  }

  void set_color(int r, int c, int color) {
    for (int plane = 0; plane < 4; ++plane) boards[plane * kRows + r] |= (color >> plane & 1u) << c;
  }

  CellSet cells_of_color(int color) const {
    CellSet cells{};
    for (int r = 0; r < height(); ++r) {
      cells[r] = low_bits(width());
      for (int plane = 0; plane < 4; ++plane)
        cells[r] &= color >> plane & 1 ? boards[plane * kRows + r] : ~boards[plane * kRows + r];
    }
    return cells;
  }

  // Returns the cells that have the color that `other` has `rows_down` rows below and `columns_right` columns
  // to the right.
  CellSet equal(const Grid& other, int rows_down, int columns_right) const {
    CellSet cells{};
    const int first = rows_down < 0 ? -rows_down : 0;
    const int end = height() < other.height() - rows_down ? height() : other.height() - rows_down;
    const uint32_t inside = low_bits(width()) & shift_columns(low_bits(other.width()), -columns_right);
    for (int plane = 0; plane < 4; ++plane) {
      const uint32_t *own_plane = boards + plane * kRows,
                     *other_plane = other.boards + plane * kRows + rows_down;
      if (columns_right >= 0) {
        for (int r = first; r < end; ++r) cells[r] |= own_plane[r] ^ other_plane[r] >> columns_right;
      } else {
        for (int r = first; r < end; ++r) cells[r] |= own_plane[r] ^ other_plane[r] << -columns_right;
      }
    }
    for (int r = first; r < end; ++r) cells[r] = ~cells[r] & inside;
    return cells;
  }

  // Returns the 4-connected region of equal color around a cell.
  CellSet region(int r, int c) const {
    const CellSet open = cells_of_color(color(r, c));
    CellSet region = single_cell(r, c);
    flood(open.data(), region.data(), height());
    return region;
  }

  void apply(const Step& step) {
    static const Tasks none{};
    const Environment view{none, kRows, kRows, boards, registers};
    CellSet inside = step.cells & cells_in_box(area());
    const bool empty = is_empty(inside.data(), kRows);
    CellSet object = empty ? cells_in_box(area()) : inside;
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

// Returns the cells in which two grids of the same size differ.
inline CellSet wrong_cells(const Grid& grid, const Grid& target) {
  CellSet wrong = target.equal(grid, 0, 0);
  for (int r = 0; r < target.height(); ++r) wrong[r] = ~wrong[r] & low_bits(target.width());
  return wrong;
}

// Symmetries of a grid: bit 0 mirrors columns, bit 1 mirrors rows, bit 2 exchanges rows and columns.
constexpr int kSymmetries = 8, kTransposes = 4;

// Replaces a cell of the transformed grid by the cell of the original grid that it comes from.
inline void source_cell(int symmetry, int height, int width, int& r, int& c) {
  if (symmetry & kTransposes) {
    const int swap = r;
    r = c;
    c = swap;
  }
  if (symmetry & 1) c = width - 1 - c;
  if (symmetry & 2) r = height - 1 - r;
}

inline Grid transform_grid(const Grid& grid, int symmetry) {
  Grid result;
  const bool transposes = symmetry & kTransposes;
  result.registers[kHeight] = transposes ? grid.width() : grid.height();
  result.registers[kWidth] = transposes ? grid.height() : grid.width();
  for (int r = 0; r < result.height(); ++r) {
    for (int c = 0; c < result.width(); ++c) {
      int row = r, column = c;
      source_cell(symmetry, grid.height(), grid.width(), row, column);
      result.set_color(r, c, grid.color(row, column));
    }
  }
  return result;
}

// Returns the operations that transform a grid.
inline std::vector<int> symmetry_operations(int symmetry) {
  static const std::vector<int> table[kSymmetries] = {{},
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
