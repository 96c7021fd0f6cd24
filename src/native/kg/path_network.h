// Questions (entity, directed relation) to a path network over a graph: the scores of all entities, and the
// gradient of the softmax loss of facts, each without itself.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kg/graph.h"
#include "kg/path_network_kernel.h"

namespace phalanx::paths {

class Questions {
 public:
  Questions(std::shared_ptr<const mining::Graph> graph, int32_t layers, bool specific, int32_t threads);
  ~Questions();
  Questions(const Questions&) = delete;
  // The loss of (entity, directed relation, answer) rows, summed, and its gradient.
  double learn(const float* parameters, const int32_t* rows, int64_t count, float* gradient);
  // Of all entities; those that are too far have one score, which is learned.
  void scores(const float* parameters, const int32_t* rows, int64_t count, float* table);
  const mining::Graph& graph() const { return *graph_; }
  const Layout& layout() const { return layout_; }

 private:
  struct Desk;
  void teach(Desk& desk, const float* parameters, const int32_t* row) const;
  std::shared_ptr<const mining::Graph> graph_;
  const Layout layout_;
  const int32_t threads_;
  std::mutex busy_;  // the desks are for one call at a time
  std::vector<std::unique_ptr<Desk>> desks_;
};

void bind_paths(nanobind::module_& module);

}  // namespace phalanx::paths
