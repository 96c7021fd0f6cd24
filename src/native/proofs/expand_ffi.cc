// The custom call `phalanx_proofs_expand`.

#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "proofs/expand.h"
#include "xla/ffi/api/ffi.h"

namespace phalanx::proofs {
namespace {

// Expanding a state takes about a microsecond, so this many are worth another thread.
constexpr int64_t kGrain = 32;

using S32 = ffi::Buffer<ffi::S32>;
using Flags = ffi::Buffer<ffi::PRED>;

ffi::Error expand_batch(ffi::ThreadPool pool, Flags active, S32 query, Flags exclude_query, S32 goals,
                        S32 successors, S32 count, S32 visited, S32 visited_count, Flags overflow,
                        S32 num_too_long, S32 num_skipped, ffi::Result<S32> new_goals,
                        ffi::Result<S32> new_successors, ffi::Result<S32> new_count,
                        ffi::Result<S32> new_visited, ffi::Result<S32> new_visited_count,
                        ffi::Result<Flags> new_overflow, ffi::Result<S32> new_too_long,
                        ffi::Result<S32> new_skipped, int64_t program, int64_t max_skipped_states,
                        bool end_proof_action, bool prune_visited, bool clear_visited) {
  // Keeps the program alive during the call, even if Python deletes it meanwhile.
  const std::shared_ptr<const Program> handle = find_program(program);
  if (handle == nullptr)
    return ffi::Error::InvalidArgument(
        "phalanx_proofs_expand: the Program of this compiled function has been deleted; keep a reference to "
        "the "
        "Program (or the environment) for as long as the function is called");
  ExpandCall call;
  call.program = handle.get();
  const int64_t batch = axis_size(active, 0);
  call.max_goals = axis_size(goals, 1);
  call.max_successors = axis_size(successors, 1);
  call.max_visited = axis_size(visited, 1);
  const int64_t atom = 1 + handle->arity;
  ShapeCheck check("phalanx_proofs_expand");
  check.expect("where", active, {batch});
  check.expect("query", query, {batch, atom});
  check.expect("excluded", exclude_query, {batch});
  for (const S32* buffer : {&goals, &*new_goals})
    check.expect("goals", *buffer, {batch, call.max_goals, atom});
  for (const S32* buffer : {&successors, &*new_successors})
    check.expect("successors", *buffer, {batch, call.max_successors, call.max_goals, atom});
  for (const S32* buffer : {&visited, &*new_visited})
    check.expect("visited", *buffer, {batch, call.max_visited, call.max_goals, atom});
  for (const S32* buffer : {&count, &visited_count, &num_too_long, &num_skipped, &*new_count,
                            &*new_visited_count, &*new_too_long, &*new_skipped})
    check.expect("counts", *buffer, {batch});
  for (const Flags* buffer : {&overflow, &*new_overflow}) check.expect("overflow", *buffer, {batch});
  check.require(call.max_goals >= 1 && call.max_successors >= 1,
                "there must be space for at least one goal and one successor");
  constexpr int64_t max_size = 1 << 24;
  check.require(call.max_goals <= max_size && call.max_successors <= max_size && call.max_visited <= max_size,
                "there must be at most 2^24 goals, successors and visited states");
  check.require(0 <= max_skipped_states && max_skipped_states <= max_size,
                "max_skipped_states must be 0 to 2^24");
  if (check.failed()) return check.error();
  call.max_skipped_states = max_skipped_states;
  call.end_proof_action = end_proof_action;
  call.prune_visited = prune_visited;
  call.clear_visited = clear_visited;
  call.active = active.typed_data();
  call.query = query.typed_data();
  call.exclude_query = exclude_query.typed_data();
  call.goals = update_in_place(goals, new_goals);
  call.successors = update_in_place(successors, new_successors);
  call.count = update_in_place(count, new_count);
  call.visited = update_in_place(visited, new_visited);
  call.visited_count = update_in_place(visited_count, new_visited_count);
  call.overflow = update_in_place(overflow, new_overflow);
  call.num_too_long = update_in_place(num_too_long, new_too_long);
  call.num_skipped = update_in_place(num_skipped, new_skipped);
  parallel_for(PoolLauncher(pool), batch, kGrain,
               [&](int64_t, int64_t begin, int64_t end) { expand(call, begin, end); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_proofs_expand, NoThrow<expand_batch>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Flags>()  // active
                                  .Arg<S32>()    // query
                                  .Arg<Flags>()  // excluded
                                  .Arg<S32>()    // goals
                                  .Arg<S32>()    // successors
                                  .Arg<S32>()    // count
                                  .Arg<S32>()    // visited
                                  .Arg<S32>()    // visited count
                                  .Arg<Flags>()  // overflow
                                  .Arg<S32>()    // too long
                                  .Arg<S32>()    // num skipped
                                  .Ret<S32>()    // goals
                                  .Ret<S32>()    // successors
                                  .Ret<S32>()    // count
                                  .Ret<S32>()    // visited
                                  .Ret<S32>()    // visited count
                                  .Ret<Flags>()  // overflow
                                  .Ret<S32>()    // too long
                                  .Ret<S32>()    // num skipped
                                  .Attr<int64_t>("program")
                                  .Attr<int64_t>("max_skipped_states")
                                  .Attr<bool>("end_proof_action")
                                  .Attr<bool>("prune_visited")
                                  .Attr<bool>("clear_visited"));

}  // namespace phalanx::proofs
