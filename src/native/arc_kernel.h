// The ARC kernels' interface: what one call over a batch needs, and the table of functions that each
// instruction set provides. How an operation works is in arc_kernel.inc; JAX's side of the call in arc_ffi.cc.
#pragma once

#include <cstdint>

namespace phalanx::arc {

// A state's boards, in this order; each is `rows` words, bit c of a word is column c.
enum Board { kWorking = 0, kClipboard = 4, kClipboardMask = 8, kSelection = 9, kBoards = 10 };

enum Register { kTask, kPair, kHeight, kWidth, kStepCount, kStatus, kSolvedPairs, kLastOperation, kRegisters };

enum Status { kTerminated = 1, kTruncated = 2 };

struct Tasks {
  const uint32_t* pairs;  // [pairs][input, output][4 planes][rows]
  const int32_t* sizes;   // [pairs][input height, width, output height, width]
  const int32_t* table;   // [tasks][first pair, demonstrations, tests]
  int64_t rows;
  int64_t count;
};

struct States {
  uint32_t* boards;    // [batch][kBoards][rows]
  int32_t* registers;  // [batch][kRegisters]
  float* similarity;   // [batch]
  int8_t* observation; // [batch][rows][columns], or null
};

struct Rules {
  int64_t rows, columns, max_steps, allowed, efficiency_threshold;
  bool evaluation, require_submit, submit_only;
  float similarity_weight, step_penalty, success_bonus, efficiency_bonus;
  float unsolved_submission, invalid_action;
};

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
  Actions actions;
  States states;
  Outcomes outcomes;
};

struct ResetCall {
  Tasks tasks;
  Rules rules;
  const bool* where;     // [batch]
  const uint32_t* bits;  // [batch][task, pair]: random words
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
