// The state of one ARC environment and the 42 operations on it. Compiled once per instruction set, so no
// standard library templates here: the linker keeps one copy of each, and it might be the wrong one.
#pragma once

#include "arc/bitplane_ops.h"
#include "arc/flood_fill.h"
#include "arc/step.h"

namespace phalanx::arc {
namespace {

constexpr int kRows = 32;  // boards are padded to this many rows when they are transposed

// 0 to 9 fill the selection with a color; 10 to 19 flood-fill.
enum Operation {
  kFlood = 10,
  kMoveUp = 20,
  kMoveDown,
  kMoveLeft,
  kMoveRight,
  kRotateClockwise,
  kRotateCounterclockwise,
  kFlipHorizontal,
  kFlipVertical,
  kCopy,
  kPaste,
  kCut,
  kClear,
  kCopyInput,
  kResize,
  kSubmit,
  kNextDemo,
  kPreviousDemo,
  kNextTest,
  kPreviousTest,
  kResetPair,
  kUnsolvedDemo,
  kUnsolvedTest,
  kNumOperations
};

struct Box {
  int top, bottom, left, right;
};

// The mask must not be empty.
inline Box bounding_box(const uint32_t* mask, int rows) {
  Box box{rows, -1, 0, 0};
  uint32_t columns = 0;
  for (int r = 0; r < rows; ++r) {
    if (mask[r] == 0) continue;
    if (box.bottom < 0) box.top = r;
    box.bottom = r;
    columns |= mask[r];
  }
  box.left = lowest_bit(columns);
  box.right = highest_bit(columns);
  return box;
}

inline bool is_empty(const uint32_t* mask, int rows) {
  uint32_t any = 0;
  for (int r = 0; r < rows; ++r) any |= mask[r];
  return any == 0;
}

// The input or output of a pair: four bit-planes.
struct PairGrid {
  const uint32_t* planes;
  int height, width;
};

inline int clamp(int64_t value, int64_t low, int64_t high) {
  return static_cast<int>(value < low ? low : value > high ? high : value);
}

// A view of one environment in the arrays of a batch.
struct Environment {
  const Tasks& tasks;
  int rows, columns;
  uint32_t* boards;
  int32_t* registers;

  uint32_t* board(int which) const { return boards + which * rows; }
  int height() const { return registers[kHeight]; }
  uint32_t inside() const { return low_bits(registers[kWidth]); }
  const int32_t* task_row() const { return tasks.task_table + 3 * registers[kTask]; }

  // Returns whether the registers are within the tasks and the grid. States come from users and may belong to
  // other tasks. An invalid state is never stepped, so that nothing outside of the arrays is read or written.
  bool is_valid() const {
    if (registers[kTask] < 0 || registers[kTask] >= tasks.count) return false;
    const int64_t first = task_row()[0], demos = task_row()[1], tests = task_row()[2];
    const int64_t pairs = demos + tests;
    if (first < 0 || demos < 0 || tests < 0 || pairs > kMaxPairs || first + pairs > tasks.num_pairs)
      return false;
    return 0 <= registers[kPair] && registers[kPair] < pairs && 1 <= registers[kHeight] &&
           registers[kHeight] <= rows && 1 <= registers[kWidth] && registers[kWidth] <= columns;
  }

  // Returns the input or output of a pair of the current task, cropped to the size of the boards.
  PairGrid grid_of(int64_t number, bool output) const {
    const int64_t pair = clamp(task_row()[0] + number, 0, tasks.num_pairs - 1);
    const int32_t* size = tasks.sizes + 4 * pair + (output ? 2 : 0);
    const int64_t max_height = tasks.rows < rows ? tasks.rows : rows;
    return {tasks.pairs + (2 * pair + (output ? 1 : 0)) * 4 * tasks.rows, clamp(size[0], 0, max_height),
            clamp(size[1], 0, columns)};
  }

  // Copies a grid and its size to the working grid.
  void start_from(const PairGrid& grid) const {
    for (int plane = 0; plane < 4; ++plane) {
      uint32_t* to = board(kWorking + plane);
      memcpy(to, grid.planes + plane * tasks.rows, sizeof(uint32_t) * grid.height);
      memset(to + grid.height, 0, sizeof(uint32_t) * (rows - grid.height));
    }
    registers[kHeight] = grid.height;
    registers[kWidth] = grid.width;
  }

  void start_from_input() const { start_from(grid_of(registers[kPair], false)); }

  // Sets the first working grid of an episode. The boards must be zero.
  void start(InitialGrid initial, uint32_t random) const {
    if (initial == kFromDemonstration) {
      // Never the output of the current pair, which is the answer.
      const int64_t demos = task_row()[1], pair = registers[kPair];
      const int64_t others = demos - (pair < demos ? 1 : 0);
      if (others > 0) {
        const int64_t index = random % static_cast<uint32_t>(others);
        const PairGrid demonstration_output = grid_of(index + (index >= pair ? 1 : 0), true);
        if (demonstration_output.height > 0) return start_from(demonstration_output);
      }
    }
    if (initial == kFromInput || initial == kFromDemonstration) return start_from_input();
    const PairGrid input = grid_of(registers[kPair], false);
    registers[kHeight] = input.height;
    registers[kWidth] = input.width;
    if (initial == kBlank) return;
    for (int r = 0; r < input.height; ++r)
      for (int c = 0; c < input.width; ++c) {
        const uint32_t color = ((murmur3_mix32(random, static_cast<uint32_t>(r * 32 + c)) >> 16) * 10u) >> 16;
        for (int plane = 0; plane < 4; ++plane) board(kWorking + plane)[r] |= (color >> plane & 1u) << c;
      }
  }

  // Returns the number of equal cells divided by the number of cells in the union of both grids.
  float similarity() const {
    const PairGrid target = grid_of(registers[kPair], true);
    const int common_rows = height() < target.height ? height() : target.height;
    const int common_columns = registers[kWidth] < target.width ? registers[kWidth] : target.width;
    uint32_t equal_cells[kRows];
    const uint32_t common = low_bits(common_columns);
    const uint32_t* grid_planes = boards;
    const uint32_t* target_planes = target.planes;
    for (int r = 0; r < common_rows; ++r) {
      uint32_t unequal = 0;
      for (int plane = 0; plane < 4; ++plane)
        unequal |= grid_planes[plane * rows + r] ^ target_planes[plane * tasks.rows + r];
      equal_cells[r] = ~unequal & common;
    }
    int count = 0;
    for (int r = 0; r < common_rows; ++r) count += __builtin_popcount(equal_cells[r]);
    const int cells =
        height() * registers[kWidth] + target.height * target.width - common_rows * common_columns;
    return static_cast<float>(count) / static_cast<float>(cells);
  }

  void mark_if_solved(float similarity) const {
    if (similarity == 1.0f && registers[kPair] < kMaxPairs) registers[kSolvedPairs] |= 1u << registers[kPair];
  }

  void paint(const uint32_t* mask, int color) const {
    for (int plane = 0; plane < 4; ++plane) {
      uint32_t* to = board(kWorking + plane);
      const uint32_t on = (color >> plane) & 1 ? ~0u : 0u;
      for (int r = 0; r < rows; ++r) to[r] = (to[r] & ~mask[r]) | (mask[r] & on);
    }
  }

  // Does nothing unless exactly one cell is selected.
  void flood_fill(const uint32_t* selection, int color) const {
    int row = -1;
    for (int r = 0; r < rows; ++r) {
      if (selection[r] == 0) continue;
      if (row >= 0 || (selection[r] & (selection[r] - 1)) != 0) return;
      row = r;
    }
    if (row < 0) return;
    uint32_t open[kRows], region[kRows];
    for (int r = 0; r < height(); ++r) open[r] = inside();
    for (int plane = 0; plane < 4; ++plane) {
      const uint32_t* from = board(kWorking + plane);
      const uint32_t flip = from[row] & selection[row] ? 0u : ~0u;
      for (int r = 0; r < height(); ++r) open[r] &= from[r] ^ flip;
    }
    memcpy(region, selection, sizeof(uint32_t) * rows);
    flood(open, region, height());
    paint(region, color);
  }

  // Moves, rotates or flips the selected object, leaving zeros behind. `object` becomes the mask of its new
  // cells.
  void transform(int operation, uint32_t* object) const {
    const Box box = bounding_box(object, rows);
    uint32_t object_planes[5][kRows] = {};  // four color planes and the mask
    for (int plane = 0; plane < 4; ++plane) {
      uint32_t* from = board(kWorking + plane);
      for (int r = box.top; r <= box.bottom; ++r) {
        object_planes[plane][r] = from[r] & object[r];
        from[r] &= ~object[r];
      }
    }
    memcpy(object_planes[4], object, sizeof(uint32_t) * rows);

    const bool transposed = operation == kRotateClockwise || operation == kRotateCounterclockwise;
    Box target_box = box;
    if (transposed) {
      target_box.bottom = box.top + (box.right - box.left);
      target_box.right = box.left + (box.bottom - box.top);
    }
    const int rows_down = operation == kMoveDown ? 1 : operation == kMoveUp ? -1 : 0;
    const int columns_right = operation == kMoveRight ? 1 : operation == kMoveLeft ? -1 : 0;
    memset(object, 0, sizeof(uint32_t) * rows);
    // The mask first, because the colors are written through it.
    for (int plane = 4; plane >= 0; --plane) {
      uint32_t* from = object_planes[plane];
      if (transposed) transpose32(from);
      uint32_t* to = plane == 4 ? object : board(kWorking + plane);
      for (int r = target_box.top; r <= target_box.bottom; ++r) {
        const int target = r + rows_down;
        if (target < 0 || target >= height()) continue;
        int source_row = r;
        uint32_t bits;
        switch (operation) {
          case kRotateClockwise:  // column `left + k` of the object becomes row `top + k`, from bottom to top
            bits =
                shift_columns(reverse_bits(from[box.left + r - target_box.top]), box.left + box.bottom - 31);
            break;
          case kRotateCounterclockwise:
            bits = shift_columns(from[box.right - (r - target_box.top)], box.left - box.top);
            break;
          case kFlipHorizontal: bits = shift_columns(reverse_bits(from[r]), box.left + box.right - 31); break;
          case kFlipVertical: source_row = box.top + box.bottom - r; [[fallthrough]];
          default: bits = shift_columns(from[source_row], columns_right);
        }
        bits &= inside();
        to[target] = plane == 4 ? bits : (to[target] & ~object[target]) | bits;
      }
    }
  }

  void copy(const uint32_t* object) const {
    memset(board(kClipboard), 0, sizeof(uint32_t) * 5 * rows);
    const Box box = bounding_box(object, rows);
    for (int r = box.top; r <= box.bottom; ++r) {
      for (int plane = 0; plane < 4; ++plane)
        board(kClipboard + plane)[r - box.top] = (board(kWorking + plane)[r] & object[r]) >> box.left;
      board(kClipboardMask)[r - box.top] = object[r] >> box.left;
    }
  }

  void paste(const uint32_t* selection) const {
    const Box box = bounding_box(selection, rows);
    for (int r = box.top; r < height(); ++r) {
      const uint32_t mask = (board(kClipboardMask)[r - box.top] << box.left) & inside();
      for (int plane = 0; plane < 4; ++plane) {
        uint32_t* to = board(kWorking + plane) + r;
        *to = (*to & ~mask) | ((board(kClipboard + plane)[r - box.top] << box.left) & mask);
      }
    }
  }

  void resize(const uint32_t* mask) const {
    const Box box = bounding_box(mask, rows);
    registers[kHeight] = box.bottom + 1;
    registers[kWidth] = box.right + 1;
    for (int plane = 0; plane < 4; ++plane) {
      uint32_t* to = board(kWorking + plane);
      for (int r = 0; r < rows; ++r) to[r] &= r <= box.bottom ? inside() : 0u;
    }
  }

  // Returns the pair that a switch operation leads to, or -1 if there is none.
  int next_pair(int operation, bool evaluation) const {
    const int32_t* row = task_row();
    const bool demo = operation == kNextDemo || operation == kPreviousDemo || operation == kUnsolvedDemo;
    const int first = demo ? 0 : row[1];
    const int count = demo ? row[1] : row[2];
    const int pair = registers[kPair];
    if (count == 0 || (demo && evaluation)) return -1;
    const bool is_current = first <= pair && pair < first + count;
    switch (operation) {
      case kNextDemo:
      case kNextTest: return is_current ? first + (pair - first + 1) % count : first;
      case kPreviousDemo:
      case kPreviousTest: return is_current ? first + (pair - first + count - 1) % count : first + count - 1;
      default:
        for (int k = first; k < first + count; ++k)
          if ((static_cast<uint32_t>(registers[kSolvedPairs]) >> k & 1u) == 0) return k;
        return -1;
    }
  }
};

}  // namespace
}  // namespace phalanx::arc
