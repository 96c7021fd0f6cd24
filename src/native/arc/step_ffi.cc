// The ARC kernels as XLA custom calls: buffers in, buffers out, work shared over XLA's thread pool.
//
// Every size is checked here against every other before a kernel runs; what is in the buffers is checked by the
// kernels, environment by environment. No operand, attribute or state can make them leave their memory.

#include "arc/step_ffi.h"

#include <limits>

#include "arc/step.h"
#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace phalanx::arc {

const Kernels& kernels() {
#ifdef PHALANX_HAVE_AVX2
  static const bool fast = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                           __builtin_cpu_supports("popcnt");
  if (fast) return kAvx2Kernels;
#endif
  return kBaselineKernels;
}

namespace {

// Fewer environments than this are not worth waking another thread for.
constexpr int64_t kGrain = 64;

using U32 = ffi::Buffer<ffi::U32>;
using S32 = ffi::Buffer<ffi::S32>;
using F32 = ffi::Buffer<ffi::F32>;
using S8 = ffi::Buffer<ffi::S8>;
using Flags = ffi::Buffer<ffi::PRED>;

Tasks checked_tasks(Sizes& sizes, const U32& pairs, const S32& grids, const S32& table) {
  const int64_t count = axis(pairs, 0), rows = axis(pairs, 3), tasks = axis(table, 0);
  sizes.expect("pairs", pairs, {count, 2, 4, rows});
  sizes.expect("sizes", grids, {count, 4});
  sizes.expect("table", table, {tasks, 3});
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  sizes.require(1 <= count && count <= most && 1 <= tasks && tasks <= most && rows >= 1,
                "the tasks must have at least one task, one pair and one row");
  return {pairs.typed_data(), grids.typed_data(), table.typed_data(), rows, count, tasks};
}

// The canvas and the states on it; results have the sizes of the operands that they update.
template <typename Boards, typename Registers, typename Similarity>
void check_states(Sizes& sizes, int64_t batch, int64_t rows, int64_t columns, const Boards& boards,
                  const Registers& registers, const Similarity& similarity) {
  sizes.require(1 <= rows && rows <= kMaxSide && 1 <= columns && columns <= kMaxSide,
                "a canvas has 1 to 30 rows and columns");
  sizes.expect("boards", boards, {batch, kBoards, rows});
  sizes.expect("registers", registers, {batch, kRegisters});
  sizes.expect("similarity", similarity, {batch});
}

// Grids of the canvas, or nothing at all.
template <typename Grids>
void check_grids(Sizes& sizes, const char* name, const Grids& grids, int64_t batch, int64_t rows, int64_t columns) {
  if (axis(grids, 1) == 0)
    sizes.expect(name, grids, {batch, 0, 0});
  else
    sizes.expect(name, grids, {batch, rows, columns});
}

ffi::Error step(ffi::ThreadPool pool, U32 pairs, S32 grids, S32 table, F32 pay, S32 operation, S32 r1, S32 c1,
                S32 r2, S32 c2, Flags mask, U32 boards, S32 registers, F32 similarity,
                ffi::Result<U32> new_boards, ffi::Result<S32> new_registers, ffi::Result<F32> new_similarity,
                ffi::Result<S8> observation, ffi::Result<F32> reward, ffi::Result<F32> improvement,
                ffi::Result<S32> operation_type, ffi::Result<S32> step_count, ffi::Result<Flags> done,
                ffi::Result<Flags> terminated, ffi::Result<Flags> truncated, ffi::Result<Flags> solved,
                ffi::Span<const int64_t> limits) {
  if (limits.size() != 6) return ffi::Error::InvalidArgument("phalanx_arc_step takes 6 limits");
  const int64_t batch = axis(operation, 0), rows = axis(boards, 2), columns = limits[0];
  Sizes sizes("phalanx_arc_step");
  StepCall call;
  call.tasks = checked_tasks(sizes, pairs, grids, table);
  check_states(sizes, batch, rows, columns, boards, registers, similarity);
  check_states(sizes, batch, rows, columns, *new_boards, *new_registers, *new_similarity);
  for (const S32* field : {&operation, &r1, &c1, &r2, &c2}) sizes.expect("an action's field", *field, {batch});
  check_grids(sizes, "mask", mask, batch, rows, columns);
  check_grids(sizes, "observation", *observation, batch, rows, columns);
  for (const F32* number : {&*reward, &*improvement}) sizes.expect("a result", *number, {batch});
  for (const S32* count : {&*operation_type, &*step_count}) sizes.expect("a result", *count, {batch});
  for (const Flags* flag : {&*done, &*terminated, &*truncated, &*solved}) sizes.expect("a result", *flag, {batch});
  const int64_t groups = axis(pay, 0);
  sizes.expect("pay", pay, {groups, kPayNumbers});
  sizes.require(groups >= 1 && batch % groups == 0, "the numbers of pay must divide the batch");
  if (sizes.wrong()) return sizes.error();

  call.rules = {rows, columns, limits[1], limits[2], limits[3] != 0, limits[4] != 0, limits[5] != 0};
  // `Pay` is nothing but its floats, so that the buffer's rows are read as they stand.
  call.pay = static_cast<const Pay*>(static_cast<const void*>(pay.typed_data()));
  call.per_pay = groups == 1 ? 0 : batch / groups;
  call.actions = {operation.typed_data(), r1.typed_data(), c1.typed_data(), r2.typed_data(), c2.typed_data(),
                  mask.element_count() != 0 ? static_cast<const uint8_t*>(mask.untyped_data()) : nullptr};
  call.states = {updated(boards, new_boards), updated(registers, new_registers),
                 updated(similarity, new_similarity),
                 observation->element_count() != 0 ? observation->typed_data() : nullptr};
  call.outcomes = {reward->typed_data(),     improvement->typed_data(), operation_type->typed_data(),
                   step_count->typed_data(), done->typed_data(),        terminated->typed_data(),
                   truncated->typed_data(),  solved->typed_data()};
  const Kernels& best = kernels();
  parallel_for(pool, batch, kGrain, [&](int64_t begin, int64_t end) { best.step(call, begin, end); });
  return ffi::Error::Success();
}

ffi::Error reset(ffi::ThreadPool pool, U32 pairs, S32 grids, S32 table, Flags where, U32 bits, U32 boards,
                 S32 registers, F32 similarity, S8 observation, ffi::Result<U32> new_boards,
                 ffi::Result<S32> new_registers, ffi::Result<F32> new_similarity,
                 ffi::Result<S8> new_observation, int64_t columns, bool evaluation, int64_t initial) {
  const int64_t batch = axis(where, 0), rows = axis(boards, 2);
  Sizes sizes("phalanx_arc_reset");
  ResetCall call;
  call.tasks = checked_tasks(sizes, pairs, grids, table);
  sizes.expect("where", where, {batch});
  sizes.expect("bits", bits, {batch, 3});
  check_states(sizes, batch, rows, columns, boards, registers, similarity);
  check_states(sizes, batch, rows, columns, *new_boards, *new_registers, *new_similarity);
  check_grids(sizes, "observation", observation, batch, rows, columns);
  check_grids(sizes, "the new observation", *new_observation, batch, rows, columns);
  sizes.require(observation.element_count() == new_observation->element_count(),
                "the new observation must be as large as the one that it updates");
  sizes.require(0 <= initial && initial < kInitialGrids, "there is no such initial grid");
  if (sizes.wrong()) return sizes.error();

  call.rules = {};
  call.rules.rows = rows;
  call.rules.columns = columns;
  call.rules.evaluation = evaluation;
  call.initial = static_cast<InitialGrid>(initial);
  call.where = where.typed_data();
  call.bits = bits.typed_data();
  int8_t* cells = updated(observation, new_observation);
  call.states = {updated(boards, new_boards), updated(registers, new_registers),
                 updated(similarity, new_similarity), observation.element_count() != 0 ? cells : nullptr};
  const Kernels& best = kernels();
  parallel_for(pool, batch, kGrain, [&](int64_t begin, int64_t end) { best.reset(call, begin, end); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_step, step,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<U32>()    // pairs
                                  .Arg<S32>()    // sizes
                                  .Arg<S32>()    // table
                                  .Arg<F32>()    // pay
                                  .Arg<S32>()    // operation
                                  .Arg<S32>()    // r1
                                  .Arg<S32>()    // c1
                                  .Arg<S32>()    // r2
                                  .Arg<S32>()    // c2
                                  .Arg<Flags>()  // mask
                                  .Arg<U32>()    // boards
                                  .Arg<S32>()    // registers
                                  .Arg<F32>()    // similarity
                                  .Ret<U32>()    // boards
                                  .Ret<S32>()    // registers
                                  .Ret<F32>()    // similarity
                                  .Ret<S8>()     // observation
                                  .Ret<F32>()    // reward
                                  .Ret<F32>()    // improvement
                                  .Ret<S32>()    // operation type
                                  .Ret<S32>()    // step count
                                  .Ret<Flags>()  // done
                                  .Ret<Flags>()  // terminated
                                  .Ret<Flags>()  // truncated
                                  .Ret<Flags>()  // solved
                                  .Attr<ffi::Span<const int64_t>>("limits"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_reset, reset,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<U32>()    // pairs
                                  .Arg<S32>()    // sizes
                                  .Arg<S32>()    // table
                                  .Arg<Flags>()  // where
                                  .Arg<U32>()    // bits
                                  .Arg<U32>()    // boards
                                  .Arg<S32>()    // registers
                                  .Arg<F32>()    // similarity
                                  .Arg<S8>()     // observation
                                  .Ret<U32>()    // boards
                                  .Ret<S32>()    // registers
                                  .Ret<F32>()    // similarity
                                  .Ret<S8>()     // observation
                                  .Attr<int64_t>("columns")
                                  .Attr<bool>("evaluation")
                                  .Attr<int64_t>("initial"));

}  // namespace phalanx::arc
