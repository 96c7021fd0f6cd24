// One ARC environment, seen by name: its boards and registers, and every operation on them.
//
// Compiled once for each instruction set (see arc_kernel.inc), so no standard templates here: the linker may
// keep only one copy of those, and it could be the wrong one.
#pragma once

#include "arc/bitplanes.h"
#include "arc/step.h"

namespace phalanx::arc {
namespace {

constexpr int kRows = 32;  // boards are padded to this many rows while they are turned

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
  kOperations
};

struct Box {
  int top, bottom, left, right;
};

// The bounding box of a mask that is not empty.
inline Box box_of(const uint32_t* mask, int rows) {
  Box box{rows, -1, 0, 0};
  uint32_t columns = 0;
  for (int r = 0; r < rows; ++r) {
    if (mask[r] == 0) continue;
    if (box.bottom < 0) box.top = r;
    box.bottom = r;
    columns |= mask[r];
  }
  box.left = lowest(columns);
  box.right = highest(columns);
  return box;
}

inline bool is_empty(const uint32_t* mask, int rows) {
  uint32_t any = 0;
  for (int r = 0; r < rows; ++r) any |= mask[r];
  return any == 0;
}

struct PairGrid {
  const uint32_t* planes;
  int height, width;
};

inline int clamped(int64_t value, int64_t low, int64_t high) {
  return static_cast<int>(value < low ? low : value > high ? high : value);
}

// One environment, seen by name.
struct Environment {
  const Tasks& tasks;
  int rows, columns;
  uint32_t* boards;
  int32_t* registers;

  uint32_t* board(int which) const { return boards + which * rows; }
  int height() const { return registers[kHeight]; }
  uint32_t inside() const { return low_bits(registers[kWidth]); }
  const int32_t* table_row() const { return tasks.table + 3 * registers[kTask]; }

  // Whether the registers lie within these tasks and this canvas. States come from outside, and may belong to
  // other tasks: whatever fails here is never stepped, so that nothing is read or written beyond its place.
  bool is_sound() const {
    if (registers[kTask] < 0 || registers[kTask] >= tasks.count) return false;
    const int64_t first = table_row()[0], demos = table_row()[1], tests = table_row()[2];
    const int64_t pairs = demos + tests;
    if (first < 0 || demos < 0 || tests < 0 || pairs > kMaxPairs || first + pairs > tasks.num_pairs) return false;
    return 0 <= registers[kPair] && registers[kPair] < pairs && 1 <= registers[kHeight] &&
           registers[kHeight] <= rows && 1 <= registers[kWidth] && registers[kWidth] <= columns;
  }

  // A pair's input or output by its number in the task, as far as it lies on the canvas.
  PairGrid grid_of(int64_t number, bool output) const {
    const int64_t pair = clamped(table_row()[0] + number, 0, tasks.num_pairs - 1);
    const int32_t* size = tasks.sizes + 4 * pair + (output ? 2 : 0);
    const int64_t tallest = tasks.rows < rows ? tasks.rows : rows;
    return {tasks.pairs + (2 * pair + (output ? 1 : 0)) * 4 * tasks.rows, clamped(size[0], 0, tallest),
            clamped(size[1], 0, columns)};
  }

  // The working grid and its size become those of a pair's input or output.
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

  // The first working grid of an episode, on boards that are all 0.
  void start(InitialGrid initial, uint32_t noise) const {
    if (initial == kFromDemonstration) {
      // Never the pair's own output, which is the answer.
      const int64_t demos = table_row()[1], pair = registers[kPair];
      const int64_t others = demos - (pair < demos ? 1 : 0);
      if (others > 0) {
        const int64_t drawn = noise % static_cast<uint32_t>(others);
        const PairGrid shown = grid_of(drawn + (drawn >= pair ? 1 : 0), true);
        if (shown.height > 0) return start_from(shown);
      }
    }
    if (initial == kFromInput || initial == kFromDemonstration) return start_from_input();
    const PairGrid input = grid_of(registers[kPair], false);
    registers[kHeight] = input.height;
    registers[kWidth] = input.width;
    if (initial == kBlank) return;
    for (int r = 0; r < input.height; ++r)
      for (int c = 0; c < input.width; ++c) {
        const uint32_t color = ((mixed(noise, static_cast<uint32_t>(r * 32 + c)) >> 16) * 10u) >> 16;
        for (int plane = 0; plane < 4; ++plane) board(kWorking + plane)[r] |= (color >> plane & 1u) << c;
      }
  }

  // Equal cells over the cells of the union of the working area and the target's.
  float similarity() const {
    const PairGrid target = grid_of(registers[kPair], true);
    const int common_rows = height() < target.height ? height() : target.height;
    const int common_columns = registers[kWidth] < target.width ? registers[kWidth] : target.width;
    uint32_t equal[kRows];
    const uint32_t common = low_bits(common_columns);
    const uint32_t* mine = boards;
    const uint32_t* theirs = target.planes;
    for (int r = 0; r < common_rows; ++r) {
      uint32_t unequal = 0;
      for (int plane = 0; plane < 4; ++plane)
        unequal |= mine[plane * rows + r] ^ theirs[plane * tasks.rows + r];
      equal[r] = ~unequal & common;
    }
    int count = 0;
    for (int r = 0; r < common_rows; ++r) count += __builtin_popcount(equal[r]);
    const int cells = height() * registers[kWidth] + target.height * target.width - common_rows * common_columns;
    return static_cast<float>(count) / static_cast<float>(cells);
  }

  void remember_if_solved(float similarity) const {
    if (similarity == 1.0f && registers[kPair] < kMaxPairs) registers[kSolvedPairs] |= 1u << registers[kPair];
  }

  // Selected cells become `color`.
  void paint(const uint32_t* mask, int color) const {
    for (int plane = 0; plane < 4; ++plane) {
      uint32_t* to = board(kWorking + plane);
      const uint32_t on = (color >> plane) & 1 ? ~0u : 0u;
      for (int r = 0; r < rows; ++r) to[r] = (to[r] & ~mask[r]) | (mask[r] & on);
    }
  }

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

  // The object's cells become 0 and it is written again turned, mirrored or moved; `object` becomes its new place.
  void transform(int operation, uint32_t* object) const {
    const Box box = box_of(object, rows);
    uint32_t source[5][kRows] = {};  // four color planes and the mask
    for (int plane = 0; plane < 4; ++plane) {
      uint32_t* from = board(kWorking + plane);
      for (int r = box.top; r <= box.bottom; ++r) {
        source[plane][r] = from[r] & object[r];
        from[r] &= ~object[r];
      }
    }
    memcpy(source[4], object, sizeof(uint32_t) * rows);

    const bool turned = operation == kRotateClockwise || operation == kRotateCounterclockwise;
    Box place = box;  // where the object lands
    if (turned) {
      place.bottom = box.top + (box.right - box.left);
      place.right = box.left + (box.bottom - box.top);
    }
    const int up = operation == kMoveDown ? 1 : operation == kMoveUp ? -1 : 0;
    const int aside = operation == kMoveRight ? 1 : operation == kMoveLeft ? -1 : 0;
    memset(object, 0, sizeof(uint32_t) * rows);
    for (int plane = 4; plane >= 0; --plane) {  // the mask first: the colors are written under it
      uint32_t* from = source[plane];
      if (turned) transpose32(from);
      uint32_t* to = plane == 4 ? object : board(kWorking + plane);
      for (int r = place.top; r <= place.bottom; ++r) {
        const int target = r + up;
        if (target < 0 || target >= height()) continue;
        int line = r;
        uint32_t word;
        switch (operation) {
          case kRotateClockwise:  // column `left + k` of the object is row `top + k`, read upwards
            word = shifted(reversed(from[box.left + r - place.top]), box.left + box.bottom - 31);
            break;
          case kRotateCounterclockwise:
            word = shifted(from[box.right - (r - place.top)], box.left - box.top);
            break;
          case kFlipHorizontal:
            word = shifted(reversed(from[r]), box.left + box.right - 31);
            break;
          case kFlipVertical:
            line = box.top + box.bottom - r;
            [[fallthrough]];
          default:
            word = shifted(from[line], aside);
        }
        word &= inside();
        to[target] = plane == 4 ? word : (to[target] & ~object[target]) | word;
      }
    }
  }

  void copy(const uint32_t* object) const {
    memset(board(kClipboard), 0, sizeof(uint32_t) * 5 * rows);
    const Box box = box_of(object, rows);
    for (int r = box.top; r <= box.bottom; ++r) {
      for (int plane = 0; plane < 4; ++plane)
        board(kClipboard + plane)[r - box.top] = (board(kWorking + plane)[r] & object[r]) >> box.left;
      board(kClipboardMask)[r - box.top] = object[r] >> box.left;
    }
  }

  void paste(const uint32_t* selection) const {
    const Box box = box_of(selection, rows);
    for (int r = box.top; r < height(); ++r) {
      const uint32_t mask = (board(kClipboardMask)[r - box.top] << box.left) & inside();
      for (int plane = 0; plane < 4; ++plane) {
        uint32_t* to = board(kWorking + plane) + r;
        *to = (*to & ~mask) | ((board(kClipboard + plane)[r - box.top] << box.left) & mask);
      }
    }
  }

  void resize(const uint32_t* raw) const {
    const Box box = box_of(raw, rows);
    registers[kHeight] = box.bottom + 1;
    registers[kWidth] = box.right + 1;
    for (int plane = 0; plane < 4; ++plane) {
      uint32_t* to = board(kWorking + plane);
      for (int r = 0; r < rows; ++r) to[r] &= r <= box.bottom ? inside() : 0u;
    }
  }

  // The pair that a switching operation leads to; the present one's negative where it leads nowhere.
  int next_pair(int operation, bool evaluation) const {
    const int32_t* row = table_row();
    const bool demo = operation == kNextDemo || operation == kPreviousDemo || operation == kUnsolvedDemo;
    const int first = demo ? 0 : row[1];
    const int count = demo ? row[1] : row[2];
    const int pair = registers[kPair];
    if (count == 0 || (demo && evaluation)) return -1;
    const bool here = first <= pair && pair < first + count;
    switch (operation) {
      case kNextDemo:
      case kNextTest:
        return here ? first + (pair - first + 1) % count : first;
      case kPreviousDemo:
      case kPreviousTest:
        return here ? first + (pair - first + count - 1) % count : first + count - 1;
      default:
        for (int k = first; k < first + count; ++k)
          if ((static_cast<uint32_t>(registers[kSolvedPairs]) >> k & 1u) == 0) return k;
        return -1;
    }
  }
};

}  // namespace
}  // namespace phalanx::arc
