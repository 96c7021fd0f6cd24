// Trunk of the color-equivariant network, forward and backward: a stem that encodes cells, followed by
// residual layers of a 3x3 convolution per color, pooling over colors and pooling over cells. All colors
// share the weights.
#pragma once

#include <cstdint>

namespace phalanx::arc::color_equivariant {

constexpr int kColors = 10;
constexpr int kLanes = 8;       // samples that are computed together, one per lane of a vector
constexpr int kNumMarks = 4;    // how a color sees a cell: own color, black, another color, outside
constexpr int kWindowSize = 9;  // cells of a 3x3 window

struct Shape {
  int64_t batch;
  int num_grids, rows, columns, num_layers, width;  // grids per sample

  int64_t cells() const { return static_cast<int64_t>(rows) * columns; }
  // Blocks of kLanes samples.
  int64_t num_blocks() const { return (batch + kLanes - 1) / kLanes; }
  // Floats in the features of one layer for one block.
  int64_t layer_floats() const { return kColors * cells() * width * kLanes; }
};

// The arrays of weights, or of sums of their gradients.
template <typename Number>
struct Parameters {
  Number* stem;          // [num_grids][kNumMarks][width]
  Number* stem_bias;     // [width]
  Number* colors;        // [kColors][width]
  Number* convolution;   // [num_layers][kWindowSize][width][width]
  Number* across;        // [num_layers][2 * width][width]: pooled over colors
  Number* across_bias;   // [num_layers][width]
  Number* context;       // [num_layers][2 * width][width]: pooled over cells
  Number* context_bias;  // [num_layers][width]
};

struct ForwardCall {
  Shape shape;
  Parameters<const float> weights;
  const int8_t* grids;    // [batch][num_grids][rows][columns]
  float* features;        // [batch][kColors][rows][columns][width]
  float* saved_features;  // [num_blocks][num_layers + 1] layers for the backward pass, or null
  uint8_t* active;        // [num_blocks][num_layers][kColors][cells][width]: a bit per lane, or null
};

struct BackwardCall {
  Shape shape;
  Parameters<const float> weights;
  const int8_t* grids;
  const float* saved_features;
  const uint8_t* active;
  const float* features_gradient;  // like `features`
};

// Process the blocks [begin, end) and return whether there is a kernel for the width. `sums` are zero at
// first and have kLanes partial sums for each weight.
struct Kernels {
  bool (*forward)(const ForwardCall&, int64_t begin, int64_t end, float* scratch);
  bool (*backward)(const BackwardCall&, int64_t begin, int64_t end, const Parameters<float>& sums,
                   float* scratch);
};

namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}

}  // namespace phalanx::arc::color_equivariant
