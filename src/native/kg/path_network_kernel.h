// A network that passes messages outward from the entity that a question asks about, one step a layer, so that
// an answer is scored by all paths to it at once. Forward and backward of one question; sums are the caller's.
#pragma once

#include <cstdint>

namespace phalanx::paths {

constexpr int32_t kWidth = 32;       // numbers of an entity at a layer
constexpr int32_t kMostLayers = 8;

// Where the parameters are, as one row of floats.
struct Layout {
  int32_t layers, directed;
  bool specific;  // whether what a relation does to a message depends on the relation asked for
  int64_t layer_size() const {
    const int64_t messages = int64_t{directed} * kWidth * (specific ? 1 + directed : 1);
    return messages + 2 * kWidth * kWidth + 3 * kWidth;
  }
  int64_t layer(int32_t t) const { return t * layer_size(); }
  int64_t mixing(int32_t t) const { return layer(t + 1) - 3 * kWidth - 2 * kWidth * kWidth; }
  int64_t start() const { return layers * layer_size(); }
  int64_t last() const { return start() + int64_t{directed} * kWidth; }
  int64_t rest() const { return last() + int64_t{directed} * kWidth; }
  int64_t size() const { return rest() + directed; }
};

// The entities around a question in the order of their distance, itself first, and the edges by their source.
struct Hood {
  int32_t entities[kMostLayers + 1];  // how many are within so many steps
  int64_t edges[kMostLayers + 1];     // how many begin within so many steps
  const int32_t *source, *relation, *target;
};

// Floats that `forward` and `backward` need to work in.
inline int64_t work_size(const Layout& layout, const Hood& hood) {
  int64_t size = int64_t{layout.layers} * (2 * layout.directed + 2 * kWidth) * kWidth + kWidth;
  for (int32_t t = 1; t <= layout.layers; ++t) size += int64_t{hood.entities[t]} * (3 * kWidth + 1);
  return size + int64_t{hood.entities[layout.layers]} * (2 * kWidth + 1);
}

struct Kernels {
  // Writes the score of each entity around.
  void (*forward)(const Layout&, const Hood&, int32_t relation, const float* parameters, float* work, float* scores);
  // Adds the gradient of the parameters, given that of the scores; `work` is as `forward` left it. Entities
  // whose scores have a slope of exactly 0 cost nothing.
  void (*backward)(const Layout&, const Hood&, int32_t relation, const float* parameters, float* work,
                   const float* slope, float* gradient);
};

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;

}  // namespace phalanx::paths
