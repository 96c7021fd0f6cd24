// The custom calls `phalanx_arc_step` and `phalanx_arc_reset`. All shapes are checked here, and the kernels check the values
// of each environment, so that no operand, attribute or state leads to memory outside of the buffers.
#include <limits>

#include "arc/step.h"
#include "common/cpu_features.h"
#include "common/ffi_shapes.h"
#include "common/parallel.h"

namespace phalanx::arc {

namespace {

// Fewer environments are not worth another thread.
constexpr int64_t kGrain = 64;

using U32 = ffi::Buffer<ffi::U32>;
using S32 = ffi::Buffer<ffi::S32>;
using F32 = ffi::Buffer<ffi::F32>;
using S8 = ffi::Buffer<ffi::S8>;
using Flags = ffi::Buffer<ffi::PRED>;

Tasks read_tasks(ShapeCheck& check, const U32& pairs, const S32& grids, const S32& task_table) {
  const int64_t count = axis_size(pairs, 0), rows = axis_size(pairs, 3), tasks = axis_size(task_table, 0);
  check.expect("pairs", pairs, {count, 2, 4, rows});
  check.expect("sizes", grids, {count, 4});
  check.expect("task_table", task_table, {tasks, 3});
  constexpr int64_t max_size = std::numeric_limits<int32_t>::max();
  check.require(1 <= count && count <= max_size && 1 <= tasks && tasks <= max_size && rows >= 1,
                "the tasks must have at least one task, one pair and one row");
  return {pairs.typed_data(), grids.typed_data(), task_table.typed_data(), rows, count, tasks};
}

// Results have the shapes of the operands that they update.
template <typename Boards, typename Registers, typename Similarity>
void check_states(ShapeCheck& check, int64_t batch, int64_t rows, int64_t columns, const Boards& boards,
                  const Registers& registers, const Similarity& similarity) {
  check.require(1 <= rows && rows <= kMaxSide && 1 <= columns && columns <= kMaxSide,
                "the grid must have 1 to 30 rows and columns");
  check.expect("boards", boards, {batch, kNumBoards, rows});
  check.expect("registers", registers, {batch, kNumRegisters});
  check.expect("similarity", similarity, {batch});
}

// The grids may also be empty.
template <typename Grids>
void check_grids(ShapeCheck& check, const char* name, const Grids& grids, int64_t batch, int64_t rows, int64_t columns) {
  if (axis_size(grids, 1) == 0)
    check.expect(name, grids, {batch, 0, 0});
  else
    check.expect(name, grids, {batch, rows, columns});
}

ffi::Error step(ffi::ThreadPool pool, U32 pairs, S32 grids, S32 task_table, S32 operation, S32 r1, S32 c1,
                S32 r2, S32 c2, Flags mask, U32 boards, S32 registers, F32 similarity,
                ffi::Result<U32> new_boards, ffi::Result<S32> new_registers, ffi::Result<F32> new_similarity,
                ffi::Result<S8> observation, ffi::Result<F32> improvement,
                ffi::Result<S32> operation_type, ffi::Result<S32> step_count, ffi::Result<Flags> done,
                ffi::Result<Flags> terminated, ffi::Result<Flags> truncated, ffi::Result<Flags> solved,
                ffi::Span<const int64_t> rules) {
  if (rules.size() != 5) return ffi::Error::InvalidArgument("phalanx_arc_step: rules must have 5 elements");
  const int64_t batch = axis_size(operation, 0), rows = axis_size(boards, 2), columns = rules[0];
  ShapeCheck check("phalanx_arc_step");
  StepCall call;
  call.tasks = read_tasks(check, pairs, grids, task_table);
  check_states(check, batch, rows, columns, boards, registers, similarity);
  check_states(check, batch, rows, columns, *new_boards, *new_registers, *new_similarity);
  for (const S32* field : {&operation, &r1, &c1, &r2, &c2}) check.expect("action fields", *field, {batch});
  check_grids(check, "mask", mask, batch, rows, columns);
  check_grids(check, "observation", *observation, batch, rows, columns);
  check.expect("results", *improvement, {batch});
  for (const S32* count : {&*operation_type, &*step_count}) check.expect("results", *count, {batch});
  for (const Flags* flag : {&*done, &*terminated, &*truncated, &*solved}) check.expect("results", *flag, {batch});
  if (check.failed()) return check.error();

  call.rules = {rows, columns, rules[1], rules[2], rules[3] != 0, rules[4] != 0};
  call.actions = {operation.typed_data(), r1.typed_data(), c1.typed_data(), r2.typed_data(), c2.typed_data(),
                  mask.element_count() != 0 ? static_cast<const uint8_t*>(mask.untyped_data()) : nullptr};
  call.states = {update_in_place(boards, new_boards), update_in_place(registers, new_registers),
                 update_in_place(similarity, new_similarity),
                 observation->element_count() != 0 ? observation->typed_data() : nullptr};
  call.results = {improvement->typed_data(), operation_type->typed_data(), step_count->typed_data(), done->typed_data(),
                  terminated->typed_data(),  truncated->typed_data(),      solved->typed_data()};
  const Kernels& kernels = PHALANX_SELECT_KERNELS;
  parallel_for(PoolLauncher(pool), batch, kGrain,
               [&](int64_t, int64_t begin, int64_t end) { kernels.step(call, begin, end); });
  return ffi::Error::Success();
}

ffi::Error reset(ffi::ThreadPool pool, U32 pairs, S32 grids, S32 task_table, Flags should_reset, U32 random_bits, U32 boards,
                 S32 registers, F32 similarity, S8 observation, ffi::Result<U32> new_boards,
                 ffi::Result<S32> new_registers, ffi::Result<F32> new_similarity,
                 ffi::Result<S8> new_observation, int64_t columns, bool evaluation, int64_t initial) {
  const int64_t batch = axis_size(should_reset, 0), rows = axis_size(boards, 2);
  ShapeCheck check("phalanx_arc_reset");
  ResetCall call;
  call.tasks = read_tasks(check, pairs, grids, task_table);
  check.expect("should_reset", should_reset, {batch});
  check.expect("random_bits", random_bits, {batch, 3});
  check_states(check, batch, rows, columns, boards, registers, similarity);
  check_states(check, batch, rows, columns, *new_boards, *new_registers, *new_similarity);
  check_grids(check, "observation", observation, batch, rows, columns);
  check_grids(check, "new_observation", *new_observation, batch, rows, columns);
  check.require(observation.element_count() == new_observation->element_count(),
                "the new observation must have the size of the old one");
  check.require(0 <= initial && initial < kNumInitialGrids, "initial must be 0 to 3");
  if (check.failed()) return check.error();

  call.rules = {};
  call.rules.rows = rows;
  call.rules.columns = columns;
  call.rules.evaluation = evaluation;
  call.initial = static_cast<InitialGrid>(initial);
  call.should_reset = should_reset.typed_data();
  call.random_bits = random_bits.typed_data();
  int8_t* cells = update_in_place(observation, new_observation);
  call.states = {update_in_place(boards, new_boards), update_in_place(registers, new_registers),
                 update_in_place(similarity, new_similarity), observation.element_count() != 0 ? cells : nullptr};
  const Kernels& kernels = PHALANX_SELECT_KERNELS;
  parallel_for(PoolLauncher(pool), batch, kGrain,
               [&](int64_t, int64_t begin, int64_t end) { kernels.reset(call, begin, end); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_step, NoThrow<step>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<U32>()  // pairs
                                  .Arg<S32>()  // sizes
                                  .Arg<S32>()  // task table
                                  .Arg<S32>()  // operation
                                  .Arg<S32>()  // r1
                                  .Arg<S32>()  // c1
                                  .Arg<S32>()  // r2
                                  .Arg<S32>()  // c2
                                  .Arg<Flags>()  // mask
                                  .Arg<U32>()  // boards
                                  .Arg<S32>()  // registers
                                  .Arg<F32>()  // similarity
                                  .Ret<U32>()  // boards
                                  .Ret<S32>()  // registers
                                  .Ret<F32>()  // similarity
                                  .Ret<S8>()  // observation
                                  .Ret<F32>()  // improvement
                                  .Ret<S32>()  // operation type
                                  .Ret<S32>()  // step count
                                  .Ret<Flags>()  // done
                                  .Ret<Flags>()  // terminated
                                  .Ret<Flags>()  // truncated
                                  .Ret<Flags>()  // solved
                                  .Attr<ffi::Span<const int64_t>>("rules"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_reset, NoThrow<reset>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<U32>()  // pairs
                                  .Arg<S32>()  // sizes
                                  .Arg<S32>()  // task table
                                  .Arg<Flags>()  // should reset
                                  .Arg<U32>()  // random bits
                                  .Arg<U32>()  // boards
                                  .Arg<S32>()  // registers
                                  .Arg<F32>()  // similarity
                                  .Arg<S8>()  // observation
                                  .Ret<U32>()  // boards
                                  .Ret<S32>()  // registers
                                  .Ret<F32>()  // similarity
                                  .Ret<S8>()  // observation
                                  .Attr<int64_t>("columns")
                                  .Attr<bool>("evaluation")
                                  .Attr<int64_t>("initial"));

}  // namespace phalanx::arc
