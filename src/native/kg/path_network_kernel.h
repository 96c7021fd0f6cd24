// Layers of the path network: messages are passed outward from the entity of a query, one step per layer, so
// that the score of an answer depends on all paths to it. Forward and backward pass for one query.
#pragma once

#include <cstdint>

namespace phalanx::kg::path_network {

constexpr int32_t kWidth = 32;  // features of an entity
constexpr int32_t kMaxLayers = 8;

// Offsets of the parameters in one array of floats.
struct Layout {
  int32_t num_layers, num_directed_relations;
  bool query_dependent_relations;  // messages have extra weights for each pair of query and edge relation
  int64_t layer_size() const {
    const int64_t messages = int64_t{num_directed_relations} * kWidth *
                             (query_dependent_relations ? 1 + num_directed_relations : 1);
    return messages + 2 * kWidth * kWidth + 3 * kWidth;
  }
  int64_t layer(int32_t t) const { return t * layer_size(); }
  int64_t mixing(int32_t t) const { return layer(t + 1) - 3 * kWidth - 2 * kWidth * kWidth; }
  int64_t start() const { return num_layers * layer_size(); }
  int64_t readout() const { return start() + int64_t{num_directed_relations} * kWidth; }
  int64_t unreachable_score() const {
    return readout() + int64_t{num_directed_relations} * kWidth;
  }  // score of entities that no path reaches, by query relation
  int64_t size() const { return unreachable_score() + num_directed_relations; }
};

// The entities near the entity of a query, sorted by distance, and the edges, sorted by source.
struct Neighborhood {
  int32_t num_entities[kMaxLayers + 1];  // number of entities within t steps
  int64_t num_edges[kMaxLayers + 1];     // number of edges that start within t steps
  const int32_t *source, *relation, *target;
};

// Returns the number of floats that `forward` and `backward` need as a workspace.
inline int64_t workspace_size(const Layout& layout, const Neighborhood& neighborhood) {
  int64_t size =
      int64_t{layout.num_layers} * (2 * layout.num_directed_relations + 2 * kWidth) * kWidth + kWidth;
  for (int32_t t = 1; t <= layout.num_layers; ++t)
    size += int64_t{neighborhood.num_entities[t]} * (3 * kWidth + 1);
  return size + int64_t{neighborhood.num_entities[layout.num_layers]} * (2 * kWidth + 1);
}

struct Kernels {
  // Computes the score of each entity in the neighborhood.
  void (*forward)(const Layout&, const Neighborhood&, int32_t relation, const float* parameters,
                  float* workspace, float* scores);
  // Adds the gradient of the parameters, given the gradient of the scores. `workspace` must be as `forward`
  // left it. Entities whose score gradient is exactly 0 are skipped.
  void (*backward)(const Layout&, const Neighborhood&, int32_t relation, const float* parameters,
                   float* workspace, const float* score_gradient, float* gradient);
};

namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}

}  // namespace phalanx::kg::path_network
