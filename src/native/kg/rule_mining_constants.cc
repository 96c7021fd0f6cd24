#include <algorithm>
#include <tuple>

#include "kg/rules.h"

namespace phalanx::mining {
namespace {

struct Counter {
  explicit Counter(const Graph& graph) : runs(graph.runs.size(), 0), relations(graph.directed, 0) {}
  std::vector<int32_t> runs, relations;  // how many X of the head have this body
  std::vector<int64_t> runs_seen;
  std::vector<int32_t> relations_seen;
};

}  // namespace

std::vector<MinedRule> mine_constants(const Graph& graph, int32_t begin, int32_t end, int64_t least_support,
                                      double least_confidence, double pessimism, int64_t widest, bool dangling,
                                      bool pca, int32_t threads) {
  const Graph& g = graph;
  std::vector<Counter> counters(threads, Counter(g));
  std::vector<std::vector<MinedRule>> found(end - begin);
  each(threads, end - begin, [&](int32_t thread, int64_t item) {
    Counter& counter = counters[thread];
    const int32_t c = begin + static_cast<int32_t>(item);
    std::vector<int32_t> lone(g.directed, 0);
    // By relation: how many have c for their only neighbor there, so that it cannot stand for another.
    for (int64_t r = g.run_start[c]; dangling && r < g.run_start[c + 1]; ++r) {
      const int32_t relation = g.runs[r].relation ^ 1;
      for (int64_t i = g.runs[r].begin; i < g.runs[r].end; ++i) {
        const Run& back = g.runs[g.twin[i]];
        lone[relation] += back.end - back.begin == 1;
      }
    }
    for (int64_t r = g.run_start[c]; r < g.run_start[c + 1]; ++r) {
      const Run& run = g.runs[r];
      const int32_t head = run.relation ^ 1;
      if (run.end - run.begin < least_support) continue;
      for (int64_t i = run.begin; i < run.end; ++i) {
        const int32_t x = g.targets[i];
        if (g.start[x + 1] - g.start[x] > widest) continue;
        for (int64_t k = g.run_start[x]; k < g.run_start[x + 1]; ++k) {
          const Run& body = g.runs[k];
          int64_t others = body.end - body.begin;
          for (int64_t e = body.begin; e < body.end; ++e) {
            const int64_t feature = g.twin[e];
            if (counter.runs[feature]++ == 0) counter.runs_seen.push_back(feature);
            others -= g.targets[e] == c;
          }
          if (dangling && others > 0 && counter.relations[body.relation]++ == 0)
            counter.relations_seen.push_back(body.relation);
        }
      }
      const auto emit = [&](int32_t relation, int32_t constant, int64_t support, int64_t size, int64_t known) {
        if (support < least_support || support < least_confidence * (size + pessimism)) return;
        MinedRule rule;
        rule.head = head;
        rule.body.fill(-1);
        rule.body[0] = relation;
        rule.head_constant = c, rule.body_constant = constant;
        rule.support = support, rule.body_size = size, rule.known_size = known;
        found[item].push_back(rule);
      };
      for (int64_t feature : counter.runs_seen) {
        const Run& body = g.runs[feature];
        const int64_t support = counter.runs[feature];
        counter.runs[feature] = 0;
        const int64_t size = body.end - body.begin;
        // c itself is no answer to what it has with others.
        if (support < least_support || support < least_confidence * (size - 1 + pessimism)) continue;
        if (feature == r) continue;
        const int32_t d = static_cast<int32_t>(
            std::upper_bound(g.run_start.begin(), g.run_start.end(), feature) - g.run_start.begin() - 1);
        int64_t known = pca ? 0 : -1;
        for (int64_t e = body.begin; pca && e < body.end; ++e)
          known += g.targets[e] != c && g.run(g.targets[e], head) != nullptr;
        emit(body.relation ^ 1, d, support, size - g.has(d, body.relation, c), known);
      }
      counter.runs_seen.clear();
      for (int32_t relation : counter.relations_seen) {
        const int64_t support = counter.relations[relation];
        counter.relations[relation] = 0;
        const int64_t size = static_cast<int64_t>(g.subjects[relation].size()) - lone[relation] -
                             (g.run(c, relation) != nullptr);
        if (support < least_support || support < least_confidence * (size + pessimism)) continue;
        int64_t known = pca ? 0 : -1;
        for (int32_t x : g.subjects[relation]) {
          if (!pca) break;
          if (x == c || g.run(x, head) == nullptr) continue;
          const Run* own = g.run(x, relation);
          known += own->end - own->begin > 1 || g.targets[own->begin] != c;
        }
        emit(relation, -1, support, size, known);
      }
      counter.relations_seen.clear();
    }
  });
  std::vector<MinedRule> all;
  for (auto& some : found) {
    // By what the rule says, since the order of the counters is that of the edges.
    std::sort(some.begin(), some.end(), [](const MinedRule& a, const MinedRule& b) {
      return std::tie(a.head, a.body, a.body_constant) < std::tie(b.head, b.body, b.body_constant);
    });
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace phalanx::mining
