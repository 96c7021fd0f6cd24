// Rules applied to queries (entity, directed relation, ?): which rules predict which answers, how the known
// answer ranks among all entities, and weights that are learned to rank it first.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kg/rules.h"

namespace phalanx::mining {

struct Question {
  int32_t entity, relation;  // directed
};

// What is predicted for one question: for each answer the rules that do, the first (most confident) first.
struct Predictions {
  std::vector<int32_t> answers;
  std::vector<int64_t> begins;  // answers + 1
  std::vector<int32_t> rules;
};

enum class Aggregation { maximum, sum };

class Applier {
 public:
  // Rules in the order of their confidence, which is what `level` numbers: equal ones have equal levels.
  Applier(std::shared_ptr<const Graph> graph, std::vector<MinedRule> rules, std::vector<int32_t> levels,
          int64_t limit, int32_t threads);

  // For each question, and each of its targets (a range of `targets`): how many entities rank above the
  // target, and how many others level with it, without those that are known to be true in `known`.
  void rank(const Graph& known, const std::vector<Question>& questions, const int64_t* begins,
            const int32_t* targets, Aggregation how, const double* weights, int64_t* above, int64_t* level) const;
  // For each question and entity the sum of the weights of the rules that predict it; for `maximum` each rule
  // counts a hundredth of the one before it.
  void scores(const std::vector<Question>& questions, Aggregation how, const double* weights, float* table) const;
  // Changes the weights (two for each rule: of questions forth and back) so that the facts of the graph rank
  // first, by gradient descent on the softmax loss; held near where they begin by `decay`.
  void learn(double* weights, int32_t relation, int64_t most, int64_t negatives, int32_t epochs, double rate,
             double decay, uint64_t seed) const;
  Predictions predict(Question question) const;
  const Graph& graph() const { return *graph_; }
  int32_t threads() const { return threads_; }
  size_t num_rules() const { return rules_.size(); }

 private:
  struct Gatherer;
  struct Lookup {  // rules by a number
    std::vector<int64_t> keys;
    std::vector<int32_t> rules;
    std::pair<const int32_t*, const int32_t*> find(int64_t key) const;
  };
  void gather(Question question, Gatherer& gatherer) const;
  static int64_t weight_at(int32_t rule, int32_t relation) { return 2 * static_cast<int64_t>(rule) + relation % 2; }

  std::shared_ptr<const Graph> graph_;
  std::vector<MinedRule> rules_;
  std::vector<int32_t> levels_;
  const int64_t limit_;
  const int32_t threads_;
  std::vector<Trie> tries_;                         // by directed relation
  std::vector<std::vector<int32_t>> trie_rules_;    // by directed relation and body
  std::vector<Lookup> by_body_, by_loose_body_, by_constant_;  // by directed relation
};

}  // namespace phalanx::mining
