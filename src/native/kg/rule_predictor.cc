#include "kg/rule_predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/parallel.h"
#include "common/random.h"

namespace phalanx::kg {

std::pair<const int32_t*, const int32_t*> RulePredictor::Lookup::find(int64_t key) const {
  const auto [first, last] = std::equal_range(keys.begin(), keys.end(), key);
  return {rules.data() + (first - keys.begin()), rules.data() + (last - keys.begin())};
}

struct RulePredictor::Workspace {
  Workspace(const TripleGraph& graph, int64_t max_paths_per_entity)
      : walker(graph, max_paths_per_entity), count(graph.num_entities, 0) {}
  Walker walker;
  std::vector<std::pair<int32_t, int32_t>> pairs;  // an answer and a rule
  std::vector<int64_t> count;
  Predictions predictions;
};

RulePredictor::RulePredictor(std::shared_ptr<const TripleGraph> graph, std::vector<MinedRule> rules,
                             std::vector<int32_t> confidence_ranks, int64_t max_paths_per_entity,
                             int32_t num_threads)
    : graph_(std::move(graph)),
      rules_(std::move(rules)),
      confidence_ranks_(std::move(confidence_ranks)),
      max_paths_per_entity_(max_paths_per_entity),
      num_threads_(num_threads) {
  const int32_t num_directed_relations = graph_->num_directed_relations;
  std::vector<std::vector<std::pair<Body, int32_t>>> bodies(num_directed_relations);
  std::vector<std::vector<std::pair<int64_t, int32_t>>> body(num_directed_relations),
      dangling(num_directed_relations), constant(num_directed_relations);
  for (size_t i = 0; i < rules_.size(); ++i) {
    const MinedRule& rule = rules_[i];
    const int32_t number = static_cast<int32_t>(i);
    if (rule.head_constant < 0) {
      Body inverse = rule.body;
      const auto length = std::find(inverse.begin(), inverse.end(), -1) - inverse.begin();
      for (int64_t k = 0; k < length; ++k) inverse[k] = rule.body[length - 1 - k] ^ 1;
      bodies[rule.head].push_back({rule.body, number});
      bodies[rule.head ^ 1].push_back({inverse, number});
      continue;
    }
    if (rule.body_constant >= 0) {
      const EdgeRun* run = graph_->find_run(rule.body_constant, rule.body[0] ^ 1);
      if (run == nullptr) continue;
      body[rule.head].push_back({run - graph_->runs.data(), number});
    } else {
      dangling[rule.head].push_back({rule.body[0], number});
    }
    constant[rule.head].push_back({rule.head_constant, number});
  }
  const auto build_lookup = [](std::vector<std::pair<int64_t, int32_t>>& pairs) {
    std::sort(pairs.begin(), pairs.end());
    Lookup lookup;
    for (const auto& [key, rule] : pairs) lookup.keys.push_back(key), lookup.rules.push_back(rule);
    return lookup;
  };
  trie_rules_.resize(num_directed_relations);
  for (int32_t relation = 0; relation < num_directed_relations; ++relation) {
    auto& own_bodies = bodies[relation];
    std::sort(own_bodies.begin(), own_bodies.end());
    std::vector<Body> sorted;
    for (const auto& [path, rule] : own_bodies) sorted.push_back(path), trie_rules_[relation].push_back(rule);
    tries_.emplace_back(sorted);
    by_body_.push_back(build_lookup(body[relation]));
    by_dangling_body_.push_back(build_lookup(dangling[relation]));
    by_constant_.push_back(build_lookup(constant[relation]));
  }
}

void RulePredictor::collect_predictions(Query query, Workspace& workspace) const {
  const TripleGraph& g = *graph_;
  const auto [entity, relation] = query;
  auto& pairs = workspace.pairs;
  pairs.clear();
  const auto& of_body = trie_rules_[relation];
  if (tries_[relation].nodes[0].alive)
    workspace.walker.walk(tries_[relation], entity, [&](int32_t body, const std::vector<int32_t>& ends) {
      for (int32_t end : ends) pairs.push_back({end, of_body[body]});
    });
  // Rules `relation(X, c) <- ...` with X = entity predict c.
  for (int64_t r = g.run_start[entity]; r < g.run_start[entity + 1]; ++r) {
    const EdgeRun& run = g.runs[r];
    for (int64_t i = run.begin; i < run.end && !by_body_[relation].keys.empty(); ++i) {
      auto [rule, end] = by_body_[relation].find(g.inverse_run[i]);
      for (; rule != end; ++rule)
        if (rules_[*rule].head_constant != entity) pairs.push_back({rules_[*rule].head_constant, *rule});
    }
    auto [rule, end] = by_dangling_body_[relation].find(run.relation);
    for (; rule != end; ++rule) {
      const int32_t c = rules_[*rule].head_constant;
      if (c != entity && (run.end - run.begin > 1 || g.targets[run.begin] != c)) pairs.push_back({c, *rule});
    }
  }
  // Inverse rules: the entity is c, and every X with the body is an answer.
  auto [rule, end] = by_constant_[relation ^ 1].find(entity);
  for (; rule != end; ++rule) {
    const MinedRule& rule_row = rules_[*rule];
    if (rule_row.body_constant >= 0) {
      const EdgeRun* run = g.find_run(rule_row.body_constant, rule_row.body[0] ^ 1);
      for (int64_t i = run->begin; i < run->end; ++i)
        if (g.targets[i] != entity) pairs.push_back({g.targets[i], *rule});
    } else {
      for (int32_t x : g.subjects[rule_row.body[0]]) {
        const EdgeRun* run = g.find_run(x, rule_row.body[0]);
        if (x != entity && (run->end - run->begin > 1 || g.targets[run->begin] != entity))
          pairs.push_back({x, *rule});
      }
    }
  }
  // Group the pairs by answer, and sort the rules of each.
  Predictions& predictions = workspace.predictions;
  predictions.answers.clear(), predictions.begins.assign(1, 0), predictions.rules.resize(pairs.size());
  for (const auto& [answer, number] : pairs)
    if (workspace.count[answer]++ == 0) predictions.answers.push_back(answer);
  std::sort(predictions.answers.begin(), predictions.answers.end());
  for (int32_t answer : predictions.answers) {
    predictions.begins.push_back(predictions.begins.back() + workspace.count[answer]);
    workspace.count[answer] = predictions.begins[predictions.begins.size() - 2];
  }
  for (const auto& [answer, number] : pairs) predictions.rules[workspace.count[answer]++] = number;
  for (size_t i = 0; i < predictions.answers.size(); ++i) {
    std::sort(predictions.rules.begin() + predictions.begins[i],
              predictions.rules.begin() + predictions.begins[i + 1]);
    workspace.count[predictions.answers[i]] = 0;
  }
}

Predictions RulePredictor::predict(Query query) const {
  Workspace workspace(*graph_, max_paths_per_entity_);
  collect_predictions(query, workspace);
  return workspace.predictions;
}

void RulePredictor::count_ranks(const TripleGraph& known_graph, const std::vector<Query>& queries,
                                const int64_t* begins, const int32_t* targets, Aggregation aggregation,
                                const double* weights, int64_t* num_higher, int64_t* num_tied) const {
  std::vector<Workspace> workspaces(num_threads_, Workspace(*graph_, max_paths_per_entity_));
  const auto rank_query = [&](Workspace& workspace, int64_t q) {
    const Query query = queries[q];
    collect_predictions(query, workspace);
    const Predictions& predictions = workspace.predictions;
    const int64_t count = static_cast<int64_t>(predictions.answers.size());
    std::vector<double> totals(aggregation == Aggregation::sum ? count : 0, 0.0);
    for (int64_t i = 0; i < static_cast<int64_t>(totals.size()); ++i)
      for (int64_t k = predictions.begins[i]; k < predictions.begins[i + 1]; ++k)
        totals[i] += weights[weight_index(predictions.rules[k], query.relation)];
    const EdgeRun* true_answers = known_graph.find_run(query.entity, query.relation);
    const int32_t* first = true_answers ? &known_graph.targets[true_answers->begin] : nullptr;
    const int32_t* last = true_answers ? &known_graph.targets[0] + true_answers->end : nullptr;
    std::vector<char> filtered(count, 0);
    int64_t num_predicted = 0;
    for (int64_t i = 0; i < count; ++i) {
      filtered[i] = std::binary_search(first, last, predictions.answers[i]);
      num_predicted += !filtered[i];
    }
    for (int64_t t = begins[q]; t < begins[q + 1]; ++t) {
      const int32_t target = targets[t];
      const int64_t target_index =
          std::lower_bound(predictions.answers.begin(), predictions.answers.end(), target) -
          predictions.answers.begin();
      const bool is_predicted = target_index < count && predictions.answers[target_index] == target;
      // The unpredicted entities are all except for the predicted and the known ones. The target is excluded,
      // whether it is known or not.
      const bool loop_is_known = target != query.entity && known_graph.has_loop(query.entity, query.relation);
      const int64_t num_true = (last - first) + loop_is_known + !std::binary_search(first, last, target);
      const int64_t num_unpredicted =
          graph_->num_entities - num_true - (num_predicted - (is_predicted && !filtered[target_index]));
      int64_t higher = 0, tied = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (filtered[i] || i == target_index * is_predicted + count * !is_predicted) continue;
        if (aggregation == Aggregation::sum) {
          const double target_total = is_predicted ? totals[target_index] : 0.0;
          higher += totals[i] > target_total, tied += totals[i] == target_total;
          continue;
        }
        if (!is_predicted) {
          ++higher;
          continue;
        }
        int64_t a = predictions.begins[i], b = predictions.begins[target_index];
        const int64_t a_end = predictions.begins[i + 1], b_end = predictions.begins[target_index + 1];
        while (a < a_end && b < b_end &&
               confidence_ranks_[predictions.rules[a]] == confidence_ranks_[predictions.rules[b]])
          ++a, ++b;
        if (a < a_end && b < b_end) {
          higher += confidence_ranks_[predictions.rules[a]] < confidence_ranks_[predictions.rules[b]];
        } else {
          higher += a < a_end;
          tied += a == a_end && b == b_end;
        }
      }
      const double target_total =
          aggregation == Aggregation::sum && is_predicted ? totals[target_index] : 0.0;
      if (aggregation == Aggregation::sum) {
        higher += target_total < 0.0 ? num_unpredicted : 0, tied += target_total == 0.0 ? num_unpredicted : 0;
      } else if (!is_predicted) {
        tied += num_unpredicted;
      }
      num_higher[t] = higher, num_tied[t] = tied;
    }
  };
  parallel_for(ThreadLauncher(num_threads_), static_cast<int64_t>(queries.size()), 1,
               [&](int64_t worker, int64_t begin, int64_t end) {
                 for (int64_t q = begin; q < end; ++q) rank_query(workspaces[worker], q);
               });
}

void RulePredictor::score(const std::vector<Query>& queries, Aggregation aggregation, const double* weights,
                          float* score_table) const {
  std::vector<Workspace> workspaces(num_threads_, Workspace(*graph_, max_paths_per_entity_));
  const auto score_query = [&](Workspace& workspace, int64_t q) {
    collect_predictions(queries[q], workspace);
    const Predictions& predictions = workspace.predictions;
    float* row = score_table + q * graph_->num_entities;
    std::fill_n(row, graph_->num_entities, 0.0f);
    for (size_t i = 0; i < predictions.answers.size(); ++i) {
      double total = 0.0, factor = 1.0;
      for (int64_t k = predictions.begins[i]; k < predictions.begins[i + 1]; ++k) {
        total += factor * weights[weight_index(predictions.rules[k], queries[q].relation)];
        // Later rules only break ties.
        if (aggregation == Aggregation::maxplus) factor *= 1e-2;
      }
      row[predictions.answers[i]] = static_cast<float>(total);
    }
  };
  parallel_for(ThreadLauncher(num_threads_), static_cast<int64_t>(queries.size()), 1,
               [&](int64_t worker, int64_t begin, int64_t end) {
                 for (int64_t q = begin; q < end; ++q) score_query(workspaces[worker], q);
               });
}

void RulePredictor::fit_weights(double* weights, int32_t relation, int64_t max_examples,
                                int64_t max_negatives, int32_t num_epochs, double learning_rate,
                                double regularization, uint64_t seed) const {
  const TripleGraph& g = *graph_;
  std::vector<std::pair<uint64_t, int32_t>> sources;
  for (int32_t x : g.subjects[relation]) sources.push_back({splitmix64(seed ^ splitmix64(x)), x});
  std::sort(sources.begin(), sources.end());
  if (static_cast<int64_t>(sources.size()) > max_examples) sources.resize(max_examples);
  // One example per source: its predicted answers, the true ones first, with their rules.
  std::vector<int64_t> example{0}, begins{0};
  std::vector<int32_t> rules, num_positives;
  Workspace workspace(g, max_paths_per_entity_);
  for (const auto& [random, source] : sources) {
    collect_predictions({source, relation}, workspace);
    const Predictions& predictions = workspace.predictions;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < predictions.answers.size(); ++i) {
      double total = 0.0;
      for (int64_t k = predictions.begins[i]; k < predictions.begins[i + 1]; ++k)
        total += weights[weight_index(predictions.rules[k], relation)];
      order.push_back({g.has_edge(source, relation, predictions.answers[i]) ? -INFINITY : -total, i});
    }
    std::sort(order.begin(), order.end());
    int32_t num_positive = 0;
    while (num_positive < static_cast<int32_t>(order.size()) && std::isinf(order[num_positive].first))
      ++num_positive;
    if (num_positive == 0) continue;
    if (static_cast<int64_t>(order.size()) > num_positive + max_negatives)
      order.resize(num_positive + max_negatives);
    for (const auto& [negative_total, i] : order) {
      rules.insert(rules.end(), predictions.rules.begin() + predictions.begins[i],
                   predictions.rules.begin() + predictions.begins[i + 1]);
      begins.push_back(static_cast<int64_t>(rules.size()));
    }
    num_positives.push_back(num_positive);
    example.push_back(static_cast<int64_t>(begins.size()) - 1);
  }
  // Adagrad, one example at a time. Only the weights of this relation are read and written, so relations can
  // be fitted in parallel.
  std::vector<int32_t> used_rules(rules);
  std::sort(used_rules.begin(), used_rules.end());
  used_rules.erase(std::unique(used_rules.begin(), used_rules.end()), used_rules.end());
  for (int32_t& rule : rules)
    rule = static_cast<int32_t>(std::lower_bound(used_rules.begin(), used_rules.end(), rule) -
                                used_rules.begin());
  std::vector<double> current(used_rules.size()), initial, squared_gradients(used_rules.size(), 1e-2),
      gradient(used_rules.size(), 0.0);
  for (size_t i = 0; i < used_rules.size(); ++i) current[i] = weights[weight_index(used_rules[i], relation)];
  initial = current;
  std::vector<double> totals, derivative;
  for (int32_t epoch = 0; epoch < num_epochs; ++epoch)
    for (size_t e = 0; e < num_positives.size(); ++e) {
      const int64_t first = example[e], count = example[e + 1] - first;
      const int32_t num_positive = num_positives[e];
      totals.assign(count, 0.0), derivative.assign(count, 0.0);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = begins[first + i]; k < begins[first + i + 1]; ++k) totals[i] += current[rules[k]];
      // An answer that no rule predicts has the score 0; one such answer represents all of them.
      double max_score = 0.0;
      for (double value : totals) max_score = std::max(max_score, value);
      double negative_sum = std::exp(-max_score);
      for (int64_t i = num_positive; i < count; ++i) negative_sum += std::exp(totals[i] - max_score);
      for (int32_t p = 0; p < num_positive; ++p) {
        const double all = negative_sum + std::exp(totals[p] - max_score);
        derivative[p] += std::exp(totals[p] - max_score) / all - 1.0;
        for (int64_t i = num_positive; i < count; ++i) derivative[i] += std::exp(totals[i] - max_score) / all;
      }
      const int64_t begin = begins[first], end = begins[first + count];
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = begins[first + i]; k < begins[first + i + 1]; ++k)
          gradient[rules[k]] += derivative[i] / num_positive;
      for (int64_t k = begin; k < end; ++k) {
        const int32_t rule = rules[k];
        if (gradient[rule] == 0.0) continue;
        const double regularized = gradient[rule] + regularization * (current[rule] - initial[rule]);
        squared_gradients[rule] += regularized * regularized;
        current[rule] -= learning_rate * regularized / std::sqrt(squared_gradients[rule]);
        gradient[rule] = 0.0;
      }
    }
  for (size_t i = 0; i < used_rules.size(); ++i) weights[weight_index(used_rules[i], relation)] = current[i];
}

}  // namespace phalanx::kg
