// The proof kernel as an XLA custom call: buffers in, buffers out, work shared over XLA's thread pool.

#include "proofs/expand_ffi.h"

#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "proofs/expand.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace phalanx::proofs {
namespace {

// A goal list takes about a microsecond, so this many are worth a thread.
constexpr int64_t kGrain = 32;

using S32 = ffi::Buffer<ffi::S32>;
using Flags = ffi::Buffer<ffi::PRED>;

ffi::Error expand_batch(ffi::ThreadPool pool, Flags where, S32 query, Flags excluded, S32 goals, S32 successors,
                        S32 count, S32 visited, S32 visited_count, Flags overflow, S32 too_long, S32 skipped,
                        ffi::Result<S32> new_goals, ffi::Result<S32> new_successors, ffi::Result<S32> new_count,
                        ffi::Result<S32> new_visited, ffi::Result<S32> new_visited_count,
                        ffi::Result<Flags> new_overflow, ffi::Result<S32> new_too_long,
                        ffi::Result<S32> new_skipped, int64_t program, int64_t unary_limit,
                        bool end_proof_action, bool memory_pruning, bool restart) {
  // Held until the call is over, also when Python lets go of it meanwhile.
  const std::shared_ptr<const Program> held = find_program(program);
  if (held == nullptr)
    return ffi::Error::InvalidArgument(
        "phalanx_proof_expand: this compiled function's Program is gone; keep the Program (or the environment) "
        "alive for as long as functions compiled from it are called");
  ExpandCall call;
  call.program = held.get();
  const int64_t batch = axis(where, 0);
  call.atoms = axis(goals, 1);
  call.states = axis(successors, 1);
  call.memory = axis(visited, 1);
  const int64_t atom = 1 + held->arity;
  Sizes sizes("phalanx_proof_expand");
  sizes.expect("where", where, {batch});
  sizes.expect("query", query, {batch, atom});
  sizes.expect("excluded", excluded, {batch});
  for (const S32* buffer : {&goals, &*new_goals}) sizes.expect("goals", *buffer, {batch, call.atoms, atom});
  for (const S32* buffer : {&successors, &*new_successors})
    sizes.expect("successors", *buffer, {batch, call.states, call.atoms, atom});
  for (const S32* buffer : {&visited, &*new_visited})
    sizes.expect("visited", *buffer, {batch, call.memory, call.atoms, atom});
  for (const S32* buffer : {&count, &visited_count, &too_long, &skipped, &*new_count, &*new_visited_count,
                            &*new_too_long, &*new_skipped})
    sizes.expect("a count", *buffer, {batch});
  for (const Flags* buffer : {&overflow, &*new_overflow}) sizes.expect("overflow", *buffer, {batch});
  sizes.require(call.atoms >= 1 && call.states >= 1, "there must be room for one goal and one successor at least");
  constexpr int64_t most = 1 << 24;
  sizes.require(call.atoms <= most && call.states <= most && call.memory <= most,
                "there is room for too many goals, successors or visited states");
  sizes.require(0 <= unary_limit && unary_limit <= most, "the limit of steps without a choice is out of range");
  if (sizes.wrong()) return sizes.error();
  call.unary_limit = unary_limit;
  call.end_proof_action = end_proof_action;
  call.memory_pruning = memory_pruning;
  call.restart = restart;
  call.where = where.typed_data();
  call.query = query.typed_data();
  call.excluded = excluded.typed_data();
  call.goals = updated(goals, new_goals);
  call.successors = updated(successors, new_successors);
  call.count = updated(count, new_count);
  call.visited = updated(visited, new_visited);
  call.visited_count = updated(visited_count, new_visited_count);
  call.overflow = updated(overflow, new_overflow);
  call.too_long = updated(too_long, new_too_long);
  call.skipped = updated(skipped, new_skipped);
  parallel_for(pool, where.element_count(), kGrain, [&](int64_t begin, int64_t end) { expand(call, begin, end); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_proof_expand, expand_batch,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Flags>()  // where
                                  .Arg<S32>()    // query
                                  .Arg<Flags>()  // excluded
                                  .Arg<S32>()    // goals
                                  .Arg<S32>()    // successors
                                  .Arg<S32>()    // count
                                  .Arg<S32>()    // visited
                                  .Arg<S32>()    // visited count
                                  .Arg<Flags>()  // overflow
                                  .Arg<S32>()    // too long
                                  .Arg<S32>()    // skipped
                                  .Ret<S32>()    // goals
                                  .Ret<S32>()    // successors
                                  .Ret<S32>()    // count
                                  .Ret<S32>()    // visited
                                  .Ret<S32>()    // visited count
                                  .Ret<Flags>()  // overflow
                                  .Ret<S32>()    // too long
                                  .Ret<S32>()    // skipped
                                  .Attr<int64_t>("program")
                                  .Attr<int64_t>("unary_limit")
                                  .Attr<bool>("end_proof_action")
                                  .Attr<bool>("memory_pruning")
                                  .Attr<bool>("restart"));

}  // namespace phalanx::proofs
