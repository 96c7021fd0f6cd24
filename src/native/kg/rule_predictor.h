// Answers queries (entity, directed relation, ?) with rules: predictions with their rules, ranks of known
// answers, scores, and rule weights that are fitted to the graph.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kg/rules.h"

namespace phalanx::kg {

struct Query {
  int32_t entity, relation;
};

// For each answer, the rules that predict it in the order of their confidence, the most confident first.
struct Predictions {
  std::vector<int32_t> answers;
  std::vector<int64_t> begins;  // [answers + 1]: first rule of each answer
  std::vector<int32_t> rules;
};

// `maxplus` compares the most confident rules of two answers, in case of a tie the next ones, and so on.
// `sum` adds the weights of all rules (noisy-or, if the weights are -log(1 - confidence)).
enum class Aggregation { maxplus, sum };

class RulePredictor {
 public:
  // `rules` are sorted by confidence; rules of equal confidence have equal `confidence_ranks`.
  RulePredictor(std::shared_ptr<const TripleGraph> graph, std::vector<MinedRule> rules,
                std::vector<int32_t> confidence_ranks, int64_t max_paths_per_entity, int32_t num_threads);

  // For each query and each of its targets (a range of `targets`), counts the entities that score higher than
  // the target and the other entities with the same score. Answers in `known` are not counted.
  void count_ranks(const TripleGraph& known, const std::vector<Query>& queries, const int64_t* begins,
                   const int32_t* targets, Aggregation aggregation, const double* weights,
                   int64_t* num_higher, int64_t* num_tied) const;
  // Writes the score of every entity for each query. For `maxplus`, each rule has a hundredth of the
  // influence of the one before it.
  void score(const std::vector<Query>& queries, Aggregation aggregation, const double* weights,
             float* score_table) const;
  // Fits the weights of one relation (two per rule: for queries in each direction) to the edges of the graph
  // by minimizing a softmax loss with Adagrad, regularized towards the initial weights. `max_negatives`
  // limits the wrong answers per example.
  void fit_weights(double* weights, int32_t relation, int64_t max_examples, int64_t max_negatives,
                   int32_t num_epochs, double learning_rate, double regularization, uint64_t seed) const;
  Predictions predict(Query query) const;
  const TripleGraph& graph() const { return *graph_; }
  int32_t num_threads() const { return num_threads_; }
  size_t num_rules() const { return rules_.size(); }

 private:
  struct Workspace;
  // Rules by an integer key.
  struct Lookup {
    std::vector<int64_t> keys;
    std::vector<int32_t> rules;
    std::pair<const int32_t*, const int32_t*> find(int64_t key) const;
  };
  void collect_predictions(Query query, Workspace& workspace) const;
  static int64_t weight_index(int32_t rule, int32_t relation) {
    return 2 * static_cast<int64_t>(rule) + relation % 2;
  }

  std::shared_ptr<const TripleGraph> graph_;
  std::vector<MinedRule> rules_;
  std::vector<int32_t> confidence_ranks_;
  const int64_t max_paths_per_entity_;
  const int32_t num_threads_;
  std::vector<Trie> tries_;  // for each directed relation, like the members below
  std::vector<std::vector<int32_t>> trie_rules_;
  std::vector<Lookup> by_body_, by_dangling_body_, by_constant_;
};

}  // namespace phalanx::kg
