// Interface of the kernels that reset and step a batch of ARC environments.
#pragma once

#include <cstdint>

namespace phalanx::arc {

// The boards of a state, each with one bit mask of columns per row. The working grid and the clipboard have four bit-planes.
enum Board { kWorking = 0, kClipboard = 4, kClipboardMask = 8, kSelection = 9, kNumBoards = 10 };

enum Register { kTask, kPair, kHeight, kWidth, kStepCount, kStatus, kSolvedPairs, kLastOperation, kNumRegisters };

enum Status { kTerminated = 1, kTruncated = 2 };

// The source of the first working grid. The order is that of `INITIAL_GRIDS` in Python.
enum InitialGrid { kFromInput, kBlank, kRandom, kFromDemonstration, kNumInitialGrids };

constexpr int64_t kMaxSide = 30;  // maximum number of rows and columns
constexpr int kMaxPairs = 31;  // maximum number of pairs in a task

struct Tasks {
  const uint32_t* pairs;  // [pairs][input, output][4 planes][rows]
  const int32_t* sizes;  // [pairs][input height, input width, output height, output width]
  const int32_t* task_table;  // [tasks][first pair, demonstrations, tests]
  int64_t rows;
  int64_t num_pairs;
  int64_t count;  // number of tasks
};

struct States {
  uint32_t* boards;  // [batch][kNumBoards][rows]
  int32_t* registers;  // [batch][kNumRegisters]
  float* similarity;  // [batch]
  int8_t* observation;  // [batch][rows][columns], or null
};

struct Rules {
  int64_t rows, columns, max_steps, allowed_operations;
  bool evaluation, require_submit;
};

// The corners of a box in any order. A mask, if given, replaces the box.
struct Actions {
  const int32_t *operation, *r1, *c1, *r2, *c2;
  const uint8_t* mask;  // [batch][rows][columns], or null
};

struct StepResults {
  float* improvement;
  int32_t *operation_type, *step_count;
  bool *done, *terminated, *truncated, *solved;
};

struct StepCall {
  Tasks tasks;
  Rules rules;
  Actions actions;
  States states;
  StepResults results;
};

struct ResetCall {
  Tasks tasks;
  Rules rules;
  InitialGrid initial;
  const bool* should_reset;  // [batch]
  const uint32_t* random_bits;  // [batch][task, pair, initial grid]
  States states;
};

// Process the environments [begin, end).
struct Kernels {
  void (*step)(const StepCall&, int64_t begin, int64_t end);
  void (*reset)(const ResetCall&, int64_t begin, int64_t end);
};

namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}

const Kernels& kernels();

}  // namespace phalanx::arc
