// The trunk of the network of color planes, forward and backward: what one call needs, and the table of
// functions that each instruction set provides. The arithmetic is in planes_kernel.inc, JAX's side in planes_ffi.cc.
#pragma once

#include <cstdint>

namespace phalanx::planes {

constexpr int kColors = 10;
constexpr int kLanes = 8;   // samples that are computed together, one in each lane of a vector
constexpr int kMarks = 4;   // what a plane is told of a cell: its own color, black, another color, outside
constexpr int kWindow = 9;  // places of a 3x3 window

struct Shape {
  int64_t batch;
  int grids, rows, columns, depth, width;

  int64_t cells() const { return static_cast<int64_t>(rows) * columns; }
  int64_t units() const { return (batch + kLanes - 1) / kLanes; }
  // Numbers of one layer's features for one unit of samples.
  int64_t layer() const { return kColors * cells() * width * kLanes; }
};

// Pointers into the weights, or into sums of their gradients: one for each array of a trunk.
template <typename Number>
struct Parameters {
  Number* stem;          // [grids][kMarks][width]
  Number* stem_bias;     // [width]
  Number* colors;        // [kColors][width]
  Number* convolution;   // [depth][kWindow][width][width]
  Number* across;        // [depth][2 width][width]
  Number* across_bias;   // [depth][width]
  Number* context;       // [depth][2 width][width]
  Number* context_bias;  // [depth][width]
};

struct ForwardCall {
  Shape shape;
  Parameters<const float> weights;
  const int8_t* grids;  // [batch][grids][rows][columns]
  float* planes;        // [batch][kColors][rows][columns][width]
  float* features;      // [units][depth + 1] layers, for the backward pass; or null
  uint8_t* active;      // [units][depth][kColors][cells][width]: a bit for each lane whose unit fired; or null
};

struct BackwardCall {
  Shape shape;
  Parameters<const float> weights;
  const int8_t* grids;
  const float* features;
  const uint8_t* active;
  const float* cotangent;  // like `planes`
};




// One instruction set's compilation; each works on units [begin, end). `sums` are vectors of kLanes partial sums
// for every weight, zero at first; they belong to the caller's block of units.
struct Kernels {
  const char* isa;
  bool (*forward)(const ForwardCall&, int64_t begin, int64_t end, float* scratch);
  bool (*backward)(const BackwardCall&, int64_t begin, int64_t end, const Parameters<float>& sums, float* scratch);
};

extern const Kernels kBaselineKernels;
#ifdef PHALANX_HAVE_AVX2
extern const Kernels kAvx2Kernels;
#endif

// The best kernels that this processor can run.
const Kernels& kernels();

// Whether the kernels are compiled for a width.
bool has_width(int64_t width);

}  // namespace phalanx::planes
