// Rules over triples: path rules `head(X, Y) <- body path from X to Y`, and rules with constants.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/random.h"
#include "kg/graph.h"

namespace phalanx::kg {

constexpr int32_t kMaxPathLength = 5;
using Body = std::array<int32_t, kMaxPathLength>;  // directed relations, padded with -1

// A path rule, whose head is not inverted; or a rule with constants, whose head and body are directed:
// `head(X, c) <- body(X, d)`, or `head(X, c) <- body(X, Y)` if `body_constant` is -1 (a dangling rule).
struct MinedRule {
  int32_t head;
  Body body;
  int32_t head_constant = -1, body_constant = -1;
  int64_t support = 0;  // number of predictions that are triples
  int64_t num_predictions = 0;
  int64_t num_known_predictions = 0;  // predictions whose X has the head relation at all, for PCA confidence
};

// A prefix of rule bodies.
struct TrieNode {
  int32_t relation = -1;
  int32_t children = 0, children_end = 0;  // range of nodes, sorted by relation
  int32_t body = -1;                       // index of the body that ends here, or -1
  bool alive = true;                       // whether a body here or below is still needed
};

class Trie {
 public:
  // `bodies` must be sorted and unique.
  explicit Trie(const std::vector<Body>& bodies);
  // Skips bodies that are not `wanted` from now on.
  void set_alive(const std::vector<char>& wanted);
  std::vector<TrieNode> nodes;
};

// Finds the ends of all paths from an entity that follow a body. A path does not visit an entity twice, so it
// never uses the edge that it is to predict.
class Walker {
 public:
  Walker(const TripleGraph& graph, int64_t max_paths_per_entity)
      : graph_(graph),
        max_paths_per_entity_(max_paths_per_entity),
        reached_(graph.num_entities, 0),
        present_(graph.num_directed_relations, 0) {}

  // Calls `visit(body, ends)` with the distinct ends of each body. Only the first `max_paths_per_entity`
  // paths of each node of the trie are extended.
  template <typename Visit>
  void walk(const Trie& trie, int32_t from, const Visit& visit) {
    paths_[0].assign(1, from);
    descend(trie, 0, 0, visit);
  }

 private:
  template <typename Visit>
  void descend(const Trie& trie, int32_t number, int32_t depth, const Visit& visit) {
    const TrieNode& node = trie.nodes[number];
    const int32_t width = depth + 1;
    const int64_t count = static_cast<int64_t>(paths_[depth].size()) / width;
    const int64_t mark = ++present_stamp_;
    for (int64_t p = 0; p < count; ++p) {
      const int32_t last = paths_[depth][p * width + depth];
      for (int64_t r = graph_.run_start[last]; r < graph_.run_start[last + 1]; ++r)
        present_[graph_.runs[r].relation] = mark;
    }
    // Deeper levels overwrite the marks, so the children are collected first.
    std::vector<int32_t>& found = present_children_[depth];
    found.clear();
    for (int32_t c = node.children; c < node.children_end; ++c)
      if (trie.nodes[c].alive && present_[trie.nodes[c].relation] == mark) found.push_back(c);
    for (size_t i = 0; i < found.size(); ++i) step(trie, found[i], depth, count, visit);
  }

  template <typename Visit>
  void step(const Trie& trie, int32_t number, int32_t depth, int64_t count, const Visit& visit) {
    const TrieNode& node = trie.nodes[number];
    const int32_t width = depth + 1;
    const bool has_children = node.children != node.children_end;
    std::vector<int32_t>& longer = paths_[depth + 1];
    longer.clear();
    ends_.clear();
    if (++stamp_ == 0) {
      std::fill(reached_.begin(), reached_.end(), 0);
      stamp_ = 1;
    }
    int64_t stored = 0;
    for (int64_t p = 0; p < count && stored < max_paths_per_entity_; ++p) {
      const int32_t* path = &paths_[depth][p * width];
      const EdgeRun* run = graph_.find_run(path[depth], node.relation);
      if (run == nullptr) continue;
      for (int64_t i = run->begin; i < run->end && stored < max_paths_per_entity_; ++i) {
        const int32_t to = graph_.targets[i];
        bool revisited = false;
        for (int32_t d = 0; d < depth; ++d) revisited |= path[d] == to;
        if (revisited) continue;
        ++stored;
        if (has_children) {
          longer.insert(longer.end(), path, path + width);
          longer.push_back(to);
        }
        if (node.body >= 0 && reached_[to] != stamp_) {
          reached_[to] = stamp_;
          ends_.push_back(to);
        }
      }
    }
    if (!ends_.empty()) visit(node.body, ends_);
    if (has_children && !longer.empty()) descend(trie, number, depth + 1, visit);
  }

  const TripleGraph& graph_;
  const int64_t max_paths_per_entity_;
  std::vector<uint32_t> reached_;
  std::vector<int64_t> present_;
  std::vector<int32_t> ends_;
  uint32_t stamp_ = 0;
  int64_t present_stamp_ = 0;
  std::array<std::vector<int32_t>, kMaxPathLength + 1> paths_, present_children_;
};

// Mines path rules in rounds: `find_bodies` collects bodies that connect the head and the tail of triples,
// `select_rules` keeps the most frequent ones, and `count_predictions` counts how often their predictions are
// triples. A round is completed or not started, so results depend only on the number of rounds and the seed,
// not on time or threads.
class PathRuleMiner {
 public:
  PathRuleMiner(std::shared_ptr<const TripleGraph> graph, int32_t max_length, int64_t max_edges_per_step,
                int64_t max_predictions, int64_t max_paths_per_entity, uint64_t seed, int32_t num_threads);
  ~PathRuleMiner();
  // Processes the next triples; returns false when none are left.
  bool find_bodies(int64_t num_triples);
  // Selects the most frequent rules that were found at least `min_count` times and returns their number.
  int64_t select_rules(int64_t min_count, int64_t max_rules);
  // Counts the predictions for the next entities; returns false when nothing is left to count. A body with at
  // least `max_predictions` predictions is not counted any further.
  bool count_predictions(int64_t num_entities);
  std::vector<MinedRule> rules(int64_t min_support) const;

 private:
  struct Key {
    int32_t head;
    Body body;
    bool operator==(const Key& other) const { return head == other.head && body == other.body; }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      uint64_t value = key.head;
      for (int32_t relation : key.body) value = splitmix64(value ^ (static_cast<uint64_t>(relation) << 17));
      return value;
    }
  };
  using BodyCounts = std::unordered_map<Key, int64_t, KeyHash>;
  struct PathSearch;
  struct RuleStatistics;
  struct Triple {
    int32_t head, relation, tail;
  };
  void find_paths(const Triple& triple, PathSearch& search) const;
  void extend_path(const Triple& triple, PathSearch& search, int32_t depth) const;
  Key canonical_key(int32_t head, const Body& body, int32_t length) const;

  std::shared_ptr<const TripleGraph> graph_;
  const int32_t max_length_;
  const int64_t max_edges_per_step_, max_predictions_, max_paths_per_entity_;
  const uint64_t seed_;
  const int32_t num_threads_;
  std::vector<Triple> triples_;
  std::vector<int32_t> order_;
  size_t next_triple_ = 0, next_entity_ = 0;
  std::vector<std::unique_ptr<PathSearch>> searches_;  // one per worker, like the counts
  std::vector<std::unique_ptr<RuleStatistics>> counts_;
  std::unique_ptr<Trie> trie_;
  std::vector<Body> bodies_;
  std::vector<int64_t> body_rules_;  // [bodies + 1]: first rule of each body
  std::vector<int32_t> heads_;       // directed head of each rule
  std::vector<int64_t> num_predictions_;
};

// Mines rules with heads `head(X, c)` for the entities c in [begin, end). Entities X with more than
// `max_constant_rule_degree` edges are skipped. Without `pca_confidence`, `num_known_predictions`, which
// takes most of the time, is -1.
std::vector<MinedRule> mine_constant_rules(const TripleGraph& graph, int32_t begin, int32_t end,
                                           int64_t min_support, double min_confidence,
                                           double confidence_smoothing, int64_t max_constant_rule_degree,
                                           bool dangling_rules, bool pca_confidence, int32_t num_threads);

}  // namespace phalanx::kg
