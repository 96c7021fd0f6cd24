#include "kg/rule_predictor.h"

#include <algorithm>
#include <cmath>

namespace phalanx::mining {

std::pair<const int32_t*, const int32_t*> Applier::Lookup::find(int64_t key) const {
  const auto [first, last] = std::equal_range(keys.begin(), keys.end(), key);
  return {rules.data() + (first - keys.begin()), rules.data() + (last - keys.begin())};
}

struct Applier::Gatherer {
  Gatherer(const Graph& graph, int64_t limit) : walker(graph, limit), count(graph.entities, 0) {}
  Walker walker;
  std::vector<std::pair<int32_t, int32_t>> pairs;  // an answer and a rule
  std::vector<int64_t> count;
  Predictions found;
};

Applier::Applier(std::shared_ptr<const Graph> graph, std::vector<MinedRule> rules, std::vector<int32_t> levels,
                 int64_t limit, int32_t threads)
    : graph_(std::move(graph)), rules_(std::move(rules)), levels_(std::move(levels)), limit_(limit),
      threads_(threads) {
  const int32_t directed = graph_->directed;
  std::vector<std::vector<std::pair<Body, int32_t>>> bodies(directed);
  std::vector<std::vector<std::pair<int64_t, int32_t>>> body(directed), loose(directed), constant(directed);
  for (size_t i = 0; i < rules_.size(); ++i) {
    const MinedRule& rule = rules_[i];
    const int32_t number = static_cast<int32_t>(i);
    if (rule.head_constant < 0) {
      Body turned = rule.body;
      const auto length = std::find(turned.begin(), turned.end(), -1) - turned.begin();
      for (int64_t k = 0; k < length; ++k) turned[k] = rule.body[length - 1 - k] ^ 1;
      bodies[rule.head].push_back({rule.body, number});
      bodies[rule.head ^ 1].push_back({turned, number});
      continue;
    }
    if (rule.body_constant >= 0) {
      const Run* run = graph_->run(rule.body_constant, rule.body[0] ^ 1);
      if (run == nullptr) continue;
      body[rule.head].push_back({run - graph_->runs.data(), number});
    } else {
      loose[rule.head].push_back({rule.body[0], number});
    }
    constant[rule.head].push_back({rule.head_constant, number});
  }
  const auto lookup = [](std::vector<std::pair<int64_t, int32_t>>& pairs) {
    std::sort(pairs.begin(), pairs.end());
    Lookup made;
    for (const auto& [key, rule] : pairs) made.keys.push_back(key), made.rules.push_back(rule);
    return made;
  };
  trie_rules_.resize(directed);
  for (int32_t relation = 0; relation < directed; ++relation) {
    auto& mine = bodies[relation];
    std::sort(mine.begin(), mine.end());
    std::vector<Body> sorted;
    for (const auto& [path, rule] : mine) sorted.push_back(path), trie_rules_[relation].push_back(rule);
    tries_.emplace_back(sorted);
    by_body_.push_back(lookup(body[relation]));
    by_loose_body_.push_back(lookup(loose[relation]));
    by_constant_.push_back(lookup(constant[relation]));
  }
}

void Applier::gather(Question question, Gatherer& gatherer) const {
  const Graph& g = *graph_;
  const auto [entity, relation] = question;
  auto& pairs = gatherer.pairs;
  pairs.clear();
  const auto& of_body = trie_rules_[relation];
  if (tries_[relation].nodes[0].alive)
    gatherer.walker.walk(tries_[relation], entity, [&](int32_t body, const std::vector<int32_t>& ends) {
      for (int32_t end : ends) pairs.push_back({end, of_body[body]});
    });
  // The entity is the X of `relation(X,c)`: what it has tells c.
  for (int64_t r = g.run_start[entity]; r < g.run_start[entity + 1]; ++r) {
    const Run& run = g.runs[r];
    for (int64_t i = run.begin; i < run.end && !by_body_[relation].keys.empty(); ++i) {
      auto [rule, end] = by_body_[relation].find(g.twin[i]);
      for (; rule != end; ++rule)
        if (rules_[*rule].head_constant != entity) pairs.push_back({rules_[*rule].head_constant, *rule});
    }
    auto [rule, end] = by_loose_body_[relation].find(run.relation);
    for (; rule != end; ++rule) {
      const int32_t c = rules_[*rule].head_constant;
      if (c != entity && (run.end - run.begin > 1 || g.targets[run.begin] != c)) pairs.push_back({c, *rule});
    }
  }
  // The entity is the c of the head turned round: whoever has what the body says is an X.
  auto [rule, end] = by_constant_[relation ^ 1].find(entity);
  for (; rule != end; ++rule) {
    const MinedRule& one = rules_[*rule];
    if (one.body_constant >= 0) {
      const Run* run = g.run(one.body_constant, one.body[0] ^ 1);
      for (int64_t i = run->begin; i < run->end; ++i)
        if (g.targets[i] != entity) pairs.push_back({g.targets[i], *rule});
    } else {
      for (int32_t x : g.subjects[one.body[0]]) {
        const Run* run = g.run(x, one.body[0]);
        if (x != entity && (run->end - run->begin > 1 || g.targets[run->begin] != entity)) pairs.push_back({x, *rule});
      }
    }
  }
  // By answer, and the rules of each in order.
  Predictions& found = gatherer.found;
  found.answers.clear(), found.begins.assign(1, 0), found.rules.resize(pairs.size());
  for (const auto& [answer, number] : pairs)
    if (gatherer.count[answer]++ == 0) found.answers.push_back(answer);
  std::sort(found.answers.begin(), found.answers.end());
  for (int32_t answer : found.answers) {
    found.begins.push_back(found.begins.back() + gatherer.count[answer]);
    gatherer.count[answer] = found.begins[found.begins.size() - 2];
  }
  for (const auto& [answer, number] : pairs) found.rules[gatherer.count[answer]++] = number;
  for (size_t i = 0; i < found.answers.size(); ++i) {
    std::sort(found.rules.begin() + found.begins[i], found.rules.begin() + found.begins[i + 1]);
    gatherer.count[found.answers[i]] = 0;
  }
}

Predictions Applier::predict(Question question) const {
  Gatherer gatherer(*graph_, limit_);
  gather(question, gatherer);
  return gatherer.found;
}

void Applier::rank(const Graph& known, const std::vector<Question>& questions, const int64_t* begins,
                   const int32_t* targets, Aggregation how, const double* weights, int64_t* above,
                   int64_t* level) const {
  std::vector<Gatherer> gatherers(threads_, Gatherer(*graph_, limit_));
  each(threads_, static_cast<int64_t>(questions.size()), [&](int32_t thread, int64_t q) {
    Gatherer& gatherer = gatherers[thread];
    const Question question = questions[q];
    gather(question, gatherer);
    const Predictions& found = gatherer.found;
    const int64_t count = static_cast<int64_t>(found.answers.size());
    std::vector<double> total(how == Aggregation::sum ? count : 0, 0.0);
    for (int64_t i = 0; i < static_cast<int64_t>(total.size()); ++i)
      for (int64_t k = found.begins[i]; k < found.begins[i + 1]; ++k)
        total[i] += weights[weight_at(found.rules[k], question.relation)];
    const Run* true_ones = known.run(question.entity, question.relation);
    const int32_t* first = true_ones ? &known.targets[true_ones->begin] : nullptr;
    const int32_t* last = true_ones ? &known.targets[0] + true_ones->end : nullptr;
    std::vector<char> left_out(count, 0);
    int64_t predicted = 0;
    for (int64_t i = 0; i < count; ++i) {
      left_out[i] = std::binary_search(first, last, found.answers[i]);
      predicted += !left_out[i];
    }
    for (int64_t t = begins[q]; t < begins[q + 1]; ++t) {
      const int32_t target = targets[t];
      const int64_t own = std::lower_bound(found.answers.begin(), found.answers.end(), target) - found.answers.begin();
      const bool there = own < count && found.answers[own] == target;
      // The unpredicted: all entities but the known ones (the target is one of those, or is put aside too).
      const bool loop = target != question.entity && known.loop(question.entity, question.relation);
      const int64_t true_count = (last - first) + loop + !std::binary_search(first, last, target);
      const int64_t rest = graph_->entities - true_count - (predicted - (there && !left_out[own]));
      int64_t better = 0, same = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (left_out[i] || i == own * there + count * !there) continue;
        if (how == Aggregation::sum) {
          const double mine = there ? total[own] : 0.0;
          better += total[i] > mine, same += total[i] == mine;
          continue;
        }
        if (!there) {
          ++better;
          continue;
        }
        int64_t a = found.begins[i], b = found.begins[own];
        const int64_t a_end = found.begins[i + 1], b_end = found.begins[own + 1];
        while (a < a_end && b < b_end && levels_[found.rules[a]] == levels_[found.rules[b]]) ++a, ++b;
        if (a < a_end && b < b_end) {
          better += levels_[found.rules[a]] < levels_[found.rules[b]];
        } else {
          better += a < a_end;
          same += a == a_end && b == b_end;
        }
      }
      const double mine = how == Aggregation::sum && there ? total[own] : 0.0;
      if (how == Aggregation::sum) {
        better += mine < 0.0 ? rest : 0, same += mine == 0.0 ? rest : 0;
      } else if (!there) {
        same += rest;
      }
      above[t] = better, level[t] = same;
    }
  });
}

void Applier::scores(const std::vector<Question>& questions, Aggregation how, const double* weights,
                     float* table) const {
  std::vector<Gatherer> gatherers(threads_, Gatherer(*graph_, limit_));
  each(threads_, static_cast<int64_t>(questions.size()), [&](int32_t thread, int64_t q) {
    gather(questions[q], gatherers[thread]);
    const Predictions& found = gatherers[thread].found;
    float* row = table + q * graph_->entities;
    std::fill_n(row, graph_->entities, 0.0f);
    for (size_t i = 0; i < found.answers.size(); ++i) {
      double total = 0.0, share = 1.0;
      for (int64_t k = found.begins[i]; k < found.begins[i + 1]; ++k) {
        total += share * weights[weight_at(found.rules[k], questions[q].relation)];
        // The first rule decides, and those behind it where it leaves a tie.
        if (how == Aggregation::maximum) share *= 1e-2;
      }
      row[found.answers[i]] = static_cast<float>(total);
    }
  });
}

void Applier::learn(double* weights, int32_t relation, int64_t most, int64_t negatives, int32_t epochs, double rate,
                    double decay, uint64_t seed) const {
  const Graph& g = *graph_;
  std::vector<std::pair<uint64_t, int32_t>> sources;
  for (int32_t x : g.subjects[relation]) sources.push_back({mixed(seed ^ mixed(x)), x});
  std::sort(sources.begin(), sources.end());
  if (static_cast<int64_t>(sources.size()) > most) sources.resize(most);
  // One example for each source: its predicted answers, the true ones first, and the rules of each.
  std::vector<int64_t> example{0}, begins{0};
  std::vector<int32_t> rules, positives;
  Gatherer gatherer(g, limit_);
  for (const auto& [draw, source] : sources) {
    gather({source, relation}, gatherer);
    const Predictions& found = gatherer.found;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < found.answers.size(); ++i) {
      double total = 0.0;
      for (int64_t k = found.begins[i]; k < found.begins[i + 1]; ++k)
        total += weights[weight_at(found.rules[k], relation)];
      order.push_back({g.has(source, relation, found.answers[i]) ? -INFINITY : -total, i});
    }
    std::sort(order.begin(), order.end());
    int32_t positive = 0;
    while (positive < static_cast<int32_t>(order.size()) && std::isinf(order[positive].first)) ++positive;
    if (positive == 0) continue;
    if (static_cast<int64_t>(order.size()) > positive + negatives) order.resize(positive + negatives);
    for (const auto& [total, i] : order) {
      rules.insert(rules.end(), found.rules.begin() + found.begins[i], found.rules.begin() + found.begins[i + 1]);
      begins.push_back(static_cast<int64_t>(rules.size()));
    }
    positives.push_back(positive);
    example.push_back(static_cast<int64_t>(begins.size()) - 1);
  }
  // Adagrad, one example after the other; only this relation's weights are read or written.
  std::vector<int32_t> own(rules);
  std::sort(own.begin(), own.end());
  own.erase(std::unique(own.begin(), own.end()), own.end());
  for (int32_t& rule : rules) rule = static_cast<int32_t>(std::lower_bound(own.begin(), own.end(), rule) - own.begin());
  std::vector<double> now(own.size()), origin, squares(own.size(), 1e-2), slope(own.size(), 0.0);
  for (size_t i = 0; i < own.size(); ++i) now[i] = weights[weight_at(own[i], relation)];
  origin = now;
  std::vector<double> total, share;
  for (int32_t epoch = 0; epoch < epochs; ++epoch)
    for (size_t e = 0; e < positives.size(); ++e) {
      const int64_t first = example[e], count = example[e + 1] - first;
      const int32_t positive = positives[e];
      total.assign(count, 0.0), share.assign(count, 0.0);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = begins[first + i]; k < begins[first + i + 1]; ++k) total[i] += now[rules[k]];
      // An answer that no rule predicts has the score 0, and stands for all of those.
      double top = 0.0;
      for (double value : total) top = std::max(top, value);
      double wrong = std::exp(-top);
      for (int64_t i = positive; i < count; ++i) wrong += std::exp(total[i] - top);
      for (int32_t p = 0; p < positive; ++p) {
        const double all = wrong + std::exp(total[p] - top);
        share[p] += std::exp(total[p] - top) / all - 1.0;
        for (int64_t i = positive; i < count; ++i) share[i] += std::exp(total[i] - top) / all;
      }
      const int64_t begin = begins[first], end = begins[first + count];
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = begins[first + i]; k < begins[first + i + 1]; ++k) slope[rules[k]] += share[i] / positive;
      for (int64_t k = begin; k < end; ++k) {
        const int32_t rule = rules[k];
        if (slope[rule] == 0.0) continue;
        const double here = slope[rule] + decay * (now[rule] - origin[rule]);
        squares[rule] += here * here;
        now[rule] -= rate * here / std::sqrt(squares[rule]);
        slope[rule] = 0.0;
      }
    }
  for (size_t i = 0; i < own.size(); ++i) weights[weight_at(own[i], relation)] = now[i];
}

}  // namespace phalanx::mining
