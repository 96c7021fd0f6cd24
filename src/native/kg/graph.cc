#include "kg/graph.h"

#include <stdexcept>
#include <tuple>

namespace phalanx::kg {

TripleGraph::TripleGraph(const int32_t* triples, int64_t count, int32_t num_entities, int32_t num_relations)
    : num_entities(num_entities), num_directed_relations(0) {
  constexpr int32_t max_size = 1 << 28;
  if (num_entities < 0 || num_entities > max_size || num_relations < 0 || num_relations > max_size)
    throw std::invalid_argument("a graph has at most 2^28 entities and num_relations");
  num_directed_relations = 2 * num_relations;
  edge_start.assign(num_entities + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t relation = triples[3 * i], head = triples[3 * i + 1], tail = triples[3 * i + 2];
    if (relation < 0 || relation >= num_relations || head < 0 || head >= num_entities || tail < 0 ||
        tail >= num_entities)
      throw std::invalid_argument("a triple has an unknown entity or relation");
    if (head == tail) {
      loops.push_back({head, relation});
      continue;
    }
    ++edge_start[head + 1], ++edge_start[tail + 1];
  }
  std::sort(loops.begin(), loops.end());
  for (int32_t e = 0; e < num_entities; ++e) edge_start[e + 1] += edge_start[e];
  std::vector<Edge> edges(edge_start[num_entities]);
  std::vector<int64_t> next(edge_start.begin(), edge_start.end() - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t relation = triples[3 * i], head = triples[3 * i + 1], tail = triples[3 * i + 2];
    if (head == tail) continue;
    edges[next[head]++] = {2 * relation, tail};
    edges[next[tail]++] = {2 * relation + 1, head};
  }
  // Sort and deduplicate the edges of each entity, and close the gaps.
  int64_t num_kept = 0;
  for (int32_t e = 0; e < num_entities; ++e) {
    auto first = edges.begin() + edge_start[e], last = edges.begin() + edge_start[e + 1];
    std::sort(first, last, [](const Edge& a, const Edge& b) {
      return std::tie(a.relation, a.to) < std::tie(b.relation, b.to);
    });
    last = std::unique(first, last,
                       [](const Edge& a, const Edge& b) { return a.relation == b.relation && a.to == b.to; });
    edge_start[e] = num_kept;
    for (auto edge = first; edge != last; ++edge) edges[num_kept++] = *edge;
  }
  edge_start[num_entities] = num_kept;
  edges.resize(num_kept);
  by_target = edges;
  targets.resize(num_kept);
  run_start.assign(num_entities + 1, 0);
  subjects.resize(num_directed_relations);
  for (int32_t e = 0; e < num_entities; ++e) {
    run_start[e] = static_cast<int64_t>(runs.size());
    for (int64_t i = edge_start[e]; i < edge_start[e + 1]; ++i) {
      targets[i] = edges[i].to;
      if (i == edge_start[e] || edges[i].relation != runs.back().relation) {
        runs.push_back({edges[i].relation, i, i});
        subjects[edges[i].relation].push_back(e);
      }
      ++runs.back().end;
    }
    std::sort(
        by_target.begin() + edge_start[e], by_target.begin() + edge_start[e + 1],
        [](const Edge& a, const Edge& b) { return std::tie(a.to, a.relation) < std::tie(b.to, b.relation); });
  }
  run_start[num_entities] = static_cast<int64_t>(runs.size());
  inverse_run.resize(num_kept);
  for (int64_t i = 0; i < num_kept; ++i)
    inverse_run[i] = find_run(edges[i].to, edges[i].relation ^ 1) - runs.data();
}

}  // namespace phalanx::kg
