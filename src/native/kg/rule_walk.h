// Bodies of path rules in a trie, and the walk that finds where each of them leads from an entity.
// No entity is on a path twice, so a path never goes over the edge that it is to predict.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kg/graph.h"

namespace phalanx::mining {

constexpr int32_t kLongest = 5;
using Body = std::array<int32_t, kLongest>;  // directed relations, then -1

struct TrieNode {
  int32_t relation = -1;
  int32_t children = 0, children_end = 0;  // nodes, by relation
  int32_t body = -1;                       // the body that ends here
  bool alive = true;                       // whether a body here or below is still wanted
};

class Trie {
 public:
  // `bodies` are sorted and each there once; body i is the i-th.
  explicit Trie(const std::vector<Body>& bodies);
  // Forgets the bodies that are no longer wanted.
  void keep(const std::vector<char>& wanted);
  std::vector<TrieNode> nodes;
};

class Walker {
 public:
  Walker(const Graph& graph, int64_t limit)
      : graph_(graph), limit_(limit), reached_(graph.entities, 0), present_(graph.directed, 0) {}

  // Calls `visit(body, ends)` with the different ends of each body's paths from `from`; a node of the trie
  // goes on from its first `limit` paths only.
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
    const int64_t mark = ++present_mark_;
    for (int64_t p = 0; p < count; ++p) {
      const int32_t last = paths_[depth][p * width + depth];
      for (int64_t r = graph_.run_start[last]; r < graph_.run_start[last + 1]; ++r)
        present_[graph_.runs[r].relation] = mark;
    }
    // The marks of the levels below overwrite these.
    std::vector<int32_t>& found = found_[depth];
    found.clear();
    for (int32_t c = node.children; c < node.children_end; ++c)
      if (trie.nodes[c].alive && present_[trie.nodes[c].relation] == mark) found.push_back(c);
    for (size_t i = 0; i < found.size(); ++i) step(trie, found[i], depth, count, visit);
  }

  template <typename Visit>
  void step(const Trie& trie, int32_t number, int32_t depth, int64_t count, const Visit& visit) {
    const TrieNode& node = trie.nodes[number];
    const int32_t width = depth + 1;
    const bool further = node.children != node.children_end;
    std::vector<int32_t>& longer = paths_[depth + 1];
    longer.clear();
    ends_.clear();
    if (++serial_ == 0) {
      std::fill(reached_.begin(), reached_.end(), 0);
      serial_ = 1;
    }
    int64_t stored = 0;
    for (int64_t p = 0; p < count && stored < limit_; ++p) {
      const int32_t* path = &paths_[depth][p * width];
      const Run* run = graph_.run(path[depth], node.relation);
      if (run == nullptr) continue;
      for (int64_t i = run->begin; i < run->end && stored < limit_; ++i) {
        const int32_t to = graph_.targets[i];
        bool again = false;
        for (int32_t d = 0; d < depth; ++d) again |= path[d] == to;
        if (again) continue;
        ++stored;
        if (further) {
          longer.insert(longer.end(), path, path + width);
          longer.push_back(to);
        }
        if (node.body >= 0 && reached_[to] != serial_) {
          reached_[to] = serial_;
          ends_.push_back(to);
        }
      }
    }
    if (!ends_.empty()) visit(node.body, ends_);
    if (further && !longer.empty()) descend(trie, number, depth + 1, visit);
  }

  const Graph& graph_;
  const int64_t limit_;
  std::vector<uint32_t> reached_;
  std::vector<int64_t> present_;
  std::vector<int32_t> ends_;
  uint32_t serial_ = 0;
  int64_t present_mark_ = 0;
  std::array<std::vector<int32_t>, kLongest + 1> paths_, found_;
};

}  // namespace phalanx::mining
