// The successors of goal lists, for a stretch of a batch: what `phalanx.proofs.resolution.expand` says.
#pragma once

#include <cstdint>

#include "proofs/program.h"

namespace phalanx::proofs {

// A goal list is `atoms` rows of a predicate and the program's number of terms, packed to the front.
struct ExpandCall {
  const Program* program;
  int64_t atoms, states, memory, unary_limit;
  bool end_proof_action, memory_pruning, restart;

  const bool* where;
  const int32_t* query;
  const bool* excluded;

  int32_t* goals;
  int32_t* successors;
  int32_t* count;
  int32_t* visited;
  int32_t* visited_count;
  bool* overflow;
  int32_t* too_long;
  int32_t* skipped;
};

void expand(const ExpandCall& call, int64_t begin, int64_t end);

}  // namespace phalanx::proofs
