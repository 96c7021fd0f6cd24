#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "common/parallel.h"
#include "common/random.h"
#include "kg/rules.h"

namespace phalanx::kg {

Trie::Trie(const std::vector<Body>& bodies) {
  if (std::adjacent_find(bodies.begin(), bodies.end()) != bodies.end())
    throw std::invalid_argument("a rule is listed twice");
  nodes.emplace_back();
  // Breadth-first: bodies are sorted, so the bodies below a node are a range.
  struct Range {
    int32_t node, begin, end, depth;
  };
  std::vector<Range> queue{{0, 0, static_cast<int32_t>(bodies.size()), 0}};
  for (size_t at = 0; at < queue.size(); ++at) {
    const Range range = queue[at];
    int32_t i = range.begin;
    // -1 sorts first, so a body that ends at this node is the first of its range.
    if (range.depth == kMaxPathLength || (i < range.end && bodies[i][range.depth] < 0)) {
      if (range.depth > 0) nodes[range.node].body = i;
      ++i;
    }
    nodes[range.node].children = static_cast<int32_t>(nodes.size());
    while (i < range.end) {
      int32_t end = i;
      while (end < range.end && bodies[end][range.depth] == bodies[i][range.depth]) ++end;
      queue.push_back({static_cast<int32_t>(nodes.size()), i, end, range.depth + 1});
      nodes.emplace_back();
      nodes.back().relation = bodies[i][range.depth];
      i = end;
    }
    nodes[range.node].children_end = static_cast<int32_t>(nodes.size());
  }
  if (bodies.empty()) nodes[0].alive = false;
}

void Trie::set_alive(const std::vector<char>& wanted) {
  // Children come after their parents.
  for (size_t n = nodes.size(); n-- > 0;) {
    TrieNode& node = nodes[n];
    bool alive = node.body >= 0 && wanted[node.body];
    for (int32_t c = node.children; c < node.children_end; ++c) alive |= nodes[c].alive;
    node.alive = node.alive && alive;
  }
}

struct PathRuleMiner::PathSearch {
  explicit PathSearch(const TripleGraph& graph)
      : mark(graph.num_entities, -1), first_edge(graph.num_entities, 0) {}
  std::vector<int64_t> mark,
      first_edge;  // for each neighbor of the tail: the current triple, and the first edge between them
  int64_t serial = -1;
  BodyCounts found;
  int32_t path[kMaxPathLength + 1];
  Body body;
};

struct PathRuleMiner::RuleStatistics {
  RuleStatistics(const TripleGraph& graph, int64_t max_paths_per_entity, size_t rules, size_t bodies)
      : walker(graph, max_paths_per_entity),
        mark(graph.num_entities, -1),
        first_edge(graph.num_entities, 0),
        support(rules, 0),
        num_known(rules, 0),
        num_predictions(bodies, 0) {}
  Walker walker;
  std::vector<int32_t> mark;
  std::vector<int64_t> first_edge, support, num_known, num_predictions;
};

PathRuleMiner::~PathRuleMiner() = default;

PathRuleMiner::PathRuleMiner(std::shared_ptr<const TripleGraph> graph, int32_t max_length,
                             int64_t max_edges_per_step, int64_t max_predictions,
                             int64_t max_paths_per_entity, uint64_t seed, int32_t num_threads)
    : graph_(std::move(graph)),
      max_length_(max_length),
      max_edges_per_step_(max_edges_per_step),
      max_predictions_(max_predictions),
      max_paths_per_entity_(max_paths_per_entity),
      seed_(seed),
      num_threads_(num_threads) {
  const TripleGraph& g = *graph_;
  // Process the triples of all relations in turn, those of each relation in random order.
  std::vector<std::vector<std::pair<uint64_t, Triple>>> by_relation(g.num_directed_relations / 2);
  for (int32_t e = 0; e < g.num_entities; ++e)
    for (int64_t r = g.run_start[e]; r < g.run_start[e + 1]; ++r) {
      const EdgeRun& run = g.runs[r];
      if (run.relation % 2) continue;
      for (int64_t i = run.begin; i < run.end; ++i) {
        const uint64_t draw = splitmix64(splitmix64(splitmix64(seed_ ^ e) ^ g.targets[i]) ^ run.relation);
        by_relation[run.relation / 2].push_back({draw, {e, run.relation, g.targets[i]}});
      }
    }
  size_t max_triples = 0;
  for (auto& triples : by_relation) {
    std::sort(triples.begin(), triples.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first, a.second.head, a.second.tail) <
             std::tie(b.first, b.second.head, b.second.tail);
    });
    max_triples = std::max(max_triples, triples.size());
  }
  for (size_t i = 0; i < max_triples; ++i)
    for (const auto& triples : by_relation)
      if (i < triples.size()) triples_.push_back(triples[i].second);
  order_.resize(g.num_entities);
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return std::make_pair(splitmix64(seed_ ^ a), a) < std::make_pair(splitmix64(seed_ ^ b), b);
  });
}

// A body and its inverse are the same rule with the head inverted; the smaller of the two represents both.
PathRuleMiner::Key PathRuleMiner::canonical_key(int32_t head, const Body& body, int32_t length) const {
  Body inverse;
  inverse.fill(-1);
  for (int32_t i = 0; i < length && i < kMaxPathLength; ++i) inverse[i] = body[length - 1 - i] ^ 1;
  if (body < inverse) return {head, body};
  if (inverse < body) return {head ^ 1, inverse};
  return {head & ~1, body};
}

bool PathRuleMiner::find_bodies(int64_t num_triples) {
  if (num_triples < 0) throw std::invalid_argument("num_triples must not be negative");
  const int64_t count = std::min<int64_t>(num_triples, triples_.size() - next_triple_);
  while (static_cast<int32_t>(searches_.size()) < num_threads_)
    searches_.push_back(std::make_unique<PathSearch>(*graph_));
  parallel_for(ThreadLauncher(num_threads_), count, 64, [&](int64_t worker, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) find_paths(triples_[next_triple_ + i], *searches_[worker]);
  });
  next_triple_ += count;
  return next_triple_ < triples_.size();
}

void PathRuleMiner::find_paths(const Triple& triple, PathSearch& search) const {
  const TripleGraph& g = *graph_;
  ++search.serial;
  for (int64_t i = g.edge_start[triple.tail + 1]; i-- > g.edge_start[triple.tail];) {
    search.mark[g.by_target[i].to] = search.serial;
    search.first_edge[g.by_target[i].to] = i;
  }
  search.path[0] = triple.head;
  search.body.fill(-1);
  extend_path(triple, search, 0);
}

// Records the bodies that an edge from the end of the path to the tail completes, and extends the path.
void PathRuleMiner::extend_path(const Triple& triple, PathSearch& search, int32_t depth) const {
  const TripleGraph& g = *graph_;
  const int32_t here = search.path[depth];
  if (search.mark[here] == search.serial) {
    for (int64_t i = search.first_edge[here]; i < g.edge_start[triple.tail + 1] && g.by_target[i].to == here;
         ++i) {
      const int32_t last = g.by_target[i].relation ^ 1;
      if (depth == 0 && last == triple.relation) continue;
      search.body[depth] = last;
      ++search.found[canonical_key(triple.relation, search.body, depth + 1)];
    }
    search.body[depth] = -1;
  }
  if (depth + 1 >= max_length_ || depth + 1 >= kMaxPathLength) return;
  // Of many edges, use `max_edges_per_step` at regular intervals from a random one on.
  const int64_t begin = g.edge_start[here], degree = g.edge_start[here + 1] - begin;
  const int64_t taken = std::min(degree, max_edges_per_step_);
  const int64_t first =
      degree > taken
          ? static_cast<int64_t>(
                splitmix64(seed_ ^ splitmix64(triple.head) ^ splitmix64(triple.tail * 3ull + depth)) % degree)
          : 0;
  for (int64_t k = 0; k < taken; ++k) {
    const Edge& edge = g.by_target[begin + (first + k * degree / taken) % degree];
    bool revisited = edge.to == triple.tail;
    for (int32_t d = 0; d <= depth; ++d) revisited |= search.path[d] == edge.to;
    if (revisited) continue;
    search.body[depth] = edge.relation;
    search.path[depth + 1] = edge.to;
    extend_path(triple, search, depth + 1);
    search.body[depth] = -1;
  }
}

int64_t PathRuleMiner::select_rules(int64_t min_count, int64_t max_rules) {
  if (max_rules < 0) throw std::invalid_argument("max_rules must not be negative");
  BodyCounts found;
  for (auto& search : searches_) {
    for (const auto& [key, count] : search->found) found[key] += count;
    BodyCounts().swap(search->found);
  }
  std::vector<std::pair<int64_t, Key>> chosen;
  for (const auto& [key, count] : found)
    if (count >= min_count) chosen.push_back({count, key});
  const auto by_key = [](const Key& a, const Key& b) {
    return std::tie(a.body, a.head) < std::tie(b.body, b.head);
  };
  const auto better = [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : by_key(a.second, b.second);
  };
  std::sort(chosen.begin(), chosen.end(), better);
  if (static_cast<int64_t>(chosen.size()) > max_rules) chosen.resize(max_rules);
  std::sort(chosen.begin(), chosen.end(),
            [&](const auto& a, const auto& b) { return by_key(a.second, b.second); });
  bodies_.clear(), heads_.clear(), body_rules_.assign(1, 0);
  for (const auto& [count, key] : chosen) {
    if (bodies_.empty() || bodies_.back() != key.body) {
      if (!bodies_.empty()) body_rules_.push_back(static_cast<int64_t>(heads_.size()));
      bodies_.push_back(key.body);
    }
    heads_.push_back(key.head);
  }
  if (!bodies_.empty()) body_rules_.push_back(static_cast<int64_t>(heads_.size()));
  trie_ = std::make_unique<Trie>(bodies_);
  num_predictions_.assign(bodies_.size(), 0);
  counts_.clear();
  for (int32_t t = 0; t < num_threads_; ++t)
    counts_.push_back(
        std::make_unique<RuleStatistics>(*graph_, max_paths_per_entity_, heads_.size(), bodies_.size()));
  next_entity_ = 0;
  return static_cast<int64_t>(heads_.size());
}

bool PathRuleMiner::count_predictions(int64_t num_entities) {
  if (num_entities < 0) throw std::invalid_argument("num_entities must not be negative");
  const TripleGraph& g = *graph_;
  if (!trie_ || trie_->nodes.empty() || !trie_->nodes[0].alive) return false;
  const int64_t count = std::min<int64_t>(num_entities, order_.size() - next_entity_);
  const auto count_from = [&](RuleStatistics& counts, int32_t x) {
    for (int64_t i = g.edge_start[x + 1]; i-- > g.edge_start[x];) {
      counts.mark[g.by_target[i].to] = x;
      counts.first_edge[g.by_target[i].to] = i;
    }
    counts.walker.walk(*trie_, x, [&](int32_t body, const std::vector<int32_t>& ends) {
      const int64_t begin = body_rules_[body], end = body_rules_[body + 1];
      counts.num_predictions[body] += static_cast<int64_t>(ends.size());
      for (int32_t y : ends) {
        if (counts.mark[y] != x) continue;
        int64_t rule = begin;
        for (int64_t i = counts.first_edge[y]; i < g.edge_start[x + 1] && g.by_target[i].to == y; ++i) {
          while (rule < end && heads_[rule] < g.by_target[i].relation) ++rule;
          if (rule < end && heads_[rule] == g.by_target[i].relation) ++counts.support[rule];
        }
      }
      // The subject of a head is x, or y if the head is inverted.
      for (int64_t rule = begin; rule < end; ++rule) {
        if (heads_[rule] % 2 == 0) {
          if (g.find_run(x, heads_[rule]) != nullptr)
            counts.num_known[rule] += static_cast<int64_t>(ends.size());
        } else {
          for (int32_t y : ends) counts.num_known[rule] += g.find_run(y, heads_[rule] ^ 1) != nullptr;
        }
      }
    });
  };
  parallel_for(ThreadLauncher(num_threads_), count, 1, [&](int64_t worker, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) count_from(*counts_[worker], order_[next_entity_ + i]);
  });
  std::fill(num_predictions_.begin(), num_predictions_.end(), 0);
  for (const auto& counts : counts_)
    for (size_t i = 0; i < num_predictions_.size(); ++i) num_predictions_[i] += counts->num_predictions[i];
  next_entity_ += count;
  std::vector<char> wanted(num_predictions_.size());
  for (size_t i = 0; i < num_predictions_.size(); ++i) wanted[i] = num_predictions_[i] < max_predictions_;
  trie_->set_alive(wanted);
  return next_entity_ < order_.size() && trie_->nodes[0].alive;
}

std::vector<MinedRule> PathRuleMiner::rules(int64_t min_support) const {
  std::vector<MinedRule> rules;
  std::vector<int64_t> support(heads_.size(), 0), num_known(heads_.size(), 0);
  for (const auto& counts : counts_)
    for (size_t i = 0; i < heads_.size(); ++i)
      support[i] += counts->support[i], num_known[i] += counts->num_known[i];
  for (size_t b = 0; b < bodies_.size(); ++b)
    for (int64_t i = body_rules_[b]; i < body_rules_[b + 1]; ++i) {
      if (support[i] < min_support) continue;
      MinedRule rule;
      rule.head = heads_[i] & ~1;
      rule.body = bodies_[b];
      if (heads_[i] % 2) {
        const int32_t length =
            static_cast<int32_t>(std::find(rule.body.begin(), rule.body.end(), -1) - rule.body.begin());
        for (int32_t k = 0; k < length; ++k) rule.body[k] = bodies_[b][length - 1 - k] ^ 1;
      }
      rule.support = support[i], rule.num_predictions = num_predictions_[b],
      rule.num_known_predictions = num_known[i];
      rules.push_back(rule);
    }
  return rules;
}

namespace {

// For one head: how many X have each body, by run (bodies with a constant) and by relation (dangling bodies).
struct Counter {
  explicit Counter(const TripleGraph& graph)
      : runs(graph.runs.size(), 0), relations(graph.num_directed_relations, 0) {}
  std::vector<int32_t> runs, relations;
  std::vector<int64_t> runs_seen;
  std::vector<int32_t> relations_seen;
};

}  // namespace

std::vector<MinedRule> mine_constant_rules(const TripleGraph& graph, int32_t begin, int32_t end,
                                           int64_t min_support, double min_confidence,
                                           double confidence_smoothing, int64_t max_constant_rule_degree,
                                           bool dangling_rules, bool pca_confidence, int32_t num_threads) {
  const TripleGraph& g = graph;
  std::vector<Counter> counters(num_threads, Counter(g));
  std::vector<std::vector<MinedRule>> found(end - begin);
  const auto mine_entity = [&](Counter& counter, int32_t c) {
    std::vector<int32_t> num_only_c(g.num_directed_relations, 0);
    // For each relation, count the entities whose only neighbor is c: for them, the dangling body has no
    // other Y.
    for (int64_t r = g.run_start[c]; dangling_rules && r < g.run_start[c + 1]; ++r) {
      const int32_t relation = g.runs[r].relation ^ 1;
      for (int64_t i = g.runs[r].begin; i < g.runs[r].end; ++i) {
        const EdgeRun& back = g.runs[g.inverse_run[i]];
        num_only_c[relation] += back.end - back.begin == 1;
      }
    }
    for (int64_t r = g.run_start[c]; r < g.run_start[c + 1]; ++r) {
      const EdgeRun& run = g.runs[r];
      const int32_t head = run.relation ^ 1;
      if (run.end - run.begin < min_support) continue;
      for (int64_t i = run.begin; i < run.end; ++i) {
        const int32_t x = g.targets[i];
        if (g.edge_start[x + 1] - g.edge_start[x] > max_constant_rule_degree) continue;
        for (int64_t k = g.run_start[x]; k < g.run_start[x + 1]; ++k) {
          const EdgeRun& body = g.runs[k];
          int64_t others = body.end - body.begin;
          for (int64_t e = body.begin; e < body.end; ++e) {
            const int64_t feature = g.inverse_run[e];
            if (counter.runs[feature]++ == 0) counter.runs_seen.push_back(feature);
            others -= g.targets[e] == c;
          }
          if (dangling_rules && others > 0 && counter.relations[body.relation]++ == 0)
            counter.relations_seen.push_back(body.relation);
        }
      }
      const auto emit = [&](int32_t relation, int32_t constant, int64_t support, int64_t size,
                            int64_t num_known) {
        if (support < min_support || support < min_confidence * (size + confidence_smoothing)) return;
        MinedRule rule;
        rule.head = head;
        rule.body.fill(-1);
        rule.body[0] = relation;
        rule.head_constant = c, rule.body_constant = constant;
        rule.support = support, rule.num_predictions = size, rule.num_known_predictions = num_known;
        found[c - begin].push_back(rule);
      };
      for (int64_t feature : counter.runs_seen) {
        const EdgeRun& body = g.runs[feature];
        const int64_t support = counter.runs[feature];
        counter.runs[feature] = 0;
        const int64_t size = body.end - body.begin;
        // Upper bound on the confidence: c itself may be one of the entities with this body.
        if (support < min_support || support < min_confidence * (size - 1 + confidence_smoothing)) continue;
        if (feature == r) continue;
        const int32_t d = static_cast<int32_t>(
            std::upper_bound(g.run_start.begin(), g.run_start.end(), feature) - g.run_start.begin() - 1);
        int64_t num_known = pca_confidence ? 0 : -1;
        for (int64_t e = body.begin; pca_confidence && e < body.end; ++e)
          num_known += g.targets[e] != c && g.find_run(g.targets[e], head) != nullptr;
        emit(body.relation ^ 1, d, support, size - g.has_edge(d, body.relation, c), num_known);
      }
      counter.runs_seen.clear();
      for (int32_t relation : counter.relations_seen) {
        const int64_t support = counter.relations[relation];
        counter.relations[relation] = 0;
        const int64_t size = static_cast<int64_t>(g.subjects[relation].size()) - num_only_c[relation] -
                             (g.find_run(c, relation) != nullptr);
        if (support < min_support || support < min_confidence * (size + confidence_smoothing)) continue;
        int64_t num_known = pca_confidence ? 0 : -1;
        for (int32_t x : g.subjects[relation]) {
          if (!pca_confidence) break;
          if (x == c || g.find_run(x, head) == nullptr) continue;
          const EdgeRun* own = g.find_run(x, relation);
          num_known += own->end - own->begin > 1 || g.targets[own->begin] != c;
        }
        emit(relation, -1, support, size, num_known);
      }
      counter.relations_seen.clear();
    }
  };
  parallel_for(ThreadLauncher(num_threads), end - begin, 1, [&](int64_t worker, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) mine_entity(counters[worker], begin + static_cast<int32_t>(i));
  });
  std::vector<MinedRule> all;
  for (auto& rules : found) {
    // The counters are in the order of edges; sort the rules by their content.
    std::sort(rules.begin(), rules.end(), [](const MinedRule& a, const MinedRule& b) {
      return std::tie(a.head, a.body, a.body_constant) < std::tie(b.head, b.body, b.body_constant);
    });
    all.insert(all.end(), rules.begin(), rules.end());
  }
  return all;
}

}  // namespace phalanx::kg
