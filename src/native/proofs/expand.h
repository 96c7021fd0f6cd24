// Successors of proof states. A state is a list of goals that remain to be proved; resolving the first goal
// with a fact or a rule gives a successor.
#pragma once

#include <cstdint>

#include "proofs/program.h"

namespace phalanx::proofs {

// A batch of states. A goal list has `max_goals` rows of a predicate and terms, followed by zeros.
struct ExpandCall {
  const Program* program;
  int64_t max_goals, max_successors, max_visited, max_skipped_states;
  bool end_proof_action, prune_visited, clear_visited;

  const bool* active;         // [batch]: states to expand; the others stay as they are
  const int32_t* query;       // [batch, 1 + arity]
  const bool* exclude_query;  // [batch]: whether the query itself must not be used as a fact

  int32_t* goals;          // [batch, max_goals, 1 + arity]
  int32_t* successors;     // [batch, max_successors, max_goals, 1 + arity]
  int32_t* count;          // [batch]: number of successors
  int32_t* visited;        // [batch, max_visited, max_goals, 1 + arity]: states before this one
  int32_t* visited_count;  // [batch]
  bool* overflow;          // [batch]: whether there are more successors than fit
  int32_t* num_too_long;   // [batch]: number of successors that were dropped because they have too many goals
  int32_t* num_skipped;    // [batch]: number of steps that were taken because there was only one successor
};

// Expands the states [begin, end).
void expand(const ExpandCall& call, int64_t begin, int64_t end);

}  // namespace phalanx::proofs
