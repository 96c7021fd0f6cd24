// A path network over a graph: scores of all entities for queries (entity, directed relation), and the
// gradient of the softmax loss of triples, each of which is hidden from its own query.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kg/graph.h"
#include "kg/path_network_kernel.h"

namespace phalanx::kg::path_network {

class PathNetwork {
 public:
  PathNetwork(std::shared_ptr<const TripleGraph> graph, int32_t num_layers, bool query_dependent_relations,
              int32_t num_threads);
  ~PathNetwork();
  PathNetwork(const PathNetwork&) = delete;
  // Returns the total loss of rows (entity, directed relation, answer) and writes its gradient.
  double loss_and_gradient(const float* parameters, const int32_t* rows, int64_t count, float* gradient);
  // Writes the scores of all entities. Entities out of reach share one learned score per relation.
  void score(const float* parameters, const int32_t* rows, int64_t count, float* table);
  const TripleGraph& graph() const { return *graph_; }
  const Layout& layout() const { return layout_; }

 private:
  struct Workspace;
  void accumulate_gradient(Workspace& workspace, const float* parameters, const int32_t* row) const;
  std::shared_ptr<const TripleGraph> graph_;
  const Layout layout_;
  const int32_t num_threads_;
  std::mutex mutex_;  // workspaces can be used by one call at a time
  std::vector<std::unique_ptr<Workspace>> workspaces_;
};

}  // namespace phalanx::kg::path_network
