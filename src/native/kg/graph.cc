#include "kg/graph.h"

#include <stdexcept>
#include <tuple>

namespace phalanx::mining {

Graph::Graph(const int32_t* triples, int64_t count, int32_t entities, int32_t relations)
    : entities(entities), directed(0) {
  constexpr int32_t most = 1 << 28;
  if (entities < 0 || entities > most || relations < 0 || relations > most)
    throw std::invalid_argument("a graph has at most 2^28 entities and relations");
  directed = 2 * relations;
  start.assign(entities + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t relation = triples[3 * i], head = triples[3 * i + 1], tail = triples[3 * i + 2];
    if (relation < 0 || relation >= relations || head < 0 || head >= entities || tail < 0 || tail >= entities)
      throw std::invalid_argument("a triple is outside the graph");
    if (head == tail) {
      loops.push_back({head, relation});
      continue;
    }
    ++start[head + 1], ++start[tail + 1];
  }
  std::sort(loops.begin(), loops.end());
  for (int32_t e = 0; e < entities; ++e) start[e + 1] += start[e];
  std::vector<Edge> edges(start[entities]);
  std::vector<int64_t> at(start.begin(), start.end() - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t relation = triples[3 * i], head = triples[3 * i + 1], tail = triples[3 * i + 2];
    if (head == tail) continue;
    edges[at[head]++] = {2 * relation, tail};
    edges[at[tail]++] = {2 * relation + 1, head};
  }
  // Sorted and each once, entity by entity, moved down over what was there twice.
  int64_t kept = 0;
  for (int32_t e = 0; e < entities; ++e) {
    auto first = edges.begin() + start[e], last = edges.begin() + start[e + 1];
    std::sort(first, last, [](const Edge& a, const Edge& b) {
      return std::tie(a.relation, a.to) < std::tie(b.relation, b.to);
    });
    last = std::unique(first, last,
                       [](const Edge& a, const Edge& b) { return a.relation == b.relation && a.to == b.to; });
    start[e] = kept;
    for (auto edge = first; edge != last; ++edge) edges[kept++] = *edge;
  }
  start[entities] = kept;
  edges.resize(kept);
  by_target = edges;
  targets.resize(kept);
  run_start.assign(entities + 1, 0);
  subjects.resize(directed);
  for (int32_t e = 0; e < entities; ++e) {
    run_start[e] = static_cast<int64_t>(runs.size());
    for (int64_t i = start[e]; i < start[e + 1]; ++i) {
      targets[i] = edges[i].to;
      if (i == start[e] || edges[i].relation != runs.back().relation) {
        runs.push_back({edges[i].relation, i, i});
        subjects[edges[i].relation].push_back(e);
      }
      ++runs.back().end;
    }
    std::sort(by_target.begin() + start[e], by_target.begin() + start[e + 1], [](const Edge& a, const Edge& b) {
      return std::tie(a.to, a.relation) < std::tie(b.to, b.relation);
    });
  }
  run_start[entities] = static_cast<int64_t>(runs.size());
  twin.resize(kept);
  for (int64_t i = 0; i < kept; ++i) twin[i] = run(edges[i].to, edges[i].relation ^ 1) - runs.data();
}

}  // namespace phalanx::mining
