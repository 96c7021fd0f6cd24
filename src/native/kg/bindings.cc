// Python classes and functions for rule mining, prediction with rules, and path networks. Python code
// validates the arguments; the checks here only prevent reads and writes outside of arrays.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/parallel.h"
#include "kg/path_network.h"
#include "kg/rule_predictor.h"
#include "module.h"

namespace nb = nanobind;

namespace phalanx {
namespace kg {
namespace {

constexpr int32_t kRuleColumns =
    kMaxPathLength + 3;  // head, body, constant of the head, constant of the body
constexpr int64_t kMaxLimit = int64_t{1} << 40;

using path_network::PathNetwork;
template <typename T>
using InputVector = InputArray<T, nb::ndim<1>>;
template <typename T>
using OutputVector = OutputArray<T, nb::ndim<1>>;
using Triples = InputArray<int32_t, nb::shape<-1, 3>>;
using QueryRows = InputArray<int32_t, nb::shape<-1, 2>>;
using RuleRows = InputArray<int32_t, nb::shape<-1, kRuleColumns>>;
using RuleTable =
    std::tuple<NewArray<int32_t, nb::shape<-1, kRuleColumns>>, NewArray<int64_t, nb::shape<-1, 3>>>;

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

void check_threads(int32_t num_threads) {
  require(num_threads >= 1 && num_threads <= 1024, "num_threads must be 1 to 1024");
}

// Returns rules as rows of integers, and their counts: support, predictions, predictions with a known X.
RuleTable to_arrays(const std::vector<MinedRule>& rules) {
  std::vector<int32_t> rows;
  std::vector<int64_t> counts;
  rows.reserve(rules.size() * kRuleColumns), counts.reserve(rules.size() * 3);
  for (const MinedRule& rule : rules) {
    rows.push_back(rule.head);
    rows.insert(rows.end(), rule.body.begin(), rule.body.end());
    rows.insert(rows.end(), {rule.head_constant, rule.body_constant});
    counts.insert(counts.end(), {rule.support, rule.num_predictions, rule.num_known_predictions});
  }
  return {to_numpy<nb::shape<-1, kRuleColumns>>(std::move(rows), {rules.size(), kRuleColumns}),
          to_numpy<nb::shape<-1, 3>>(std::move(counts), {rules.size(), 3})};
}

std::shared_ptr<TripleGraph> create_graph(Triples triples, int32_t num_entities, int32_t num_relations) {
  nb::gil_scoped_release unlocked;
  return std::make_shared<TripleGraph>(triples.data(), triples.shape(0), num_entities, num_relations);
}

std::shared_ptr<PathRuleMiner> create_miner(std::shared_ptr<TripleGraph> graph, int32_t max_length,
                                            int64_t max_edges_per_step, int64_t max_predictions,
                                            int64_t max_paths_per_entity, uint64_t seed,
                                            int32_t num_threads) {
  require(max_length >= 1 && max_length <= kMaxPathLength, "max_length must be 1 to 5");
  require(max_edges_per_step >= 1 && max_edges_per_step <= kMaxLimit, "max_edges_per_step must be 1 to 2^40");
  check_threads(num_threads);
  nb::gil_scoped_release unlocked;
  return std::make_shared<PathRuleMiner>(graph, max_length, max_edges_per_step, max_predictions,
                                         max_paths_per_entity, seed, num_threads);
}

RuleTable mine_rules_with_constants(std::shared_ptr<TripleGraph> graph, int32_t begin, int32_t end,
                                    int64_t min_support, double min_confidence, double confidence_smoothing,
                                    int64_t max_constant_rule_degree, bool dangling_rules,
                                    bool pca_confidence, int32_t num_threads) {
  check_threads(num_threads);
  end = std::min(end, graph->num_entities);
  require(begin >= 0 && begin <= end, "begin and end must be a range of entities");
  std::vector<MinedRule> rules;
  {
    nb::gil_scoped_release unlocked;
    rules = mine_constant_rules(*graph, begin, end, min_support, min_confidence, confidence_smoothing,
                                max_constant_rule_degree, dangling_rules, pca_confidence, num_threads);
  }
  return to_arrays(rules);
}

std::shared_ptr<RulePredictor> create_predictor(std::shared_ptr<TripleGraph> graph, RuleRows rows,
                                                InputVector<int32_t> confidence_ranks,
                                                int64_t max_paths_per_entity, int32_t num_threads) {
  require(rows.shape(0) == confidence_ranks.shape(0), "rules and confidence_ranks must have the same length");
  check_threads(num_threads);
  std::vector<MinedRule> rules(rows.shape(0));
  for (size_t i = 0; i < rules.size(); ++i) {
    const int32_t* row = rows.data() + i * kRuleColumns;
    rules[i].head = row[0];
    std::copy(row + 1, row + 1 + kMaxPathLength, rules[i].body.begin());
    rules[i].head_constant = row[kMaxPathLength + 1], rules[i].body_constant = row[kMaxPathLength + 2];
    for (int32_t k = 0; k <= kMaxPathLength; ++k)
      require(row[k] < graph->num_directed_relations && row[k] >= (k < 2 ? 0 : -1),
              "a rule has an unknown relation");
    for (int32_t k = 2; k < kMaxPathLength; ++k)
      require(row[k] >= 0 || row[k + 1] < 0, "the body of a rule has a gap");
    for (int32_t k = kMaxPathLength + 1; k < kRuleColumns; ++k)
      require(row[k] < graph->num_entities, "a rule has an unknown constant");
  }
  std::vector<int32_t> ranks(confidence_ranks.data(), confidence_ranks.data() + confidence_ranks.shape(0));
  nb::gil_scoped_release unlocked;
  return std::make_shared<RulePredictor>(graph, std::move(rules), std::move(ranks), max_paths_per_entity,
                                         num_threads);
}

void check_query(const TripleGraph& graph, const Query& query) {
  require(query.entity >= 0 && query.entity < graph.num_entities && query.relation >= 0 &&
              query.relation < graph.num_directed_relations,
          "a query has an unknown entity or relation");
}

std::vector<Query> to_queries(const TripleGraph& graph, const QueryRows& rows) {
  std::vector<Query> queries(rows.shape(0));
  for (size_t i = 0; i < queries.size(); ++i) {
    queries[i] = {rows.data()[2 * i], rows.data()[2 * i + 1]};
    check_query(graph, queries[i]);
  }
  return queries;
}

void check_weights(const RulePredictor& predictor, size_t num_weights) {
  require(num_weights == 2 * predictor.num_rules(), "there must be two weights per rule");
}

Aggregation to_aggregation(const std::string& name) {
  require(name == "maxplus" || name == "maximum" || name == "sum", "aggregation must be `maxplus` or `sum`");
  return name == "sum" ? Aggregation::sum : Aggregation::maxplus;
}

void count_ranks(const RulePredictor& predictor, std::shared_ptr<TripleGraph> known, QueryRows rows,
                 InputVector<int64_t> begins, InputVector<int32_t> targets, const std::string& aggregation,
                 InputVector<double> weights, OutputVector<int64_t> num_higher,
                 OutputVector<int64_t> num_tied) {
  const auto queries = to_queries(predictor.graph(), rows);
  require(begins.shape(0) == rows.shape(0) + 1, "begins must have one more entry than there are queries");
  require(num_higher.shape(0) == targets.shape(0) && num_tied.shape(0) == targets.shape(0),
          "num_higher, num_tied and targets must have the same length");
  for (size_t i = 0; i < begins.shape(0); ++i) {
    const int64_t before = i == 0 ? 0 : begins.data()[i - 1], here = begins.data()[i];
    require(here >= before && here <= static_cast<int64_t>(targets.shape(0)),
            "begins must ascend within the targets");
  }
  require(known->num_entities == predictor.graph().num_entities &&
              known->num_directed_relations == predictor.graph().num_directed_relations,
          "both graphs must have the same entities and relations");
  const Aggregation selected = to_aggregation(aggregation);
  if (selected == Aggregation::sum) check_weights(predictor, weights.shape(0));
  nb::gil_scoped_release unlocked;
  predictor.count_ranks(*known, queries, begins.data(), targets.data(), selected, weights.data(),
                        num_higher.data(), num_tied.data());
}

void score_rules(const RulePredictor& predictor, QueryRows rows, const std::string& aggregation,
                 InputVector<double> weights, OutputArray<float, nb::ndim<2>> scores) {
  const auto queries = to_queries(predictor.graph(), rows);
  require(scores.shape(0) == rows.shape(0) &&
              static_cast<int32_t>(scores.shape(1)) == predictor.graph().num_entities,
          "scores must have the shape [queries, entities]");
  check_weights(predictor, weights.shape(0));
  const Aggregation selected = to_aggregation(aggregation);
  nb::gil_scoped_release unlocked;
  predictor.score(queries, selected, weights.data(), scores.data());
}

void fit_weights(const RulePredictor& predictor, OutputVector<double> weights, InputVector<int32_t> relations,
                 int64_t max_examples, int64_t max_negatives, int32_t num_epochs, double learning_rate,
                 double regularization, uint64_t seed) {
  check_weights(predictor, weights.shape(0));
  require(max_examples >= 0 && max_examples <= kMaxLimit && max_negatives >= 0 && max_negatives <= kMaxLimit,
          "max_examples and max_negatives must be 0 to 2^40");
  for (size_t i = 0; i < relations.shape(0); ++i)
    require(relations.data()[i] >= 0 && relations.data()[i] < predictor.graph().num_directed_relations,
            "a relation is unknown");
  nb::gil_scoped_release unlocked;
  parallel_for(ThreadLauncher(predictor.num_threads()), static_cast<int64_t>(relations.shape(0)), 1,
               [&](int64_t, int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i)
                   predictor.fit_weights(weights.data(), relations.data()[i], max_examples, max_negatives,
                                         num_epochs, learning_rate, regularization, seed);
               });
}

std::tuple<NewArray<int32_t, nb::ndim<1>>, NewArray<int64_t, nb::ndim<1>>, NewArray<int32_t, nb::ndim<1>>>
predict(const RulePredictor& predictor, int32_t entity, int32_t relation) {
  check_query(predictor.graph(), {entity, relation});
  Predictions found = predictor.predict({entity, relation});
  const size_t num_answers = found.answers.size(), num_rules = found.rules.size();
  return {to_numpy<nb::ndim<1>>(std::move(found.answers), {num_answers}),
          to_numpy<nb::ndim<1>>(std::move(found.begins), {num_answers + 1}),
          to_numpy<nb::ndim<1>>(std::move(found.rules), {num_rules})};
}

std::shared_ptr<PathNetwork> create_network(std::shared_ptr<TripleGraph> graph, int32_t num_layers,
                                            bool query_dependent_relations, int32_t num_threads) {
  require(num_layers >= 1 && num_layers <= path_network::kMaxLayers, "num_layers must be 1 to 8");
  check_threads(num_threads);
  return std::make_shared<PathNetwork>(graph, num_layers, query_dependent_relations, num_threads);
}

// Rows are (entity, directed relation) or (entity, directed relation, answer).
void check_rows(const PathNetwork& network, size_t num_parameters, const int32_t* rows, size_t count,
                int32_t columns) {
  require(static_cast<int64_t>(num_parameters) == network.layout().size(),
          "the length of parameters does not match the network");
  const TripleGraph& graph = network.graph();
  for (size_t i = 0; i < count; ++i)
    for (int32_t k = 0; k < columns; ++k) {
      const int32_t number = rows[i * columns + k];
      require(number >= 0 && number < (k == 1 ? graph.num_directed_relations : graph.num_entities),
              "a query has an unknown entity or relation");
    }
}

double loss_and_gradient(PathNetwork& network, InputVector<float> parameters, Triples rows,
                         OutputVector<float> gradient) {
  check_rows(network, parameters.shape(0), rows.data(), rows.shape(0), 3);
  require(gradient.shape(0) == parameters.shape(0), "gradient and parameters must have the same length");
  nb::gil_scoped_release unlocked;
  return network.loss_and_gradient(parameters.data(), rows.data(), static_cast<int64_t>(rows.shape(0)),
                                   gradient.data());
}

void score_network(PathNetwork& network, InputVector<float> parameters, QueryRows rows,
                   OutputArray<float, nb::ndim<2>> scores) {
  check_rows(network, parameters.shape(0), rows.data(), rows.shape(0), 2);
  require(scores.shape(0) == rows.shape(0) &&
              static_cast<int32_t>(scores.shape(1)) == network.graph().num_entities,
          "scores must have the shape [queries, entities]");
  nb::gil_scoped_release unlocked;
  network.score(parameters.data(), rows.data(), static_cast<int64_t>(rows.shape(0)), scores.data());
}

}  // namespace
}  // namespace kg

void bind_kg(nb::module_& module) {
  using namespace kg;
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<TripleGraph>(module, "TripleGraph",
                          "A graph of triples (relation, head, tail), numbered from 0.")
      .def(nb::new_(&create_graph), nb::arg("triples"), nb::arg("num_entities"), nb::arg("num_relations"));
  nb::class_<PathRuleMiner>(module, "PathRuleMiner", "Mines path rules in rounds.")
      .def(nb::new_(&create_miner), nb::arg("graph"), nb::arg("max_length"), nb::arg("max_edges_per_step"),
           nb::arg("max_predictions"), nb::arg("max_paths_per_entity"), nb::arg("seed"),
           nb::arg("num_threads"))
      .def("find_bodies", &PathRuleMiner::find_bodies, nb::arg("num_triples"), unlocked,
           "Collect the bodies that connect the head and tail of the next triples. Return False when none "
           "are left.")
      .def("select_rules", &PathRuleMiner::select_rules, nb::arg("min_count"), nb::arg("max_rules"), unlocked,
           "Select the most frequent rules and return their number.")
      .def("count_predictions", &PathRuleMiner::count_predictions, nb::arg("num_entities"), unlocked,
           "Count the predictions of the rules for the next entities. Return False when nothing is left to "
           "count.")
      .def(
          "rules",
          [](const PathRuleMiner& miner, int64_t min_support) { return to_arrays(miner.rules(min_support)); },
          nb::arg("min_support"), "Return the rules and their counts.");
  module.def("mine_constant_rules", &mine_rules_with_constants, nb::arg("graph"), nb::arg("begin"),
             nb::arg("end"), nb::arg("min_support"), nb::arg("min_confidence"),
             nb::arg("confidence_smoothing"), nb::arg("max_constant_rule_degree"), nb::arg("dangling_rules"),
             nb::arg("pca_confidence"), nb::arg("num_threads"),
             "Mine rules whose head constants are the entities from `begin` to `end`.");
  nb::class_<RulePredictor>(module, "RulePredictor",
                            "Answers queries (entity, directed relation) with rules.")
      .def(nb::new_(&create_predictor), nb::arg("graph"), nb::arg("rules"), nb::arg("confidence_ranks"),
           nb::arg("max_paths_per_entity"), nb::arg("num_threads"))
      .def("count_ranks", &count_ranks, nb::arg("known"), nb::arg("queries"), nb::arg("begins"),
           nb::arg("targets"), nb::arg("aggregation"), nb::arg("weights"), nb::arg("num_higher").noconvert(),
           nb::arg("num_tied").noconvert(),
           "Count the entities that score higher than each target, and the others with the same score.")
      .def("score", &score_rules, nb::arg("queries"), nb::arg("aggregation"), nb::arg("weights"),
           nb::arg("scores").noconvert(), "Write the scores of all entities for each query.")
      .def("fit_weights", &fit_weights, nb::arg("weights").noconvert(), nb::arg("relations"),
           nb::arg("max_examples"), nb::arg("max_negatives"), nb::arg("num_epochs"), nb::arg("learning_rate"),
           nb::arg("regularization"), nb::arg("seed"),
           "Fit the weights of rules for queries with these relations.")
      .def("predict", &predict, nb::arg("entity"), nb::arg("relation"),
           "Return the predicted answers, the first rule of each answer, and the rules.");
  nb::class_<PathNetwork>(module, "PathNetwork",
                          "A path network over a graph; the caller owns its parameters.")
      .def(nb::new_(&create_network), nb::arg("graph"), nb::arg("num_layers"),
           nb::arg("query_dependent_relations"), nb::arg("num_threads"))
      .def("loss_and_gradient", &loss_and_gradient, nb::arg("parameters"), nb::arg("rows"),
           nb::arg("gradient").noconvert(),
           "Return the total loss of rows (entity, directed relation, answer) and write its gradient.")
      .def("score", &score_network, nb::arg("parameters"), nb::arg("queries"), nb::arg("scores").noconvert(),
           "Write the scores of all entities for each query.");
}

}  // namespace phalanx
