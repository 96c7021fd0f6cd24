// The ARC kernels' interface: what one call over a batch needs, and the table of functions that each
// instruction set provides. How an operation works is in arc_kernel.inc; JAX's side of the call in arc_ffi.cc.
#pragma once

#include <cstdint>

namespace phalanx::arc {

// A state's boards, in this order; each is `rows` words, bit c of a word is column c.
enum Board { kWorking = 0, kClipboard = 4, kClipboardMask = 8, kSelection = 9, kBoards = 10 };

enum Register { kTask, kPair, kHeight, kWidth, kStepCount, kStatus, kSolvedPairs, kLastOperation, kRegisters };

enum Status { kTerminated = 1, kTruncated = 2 };

// Where the working grid of a new episode comes from; the order of `INITIAL_GRIDS` in config.py.
enum InitialGrid { kFromInput, kBlank, kRandom, kFromDemonstration, kInitialGrids };

// Canvases have at most this many rows and columns, and tasks at most this many pairs.
constexpr int64_t kMaxSide = 30;
constexpr int kMaxPairs = 31;

struct Tasks {
  const uint32_t* pairs;  // [pairs][input, output][4 planes][rows]
  const int32_t* sizes;   // [pairs][input height, width, output height, width]
  const int32_t* table;   // [tasks][first pair, demonstrations, tests]
  int64_t rows;
  int64_t num_pairs;
  int64_t count;  // rows of the table
};

struct States {
  uint32_t* boards;    // [batch][kBoards][rows]
  int32_t* registers;  // [batch][kRegisters]
  float* similarity;   // [batch]
  int8_t* observation; // [batch][rows][columns], or null
};

struct Rules {
  int64_t rows, columns, max_steps, allowed;
  bool evaluation, require_submit, submit_only;
};

// The numbers of a reward, in the order of `REWARD_NUMBERS` in rewards.py.
struct Pay {
  float similarity_weight, step_penalty, success_bonus, efficiency_bonus, efficiency_threshold;
  float unsolved_submission, invalid_action;
};
constexpr int64_t kPayNumbers = 7;
static_assert(sizeof(Pay) == kPayNumbers * sizeof(float));

// A box names its corners in any order; a mask, where given, takes its place.
struct Actions {
  const int32_t *operation, *r1, *c1, *r2, *c2;
  const uint8_t* mask;  // [batch][rows][columns], or null
};

struct Outcomes {
  float *reward, *improvement;
  int32_t *operation_type, *step_count;
  bool *done, *terminated, *truncated, *solved;
};

struct StepCall {
  Tasks tasks;
  Rules rules;
  const Pay* pay;      // one for each `per_pay` environments in turn
  int64_t per_pay;
  Actions actions;
  States states;
  Outcomes outcomes;
};

struct ResetCall {
  Tasks tasks;
  Rules rules;
  InitialGrid initial;
  const bool* where;     // [batch]
  const uint32_t* bits;  // [batch][task, pair, noise]: words, the first two taken modulo what there is
  States states;
};

// One instruction set's compilation of the kernels; each works on environments [begin, end).
struct Kernels {
  const char* isa;
  void (*step)(const StepCall&, int64_t begin, int64_t end);
  void (*reset)(const ResetCall&, int64_t begin, int64_t end);
};

extern const Kernels kBaselineKernels;
#ifdef PHALANX_HAVE_AVX2
extern const Kernels kAvx2Kernels;
#endif

// The best kernels that this processor can run.
const Kernels& kernels();

}  // namespace phalanx::arc
