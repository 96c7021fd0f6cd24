#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "kg/rules.h"

namespace phalanx::mining {

struct PathMiner::Seeker {
  explicit Seeker(const Graph& graph) : mark(graph.entities, -1), place(graph.entities, 0) {}
  std::vector<int64_t> mark, place;  // whose neighbor an entity is, and its first edge there
  int64_t serial = -1;
  Found found;
  int32_t path[kLongest + 1];
  Body body;
};

struct PathMiner::Tally {
  Tally(const Graph& graph, int64_t limit, size_t rules, size_t bodies)
      : walker(graph, limit), mark(graph.entities, -1), place(graph.entities, 0), support(rules, 0),
        known(rules, 0), pairs(bodies, 0) {}
  Walker walker;
  std::vector<int32_t> mark;
  std::vector<int64_t> place, support, known, pairs;
};

PathMiner::~PathMiner() = default;

PathMiner::PathMiner(std::shared_ptr<const Graph> graph, int32_t length, int64_t fan, int64_t enough, int64_t limit,
                     uint64_t seed, int32_t threads)
    : graph_(std::move(graph)), length_(length), fan_(fan), enough_(enough), limit_(limit), seed_(seed),
      threads_(threads) {
  const Graph& g = *graph_;
  // Every relation has its turn: first the first triple of each, in an order drawn by the seed.
  std::vector<std::vector<std::pair<uint64_t, Triple>>> by_relation(g.directed / 2);
  for (int32_t e = 0; e < g.entities; ++e)
    for (int64_t r = g.run_start[e]; r < g.run_start[e + 1]; ++r) {
      const Run& run = g.runs[r];
      if (run.relation % 2) continue;
      for (int64_t i = run.begin; i < run.end; ++i) {
        const uint64_t draw = mixed(mixed(mixed(seed_ ^ e) ^ g.targets[i]) ^ run.relation);
        by_relation[run.relation / 2].push_back({draw, {e, run.relation, g.targets[i]}});
      }
    }
  size_t most = 0;
  for (auto& some : by_relation) {
    std::sort(some.begin(), some.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first, a.second.head, a.second.tail) < std::tie(b.first, b.second.head, b.second.tail);
    });
    most = std::max(most, some.size());
  }
  for (size_t i = 0; i < most; ++i)
    for (const auto& some : by_relation)
      if (i < some.size()) triples_.push_back(some[i].second);
  order_.resize(g.entities);
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return std::make_pair(mixed(seed_ ^ a), a) < std::make_pair(mixed(seed_ ^ b), b);
  });
}

// A body and its reverse say the same, with the head turned round: the lesser of the two stands for both.
PathMiner::Key PathMiner::canonical(int32_t head, const Body& body, int32_t length) const {
  Body turned;
  turned.fill(-1);
  for (int32_t i = 0; i < length && i < kLongest; ++i) turned[i] = body[length - 1 - i] ^ 1;
  if (body < turned) return {head, body};
  if (turned < body) return {head ^ 1, turned};
  return {head & ~1, body};
}

bool PathMiner::discover(int64_t triples) {
  if (triples < 0) throw std::invalid_argument("triples must not be negative");
  const int64_t count = std::min<int64_t>(triples, triples_.size() - next_triple_);
  while (static_cast<int32_t>(seekers_.size()) < threads_) seekers_.push_back(std::make_unique<Seeker>(*graph_));
  constexpr int64_t grain = 64;
  each(threads_, (count + grain - 1) / grain, [&](int32_t thread, int64_t chunk) {
    for (int64_t i = chunk * grain; i < std::min(count, (chunk + 1) * grain); ++i)
      seek(triples_[next_triple_ + i], *seekers_[thread]);
  });
  next_triple_ += count;
  return next_triple_ < triples_.size();
}

void PathMiner::seek(const Triple& triple, Seeker& seeker) const {
  const Graph& g = *graph_;
  ++seeker.serial;
  for (int64_t i = g.start[triple.tail + 1]; i-- > g.start[triple.tail];) {
    seeker.mark[g.by_target[i].to] = seeker.serial;
    seeker.place[g.by_target[i].to] = i;
  }
  seeker.path[0] = triple.head;
  seeker.body.fill(-1);
  go(triple, seeker, 0);
}

// At the end of a path of `depth` steps: closes it where an edge leads to the tail, and goes on.
void PathMiner::go(const Triple& triple, Seeker& seeker, int32_t depth) const {
  const Graph& g = *graph_;
  const int32_t here = seeker.path[depth];
  if (seeker.mark[here] == seeker.serial) {
    for (int64_t i = seeker.place[here]; i < g.start[triple.tail + 1] && g.by_target[i].to == here; ++i) {
      const int32_t last = g.by_target[i].relation ^ 1;
      if (depth == 0 && last == triple.relation) continue;
      seeker.body[depth] = last;
      ++seeker.found[canonical(triple.relation, seeker.body, depth + 1)];
    }
    seeker.body[depth] = -1;
  }
  if (depth + 1 >= length_ || depth + 1 >= kLongest) return;
  // Of many edges `fan` are taken, evenly spread from a drawn one on.
  const int64_t begin = g.start[here], degree = g.start[here + 1] - begin;
  const int64_t taken = std::min(degree, fan_);
  const int64_t first =
      degree > taken ? static_cast<int64_t>(mixed(seed_ ^ mixed(triple.head) ^ mixed(triple.tail * 3ull + depth)) % degree) : 0;
  for (int64_t k = 0; k < taken; ++k) {
    const Edge& edge = g.by_target[begin + (first + k * degree / taken) % degree];
    bool again = edge.to == triple.tail;
    for (int32_t d = 0; d <= depth; ++d) again |= seeker.path[d] == edge.to;
    if (again) continue;
    seeker.body[depth] = edge.relation;
    seeker.path[depth + 1] = edge.to;
    go(triple, seeker, depth + 1);
    seeker.body[depth] = -1;
  }
}

int64_t PathMiner::choose(int64_t least, int64_t most) {
  if (most < 0) throw std::invalid_argument("most must not be negative");
  Found found;
  for (auto& seeker : seekers_) {
    for (const auto& [key, times] : seeker->found) found[key] += times;
    Found().swap(seeker->found);
  }
  std::vector<std::pair<int64_t, Key>> chosen;
  for (const auto& [key, times] : found)
    if (times >= least) chosen.push_back({times, key});
  const auto by_key = [](const Key& a, const Key& b) { return std::tie(a.body, a.head) < std::tie(b.body, b.head); };
  const auto better = [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : by_key(a.second, b.second);
  };
  std::sort(chosen.begin(), chosen.end(), better);
  if (static_cast<int64_t>(chosen.size()) > most) chosen.resize(most);
  std::sort(chosen.begin(), chosen.end(), [&](const auto& a, const auto& b) { return by_key(a.second, b.second); });
  bodies_.clear(), heads_.clear(), body_rules_.assign(1, 0);
  for (const auto& [times, key] : chosen) {
    if (bodies_.empty() || bodies_.back() != key.body) {
      if (!bodies_.empty()) body_rules_.push_back(static_cast<int64_t>(heads_.size()));
      bodies_.push_back(key.body);
    }
    heads_.push_back(key.head);
  }
  if (!bodies_.empty()) body_rules_.push_back(static_cast<int64_t>(heads_.size()));
  trie_ = std::make_unique<Trie>(bodies_);
  pairs_.assign(bodies_.size(), 0);
  tallies_.clear();
  for (int32_t t = 0; t < threads_; ++t)
    tallies_.push_back(std::make_unique<Tally>(*graph_, limit_, heads_.size(), bodies_.size()));
  next_entity_ = 0;
  return static_cast<int64_t>(heads_.size());
}

bool PathMiner::measure(int64_t entities) {
  if (entities < 0) throw std::invalid_argument("entities must not be negative");
  const Graph& g = *graph_;
  if (!trie_ || trie_->nodes.empty() || !trie_->nodes[0].alive) return false;
  const int64_t count = std::min<int64_t>(entities, order_.size() - next_entity_);
  each(threads_, count, [&](int32_t thread, int64_t item) {
    Tally& tally = *tallies_[thread];
    const int32_t x = order_[next_entity_ + item];
    for (int64_t i = g.start[x + 1]; i-- > g.start[x];) {
      tally.mark[g.by_target[i].to] = x;
      tally.place[g.by_target[i].to] = i;
    }
    tally.walker.walk(*trie_, x, [&](int32_t body, const std::vector<int32_t>& ends) {
      const int64_t begin = body_rules_[body], end = body_rules_[body + 1];
      tally.pairs[body] += static_cast<int64_t>(ends.size());
      for (int32_t y : ends) {
        if (tally.mark[y] != x) continue;
        int64_t rule = begin;
        for (int64_t i = tally.place[y]; i < g.start[x + 1] && g.by_target[i].to == y; ++i) {
          while (rule < end && heads_[rule] < g.by_target[i].relation) ++rule;
          if (rule < end && heads_[rule] == g.by_target[i].relation) ++tally.support[rule];
        }
      }
      // The subject of a head is x, or y where the head is turned round.
      for (int64_t rule = begin; rule < end; ++rule) {
        if (heads_[rule] % 2 == 0) {
          if (g.run(x, heads_[rule]) != nullptr) tally.known[rule] += static_cast<int64_t>(ends.size());
        } else {
          for (int32_t y : ends) tally.known[rule] += g.run(y, heads_[rule] ^ 1) != nullptr;
        }
      }
    });
  });
  std::fill(pairs_.begin(), pairs_.end(), 0);
  for (const auto& tally : tallies_)
    for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i] += tally->pairs[i];
  next_entity_ += count;
  std::vector<char> wanted(pairs_.size());
  for (size_t i = 0; i < pairs_.size(); ++i) wanted[i] = pairs_[i] < enough_;
  trie_->keep(wanted);
  return next_entity_ < order_.size() && trie_->nodes[0].alive;
}

std::vector<MinedRule> PathMiner::rules(int64_t least_support) const {
  std::vector<MinedRule> rules;
  std::vector<int64_t> support(heads_.size(), 0), known(heads_.size(), 0);
  for (const auto& tally : tallies_)
    for (size_t i = 0; i < heads_.size(); ++i) support[i] += tally->support[i], known[i] += tally->known[i];
  for (size_t b = 0; b < bodies_.size(); ++b)
    for (int64_t i = body_rules_[b]; i < body_rules_[b + 1]; ++i) {
      if (support[i] < least_support) continue;
      MinedRule rule;
      rule.head = heads_[i] & ~1;
      rule.body = bodies_[b];
      if (heads_[i] % 2) {
        const int32_t length = static_cast<int32_t>(
            std::find(rule.body.begin(), rule.body.end(), -1) - rule.body.begin());
        for (int32_t k = 0; k < length; ++k) rule.body[k] = bodies_[b][length - 1 - k] ^ 1;
      }
      rule.support = support[i], rule.body_size = pairs_[b], rule.known_size = known[i];
      rules.push_back(rule);
    }
  return rules;
}

Trie::Trie(const std::vector<Body>& bodies) {
  if (std::adjacent_find(bodies.begin(), bodies.end()) != bodies.end())
    throw std::invalid_argument("a rule is there twice");
  nodes.emplace_back();
  // Breadth first: the bodies of a node are a range, as they are sorted.
  struct Range {
    int32_t node, begin, end, depth;
  };
  std::vector<Range> queue{{0, 0, static_cast<int32_t>(bodies.size()), 0}};
  for (size_t at = 0; at < queue.size(); ++at) {
    const Range range = queue[at];
    int32_t i = range.begin;
    // -1 sorts first, so a body that ends here leads its range.
    if (range.depth == kLongest || (i < range.end && bodies[i][range.depth] < 0)) {
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

void Trie::keep(const std::vector<char>& wanted) {
  // Children come after their parents.
  for (size_t n = nodes.size(); n-- > 0;) {
    TrieNode& node = nodes[n];
    bool alive = node.body >= 0 && wanted[node.body];
    for (int32_t c = node.children; c < node.children_end; ++c) alive |= nodes[c].alive;
    node.alive = node.alive && alive;
  }
}

}  // namespace phalanx::mining
