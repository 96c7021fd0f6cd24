// A knowledge graph for rule mining: the edges of each entity both ways round, and a loop over two threads.
// Relation r forth is 2r and back is 2r + 1. Facts about one entity alone are no edges: no rule here has them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace phalanx::mining {

struct Edge {
  int32_t relation, to;
};

// The edges of one entity and one directed relation.
struct Run {
  int32_t relation;
  int64_t begin, end;
};

inline uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

class Graph {
 public:
  Graph(const int32_t* triples, int64_t count, int32_t entities, int32_t relations);

  const Run* run(int32_t entity, int32_t relation) const {
    const Run* first = runs.data() + run_start[entity];
    const Run* last = runs.data() + run_start[entity + 1];
    const Run* found = std::lower_bound(first, last, relation,
                                        [](const Run& run, int32_t wanted) { return run.relation < wanted; });
    return found != last && found->relation == relation ? found : nullptr;
  }
  bool has(int32_t entity, int32_t relation, int32_t to) const {
    const Run* found = run(entity, relation);
    return found != nullptr && std::binary_search(&targets[found->begin], &targets[found->end], to);
  }

  bool loop(int32_t entity, int32_t relation) const {
    return std::binary_search(loops.begin(), loops.end(), std::make_pair(entity, relation / 2));
  }

  int32_t entities, directed;
  std::vector<std::pair<int32_t, int32_t>> loops;  // facts about one entity alone: it and the relation
  std::vector<int64_t> start;      // entities + 1: where the edges of each begin
  std::vector<int32_t> targets;    // by entity, relation and target
  std::vector<Edge> by_target;     // the same edges by entity, target and relation
  std::vector<Run> runs;
  std::vector<int64_t> run_start;  // entities + 1
  std::vector<int64_t> twin;       // of each edge: the run of its target that holds the edge back
  std::vector<std::vector<int32_t>> subjects;  // by directed relation: who has such an edge, ascending
};

// Calls `work(thread, item)` for the items of [0, count), each once; what must not depend on the number of
// threads is summed up afterwards.
template <typename Work>
void each(int32_t threads, int64_t count, const Work& work) {
  std::atomic<int64_t> next{0};
  std::exception_ptr failed;
  std::mutex lock;
  auto loop = [&](int32_t thread) {
    try {
      for (int64_t item = next++; item < count; item = next++) work(thread, item);
    } catch (...) {
      std::lock_guard<std::mutex> held(lock);
      failed = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  for (int32_t thread = 1; thread < threads && thread < count; ++thread) others.emplace_back(loop, thread);
  loop(0);
  for (auto& other : others) other.join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace phalanx::mining
