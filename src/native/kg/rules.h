// Rules from triples: path rules that close a triangle, a square or more, and rules with constants.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kg/graph.h"
#include "kg/rule_walk.h"

namespace phalanx::mining {

// A path rule `head(X,Y) <- body`, head forth; or with constants, the head directed: `head(X,c) <- b(X,d)`,
// and `head(X,c) <- b(X,Y)` where d is -1.
struct MinedRule {
  int32_t head;
  Body body;
  int32_t head_constant = -1, body_constant = -1;
  int64_t support = 0;  // predictions that are facts
  int64_t body_size = 0;  // predictions
  int64_t known_size = 0;  // predictions whose X has the head's relation at all: for PCA confidence
};

// Path rules in rounds. First `discover`: which bodies lead from the head to the tail of triples. Then
// `measure`: how often what a body predicts is a fact, over entities in an order that depends on the seed
// alone. A round is done whole or not at all, so results depend on the number of rounds only.
class PathMiner {
 public:
  PathMiner(std::shared_ptr<const Graph> graph, int32_t length, int64_t fan, int64_t enough, int64_t limit,
            uint64_t seed, int32_t threads);
  ~PathMiner();
  // Looks at the next so many triples; false when none is left.
  bool discover(int64_t triples);
  // Takes what was found at least so often, the most frequent first, for rules to measure.
  int64_t choose(int64_t least, int64_t most);
  // Measures from the next so many entities; false when nothing is left to measure.
  bool measure(int64_t entities);
  std::vector<MinedRule> rules(int64_t least_support) const;

 private:
  struct Key {
    int32_t head;
    Body body;
    bool operator==(const Key& other) const { return head == other.head && body == other.body; }
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t value = key.head;
      for (int32_t relation : key.body) value = mixed(value ^ (static_cast<uint64_t>(relation) << 17));
      return value;
    }
  };
  using Found = std::unordered_map<Key, int64_t, Hash>;
  struct Seeker;
  struct Tally;
  struct Triple {
    int32_t head, relation, tail;
  };
  void seek(const Triple& triple, Seeker& seeker) const;
  void go(const Triple& triple, Seeker& seeker, int32_t depth) const;
  Key canonical(int32_t head, const Body& body, int32_t length) const;

  std::shared_ptr<const Graph> graph_;
  const int32_t length_;
  const int64_t fan_, enough_, limit_;
  const uint64_t seed_;
  const int32_t threads_;
  std::vector<Triple> triples_;
  std::vector<int32_t> order_;
  size_t next_triple_ = 0, next_entity_ = 0;
  std::vector<std::unique_ptr<Seeker>> seekers_;  // one for each thread, as the tallies
  std::vector<std::unique_ptr<Tally>> tallies_;
  std::unique_ptr<Trie> trie_;
  std::vector<Body> bodies_;
  std::vector<int64_t> body_rules_;  // bodies + 1: where the rules of each begin
  std::vector<int32_t> heads_;       // of the rules, directed
  std::vector<int64_t> pairs_;
};

// Rules with constants whose heads are `head(X,c)` for the entities c from `begin` to `end`. Without `pca`
// their `known_size` is not counted, which takes most of the time, and is -1.
std::vector<MinedRule> mine_constants(const Graph& graph, int32_t begin, int32_t end, int64_t least_support,
                                      double least_confidence, double pessimism, int64_t widest, bool dangling,
                                      bool pca, int32_t threads);

void bind_mining(nanobind::module_& module);

}  // namespace phalanx::mining
