// A graph of triples with the edges of each entity in both directions. The directed relation 2r is relation r
// from head to tail, and 2r + 1 is its inverse. Triples whose head equals their tail are not edges, because
// no rule uses them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace phalanx::kg {

struct Edge {
  int32_t relation, to;
};

// The edges of one entity with the same directed relation, as a range of edges.
struct EdgeRun {
  int32_t relation;
  int64_t begin, end;
};

class TripleGraph {
 public:
  // `triples` are rows (relation, head, tail). Throws std::invalid_argument if one is out of range.
  TripleGraph(const int32_t* triples, int64_t count, int32_t num_entities, int32_t num_relations);

  // Returns the edges of an entity with a directed relation, or null if there are none.
  const EdgeRun* find_run(int32_t entity, int32_t relation) const {
    const EdgeRun* first = runs.data() + run_start[entity];
    const EdgeRun* last = runs.data() + run_start[entity + 1];
    const EdgeRun* found = std::lower_bound(
        first, last, relation,
        [](const EdgeRun& run, int32_t target_relation) { return run.relation < target_relation; });
    return found != last && found->relation == relation ? found : nullptr;
  }
  bool has_edge(int32_t entity, int32_t relation, int32_t to) const {
    const EdgeRun* found = find_run(entity, relation);
    return found != nullptr && std::binary_search(&targets[found->begin], &targets[found->end], to);
  }

  // Returns whether (entity, relation, entity) is a triple.
  bool has_loop(int32_t entity, int32_t relation) const {
    return std::binary_search(loops.begin(), loops.end(), std::make_pair(entity, relation / 2));
  }

  int32_t num_entities, num_directed_relations;
  std::vector<std::pair<int32_t, int32_t>>
      loops;                        // entity and relation of triples whose head equals their tail, sorted
  std::vector<int64_t> edge_start;  // [num_entities + 1]: first edge of each entity
  std::vector<int32_t> targets;     // targets of edges, sorted by entity, relation and target
  std::vector<Edge> by_target;      // the same edges, sorted by entity, target and relation
  std::vector<EdgeRun> runs;
  std::vector<int64_t> run_start;    // [num_entities + 1]: first run of each entity
  std::vector<int64_t> inverse_run;  // for each edge, the run of its target that contains the inverse edge
  std::vector<std::vector<int32_t>>
      subjects;  // for each directed relation, the entities with such an edge, ascending
};

}  // namespace phalanx::kg
