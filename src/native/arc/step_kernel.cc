#include "arc/operations.h"

namespace phalanx::arc::PHALANX_ISA {
namespace {

void write_observation(const Environment& environment, int64_t columns, int8_t* out) {
  int8_t cells[kRows * kRows + kRows];
  const int height = clamp(environment.height(), 0, environment.rows);
  const uint32_t inside = low_bits(clamp(environment.registers[kWidth], 0, columns));
  for (int r = 0; r < height; ++r)
    unpack_row(environment.boards + r, environment.rows, inside, columns, cells + r * columns);
  memset(cells + height * columns, -1, static_cast<size_t>((environment.rows - height) * columns));
  memcpy(out, cells, static_cast<size_t>(environment.rows * columns));
}

// Converts the selection of an action to bit masks; returns false if a corner is outside of the grid.
bool read_selection(const StepCall& call, int64_t index, uint32_t* selection) {
  const Rules& rules = call.rules;
  const int rows = static_cast<int>(rules.rows);
  if (call.actions.mask != nullptr) {
    const uint8_t* mask = call.actions.mask + index * rules.rows * rules.columns;
    for (int r = 0; r < rows; ++r) selection[r] = pack_row(mask + r * rules.columns, rules.columns);
    return true;
  }
  int r1 = call.actions.r1[index], c1 = call.actions.c1[index];
  int r2 = call.actions.r2[index], c2 = call.actions.c2[index];
  if (r1 > r2) {
    const int swap = r1;
    r1 = r2;
    r2 = swap;
  }
  if (c1 > c2) {
    const int swap = c1;
    c1 = c2;
    c2 = swap;
  }
  if (r1 < 0 || r2 >= rows || c1 < 0 || c2 >= rules.columns) return false;
  const uint32_t word = column_range(c1, c2);
  for (int r = 0; r < rows; ++r) selection[r] = r1 <= r && r <= r2 ? word : 0u;
  return true;
}

// Applies a valid operation. `selection` becomes the selection that the state remembers.
void apply_operation(const Environment& environment, int operation, bool evaluation, uint32_t* selection) {
  const int rows = environment.rows;
  uint32_t inside_selection[kRows];
  for (int r = 0; r < rows; ++r)
    inside_selection[r] = r < environment.height() ? selection[r] & environment.inside() : 0u;
  const bool empty = is_empty(inside_selection, rows);
  uint32_t object[kRows];
  for (int r = 0; r < rows; ++r)
    object[r] = !empty ? inside_selection[r] : r < environment.height() ? environment.inside() : 0u;

  if (operation < kFlood) {
    environment.paint(inside_selection, operation);
  } else if (operation < kMoveUp) {
    environment.flood_fill(inside_selection, operation - kFlood);
  } else if (operation < kCopy) {
    environment.transform(operation, object);
    memcpy(selection, object, sizeof(uint32_t) * rows);
    return;
  } else {
    switch (operation) {
      case kCut:
      case kCopy:
        environment.copy(object);
        if (operation == kCut) environment.paint(object, 0);
        break;
      case kPaste:
        if (!empty) environment.paste(inside_selection);
        break;
      case kClear: environment.paint(object, 0); break;
      case kResize:
        if (!is_empty(selection, rows)) environment.resize(selection);
        break;
      case kSubmit: break;
      case kCopyInput:
      case kResetPair: environment.start_from_input(); break;
      default: {
        const int pair = environment.next_pair(operation, evaluation);
        if (pair >= 0) {
          environment.registers[kPair] = pair;
          environment.start_from_input();
        }
      }
    }
  }
  for (int r = 0; r < rows; ++r)
    selection[r] = r < environment.height() ? selection[r] & environment.inside() : 0u;
}

void step_one(const StepCall& call, int64_t index) {
  const Rules& rules = call.rules;
  const int rows = static_cast<int>(rules.rows);
  int32_t* registers = call.states.registers + index * kNumRegisters;
  const Environment environment{call.tasks, rows, static_cast<int>(rules.columns),
                                call.states.boards + index * kNumBoards * rows, registers};
  float& similarity = call.states.similarity[index];
  float improvement = 0.0f;
  int operation_type = -1;

  if (registers[kStatus] == 0) {
    const int operation = call.actions.operation[index];
    uint32_t selection[kRows];
    const bool is_allowed =
        0 <= operation && operation < kNumOperations && (rules.allowed_operations >> operation & 1) != 0;
    // Wraps around like XLA's sum if a user passes the largest step count.
    registers[kStepCount] = static_cast<int32_t>(static_cast<uint32_t>(registers[kStepCount]) + 1u);
    if (is_allowed && environment.is_valid() && read_selection(call, index, selection)) {
      operation_type = operation;
      apply_operation(environment, operation, rules.evaluation, selection);
      memcpy(environment.board(kSelection), selection, sizeof(uint32_t) * rows);
      registers[kLastOperation] = operation;
      const float new_similarity = environment.similarity();
      improvement = new_similarity - similarity;
      similarity = new_similarity;
      environment.mark_if_solved(new_similarity);
      const bool submitted = operation == kSubmit;
      const bool equal = new_similarity == 1.0f;
      const bool solved = equal && (submitted || !rules.require_submit);
      if (submitted || solved) registers[kStatus] = kTerminated;
    }
    if (registers[kStatus] == 0 && registers[kStepCount] >= rules.max_steps) registers[kStatus] = kTruncated;
  }

  const StepResults& results = call.results;
  results.improvement[index] = improvement;
  results.operation_type[index] = operation_type;
  results.step_count[index] = registers[kStepCount];
  results.done[index] = registers[kStatus] != 0;
  results.terminated[index] = registers[kStatus] == kTerminated;
  results.truncated[index] = registers[kStatus] == kTruncated;
  results.solved[index] = registers[kStatus] == kTerminated && similarity == 1.0f;
  if (call.states.observation != nullptr)
    write_observation(environment, rules.columns,
                      call.states.observation + index * rules.rows * rules.columns);
}

void step_range(const StepCall& call, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) step_one(call, index);
}

void reset_range(const ResetCall& call, int64_t begin, int64_t end) {
  const Rules& rules = call.rules;
  const int rows = static_cast<int>(rules.rows);
  for (int64_t index = begin; index < end; ++index) {
    if (!call.should_reset[index]) continue;
    int32_t* registers = call.states.registers + index * kNumRegisters;
    const Environment environment{call.tasks, rows, static_cast<int>(rules.columns),
                                  call.states.boards + index * kNumBoards * rows, registers};
    const uint32_t* random_bits = call.random_bits + 3 * index;
    memset(registers, 0, sizeof(int32_t) * kNumRegisters);
    memset(environment.boards, 0, sizeof(uint32_t) * kNumBoards * rows);
    registers[kTask] = static_cast<int32_t>(random_bits[0] % static_cast<uint32_t>(call.tasks.count));
    registers[kLastOperation] = -1;
    const int32_t* row = environment.task_row();
    const bool tests = rules.evaluation || row[1] == 0;
    // A task without pairs of the requested kind starts on a pair that does not exist, so that no step is
    // valid.
    const int32_t choices = clamp(tests ? row[2] : row[1], 1, kMaxPairs);
    registers[kPair] = static_cast<int32_t>(random_bits[1] % static_cast<uint32_t>(choices)) +
                       (tests ? clamp(row[1], 0, kMaxPairs) : 0);
    environment.start(call.initial, random_bits[2]);
    const float similarity = environment.similarity();
    call.states.similarity[index] = similarity;
    environment.mark_if_solved(similarity);
    if (call.states.observation != nullptr)
      write_observation(environment, rules.columns,
                        call.states.observation + index * rules.rows * rules.columns);
  }
}

}  // namespace

const Kernels kernels = {step_range, reset_range};

}  // namespace phalanx::arc::PHALANX_ISA
