// The ARC kernels as XLA custom calls: buffers in, buffers out, work shared over XLA's thread pool.

#include "arc_ffi.h"

#include <cstring>

#include "arc_kernel.h"
#include "parallel.h"
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

// Results alias the operands that they update; copy where XLA gave the result a buffer of its own.
template <typename Buffer, typename Result>
auto* updated(const Buffer& from, Result& to) {
  if (from.untyped_data() != to->untyped_data())
    std::memcpy(to->untyped_data(), from.untyped_data(), from.size_bytes());
  return to->typed_data();
}

Tasks tasks_of(const U32& pairs, const S32& sizes, const S32& table) {
  return {pairs.typed_data(), sizes.typed_data(), table.typed_data(), pairs.dimensions()[3],
          table.dimensions()[0]};
}

ffi::Error step(ffi::ThreadPool pool, U32 pairs, S32 sizes, S32 table, S32 operation, S32 r1, S32 c1, S32 r2,
                S32 c2, Flags mask, U32 boards, S32 registers, F32 similarity, ffi::Result<U32> new_boards,
                ffi::Result<S32> new_registers, ffi::Result<F32> new_similarity, ffi::Result<S8> observation,
                ffi::Result<F32> reward, ffi::Result<F32> improvement, ffi::Result<S32> operation_type,
                ffi::Result<S32> step_count, ffi::Result<Flags> done, ffi::Result<Flags> terminated,
                ffi::Result<Flags> truncated, ffi::Result<Flags> solved, ffi::Span<const int64_t> limits,
                ffi::Span<const float> pay) {
  StepCall call;
  call.tasks = tasks_of(pairs, sizes, table);
  if (limits.size() != 7 || pay.size() != 6)
    return ffi::Error::InvalidArgument("phalanx_arc_step takes 7 limits and 6 numbers of pay");
  call.rules = {static_cast<int64_t>(boards.dimensions()[2]),
                limits[0], limits[1], limits[2], limits[3],
                limits[4] != 0, limits[5] != 0, limits[6] != 0,
                pay[0], pay[1], pay[2], pay[3], pay[4], pay[5]};
  const bool by_mask = mask.element_count() != 0;
  call.actions = {operation.typed_data(), r1.typed_data(), c1.typed_data(), r2.typed_data(), c2.typed_data(),
                  by_mask ? static_cast<const uint8_t*>(mask.untyped_data()) : nullptr};
  call.states = {updated(boards, new_boards), updated(registers, new_registers),
                 updated(similarity, new_similarity),
                 observation->element_count() != 0 ? observation->typed_data() : nullptr};
  call.outcomes = {reward->typed_data(),     improvement->typed_data(), operation_type->typed_data(),
                   step_count->typed_data(), done->typed_data(),        terminated->typed_data(),
                   truncated->typed_data(),  solved->typed_data()};
  const Kernels& best = kernels();
  parallel_for(pool, operation.element_count(), kGrain,
               [&](int64_t begin, int64_t end) { best.step(call, begin, end); });
  return ffi::Error::Success();
}

ffi::Error reset(ffi::ThreadPool pool, U32 pairs, S32 sizes, S32 table, Flags where, U32 bits, U32 boards,
                 S32 registers, F32 similarity, S8 observation, ffi::Result<U32> new_boards,
                 ffi::Result<S32> new_registers, ffi::Result<F32> new_similarity,
                 ffi::Result<S8> new_observation, int64_t columns, bool evaluation) {
  ResetCall call;
  call.tasks = tasks_of(pairs, sizes, table);
  call.rules = {};
  call.rules.rows = boards.dimensions()[2];
  call.rules.columns = columns;
  call.rules.evaluation = evaluation;
  call.where = where.typed_data();
  call.bits = bits.typed_data();
  int8_t* cells = updated(observation, new_observation);
  call.states = {updated(boards, new_boards), updated(registers, new_registers),
                 updated(similarity, new_similarity), observation.element_count() != 0 ? cells : nullptr};
  const Kernels& best = kernels();
  parallel_for(pool, where.element_count(), kGrain,
               [&](int64_t begin, int64_t end) { best.reset(call, begin, end); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_step, step,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<U32>()    // pairs
                                  .Arg<S32>()    // sizes
                                  .Arg<S32>()    // table
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
                                  .Attr<ffi::Span<const int64_t>>("limits")
                                  .Attr<ffi::Span<const float>>("pay"));

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
                                  .Attr<bool>("evaluation"));

}  // namespace phalanx::arc
