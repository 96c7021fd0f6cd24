// The custom calls `phalanx_arc_color_equivariant_{forward,forward_with_residuals,backward}`. Gradients are
// summed in an order that does not depend on the number of threads.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "arc/color_equivariant.h"
#include "common/cpu_features.h"
#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "common/scratch.h"

namespace phalanx::arc::color_equivariant {
namespace {

using S8 = ffi::Buffer<ffi::S8>;
using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;

// The gradients of this many blocks of samples are summed by one worker, one after another. The number is
// fixed, so the order of all sums is, too.
constexpr int64_t kBlocksPerSum = 4;

constexpr int kNumWeights = 8;
constexpr const char* kWeightNames[kNumWeights] = {"stem",   "stem_bias",   "colors",  "convolution",
                                                   "across", "across_bias", "context", "context_bias"};

struct Weights {
  F32 stem, stem_bias, colors, convolution, across, across_bias, context, context_bias;

  std::array<const F32*, kNumWeights> all() const {
    return {&stem, &stem_bias, &colors, &convolution, &across, &across_bias, &context, &context_bias};
  }
};

bool has_kernel(int64_t width) {
  return width == 8 || width == 12 || width == 16 || width == 24 || width == 32;
}

// Returns the number of vectors that a block of samples needs before the first layer.
int64_t sample_vectors(const Shape& s) { return (4 + kColors) * s.num_grids * s.cells() + s.cells(); }

// Returns the number of floats in each array of weights, in the order of `Parameters`.
std::array<int64_t, kNumWeights> weight_sizes(const Shape& s) {
  const int64_t w = s.width, n = s.num_layers;
  return {s.num_grids * kNumMarks * w,
          w,
          kColors * w,
          n * kWindowSize * w * w,
          n * 2 * w * w,
          n * w,
          n * 2 * w * w,
          n * w};
}

template <typename Number>
Parameters<Number> to_parameters(Number* const* arrays) {
  return {arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], arrays[6], arrays[7]};
}

Shape read_shape(ShapeCheck& check, const S8& grids, const Weights& weights,
                 Parameters<const float>& parameters) {
  const Shape s = {axis_size(grids, 0),
                   static_cast<int>(axis_size(grids, 1)),
                   static_cast<int>(axis_size(grids, 2)),
                   static_cast<int>(axis_size(grids, 3)),
                   static_cast<int>(axis_size(weights.convolution, 0)),
                   static_cast<int>(axis_size(weights.convolution, 3))};
  check.require(grids.dimensions().size() == 4, "grids must have the shape [batch, grids, rows, columns]");
  check.require(weights.convolution.dimensions().size() == 4,
                "convolution must have the shape [layers, 9, width, width]");
  check.require(has_kernel(s.width), "width must be 8, 12, 16, 24 or 32");
  check.require(s.num_grids >= 1 && s.rows >= 1 && s.columns >= 1 && s.rows <= 32 && s.columns <= 32,
                "there must be at least one grid, with 1 to 32 rows and columns");
  if (check.failed()) return s;
  const auto sizes = weight_sizes(s);
  const auto buffers = weights.all();
  const float* arrays[kNumWeights];
  for (int k = 0; k < kNumWeights; ++k) {
    check.expect_size(kWeightNames[k], *buffers[k], sizes[k]);
    arrays[k] = buffers[k]->typed_data();
  }
  parameters = to_parameters(arrays);
  return s;
}

ffi::Error run_forward(ffi::ThreadPool& pool, ShapeCheck& check, const S8& grids, const Weights& weights,
                       ffi::Result<F32>& features, ffi::Result<F32>* saved_features,
                       ffi::Result<U8>* active) {
  ForwardCall call = {};
  call.shape = read_shape(check, grids, weights, call.weights);
  if (check.failed()) return check.error();
  const Shape& s = call.shape;
  const int64_t layer = s.layer_floats();
  check.expect_size("features", *features, s.batch * layer / kLanes);
  if (saved_features != nullptr) {
    check.expect_size("saved_features", **saved_features, s.num_blocks() * (s.num_layers + 1) * layer);
    check.expect_size("active", **active, s.num_blocks() * s.num_layers * layer / kLanes);
    call.saved_features = (*saved_features)->typed_data();
    call.active = (*active)->typed_data();
  }
  if (check.failed()) return check.error();
  call.grids = grids.typed_data();
  call.features = features->typed_data();
  const int64_t scratch_floats = kLanes * (sample_vectors(s) + s.cells() * s.width) + 2 * layer;
  const Kernels& kernels = PHALANX_SELECT_KERNELS;
  parallel_for(PoolLauncher(pool), s.num_blocks(), 1, [&](int64_t, int64_t begin, int64_t end) {
    kernels.forward(call, begin, end, thread_scratch(scratch_floats));
  });
  return ffi::Error::Success();
}

ffi::Error forward(ffi::ThreadPool pool, S8 grids, F32 stem, F32 stem_bias, F32 colors, F32 convolution,
                   F32 across, F32 across_bias, F32 context, F32 context_bias, ffi::Result<F32> features) {
  ShapeCheck check("phalanx_arc_color_equivariant_forward");
  const Weights weights = {stem, stem_bias, colors, convolution, across, across_bias, context, context_bias};
  return run_forward(pool, check, grids, weights, features, nullptr, nullptr);
}

ffi::Error forward_with_residuals(ffi::ThreadPool pool, S8 grids, F32 stem, F32 stem_bias, F32 colors,
                                  F32 convolution, F32 across, F32 across_bias, F32 context, F32 context_bias,
                                  ffi::Result<F32> features, ffi::Result<F32> saved_features,
                                  ffi::Result<U8> active) {
  ShapeCheck check("phalanx_arc_color_equivariant_forward_with_residuals");
  const Weights weights = {stem, stem_bias, colors, convolution, across, across_bias, context, context_bias};
  return run_forward(pool, check, grids, weights, features, &saved_features, &active);
}

ffi::Error backward(ffi::ThreadPool pool, S8 grids, F32 stem, F32 stem_bias, F32 colors, F32 convolution,
                    F32 across, F32 across_bias, F32 context, F32 context_bias, F32 saved_features, U8 active,
                    F32 features_gradient, ffi::Result<F32> d_stem, ffi::Result<F32> d_stem_bias,
                    ffi::Result<F32> d_colors, ffi::Result<F32> d_convolution, ffi::Result<F32> d_across,
                    ffi::Result<F32> d_across_bias, ffi::Result<F32> d_context,
                    ffi::Result<F32> d_context_bias) {
  ShapeCheck check("phalanx_arc_color_equivariant_backward");
  const Weights weights = {stem, stem_bias, colors, convolution, across, across_bias, context, context_bias};
  BackwardCall call = {};
  call.shape = read_shape(check, grids, weights, call.weights);
  if (check.failed()) return check.error();
  const Shape& s = call.shape;
  const int64_t layer = s.layer_floats();
  check.expect_size("saved_features", saved_features, s.num_blocks() * (s.num_layers + 1) * layer);
  check.expect_size("active", active, s.num_blocks() * s.num_layers * layer / kLanes);
  check.expect_size("features_gradient", features_gradient, s.batch * layer / kLanes);
  const auto sizes = weight_sizes(s);
  ffi::Result<F32>* gradients[kNumWeights] = {&d_stem,   &d_stem_bias,   &d_colors,  &d_convolution,
                                              &d_across, &d_across_bias, &d_context, &d_context_bias};
  int64_t total = 0;
  for (int k = 0; k < kNumWeights; ++k) {
    check.expect_size(kWeightNames[k], **gradients[k], sizes[k]);
    total += sizes[k];
  }
  if (check.failed()) return check.error();
  call.grids = grids.typed_data();
  call.saved_features = saved_features.typed_data();
  call.active = active.typed_data();
  call.features_gradient = features_gradient.typed_data();

  const int64_t num_sums = (s.num_blocks() + kBlocksPerSum - 1) / kBlocksPerSum;
  const int64_t convolution_floats = static_cast<int64_t>(s.num_layers) * kWindowSize * s.width * s.width;
  const int64_t scratch_floats =
      kLanes * (sample_vectors(s) + 2 * s.cells() * s.width) + layer + convolution_floats;
  std::vector<float> partial_sums(static_cast<size_t>(num_sums * total));
  const Kernels& kernels = PHALANX_SELECT_KERNELS;
  parallel_for(PoolLauncher(pool), num_sums, 1, [&](int64_t, int64_t begin, int64_t end) {
    float* lane_sums = thread_scratch(total * kLanes, 1);
    float* arrays[kNumWeights];
    int64_t offset = 0;
    for (int k = 0; k < kNumWeights; ++k) arrays[k] = lane_sums + offset * kLanes, offset += sizes[k];
    for (int64_t sum = begin; sum < end; ++sum) {
      std::memset(lane_sums, 0, sizeof(float) * static_cast<size_t>(total * kLanes));
      const int64_t first_block = sum * kBlocksPerSum;
      const int64_t last_block = std::min(first_block + kBlocksPerSum, s.num_blocks());
      kernels.backward(call, first_block, last_block, to_parameters(arrays), thread_scratch(scratch_floats));
      float* to = partial_sums.data() + sum * total;
      for (int64_t k = 0; k < total; ++k) {
        const float* v = lane_sums + k * kLanes;
        to[k] = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
      }
    }
  });
  int64_t offset = 0;
  for (int k = 0; k < kNumWeights; ++k) {
    float* to = (*gradients[k])->typed_data();
    std::memset(to, 0, sizeof(float) * static_cast<size_t>(sizes[k]));
    for (int64_t sum = 0; sum < num_sums; ++sum) {
      const float* from = partial_sums.data() + sum * total + offset;
      for (int64_t j = 0; j < sizes[k]; ++j) to[j] += from[j];
    }
    offset += sizes[k];
  }
  return ffi::Error::Success();
}

}  // namespace

// The grids and the eight arrays of weights.
#define PHALANX_TRUNK_INPUTS \
  .Arg<S8>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>()

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_color_equivariant_forward, NoThrow<forward>::call,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() PHALANX_TRUNK_INPUTS.Ret<F32>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_color_equivariant_forward_with_residuals,
                              NoThrow<forward_with_residuals>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>() PHALANX_TRUNK_INPUTS  //
                                  .Ret<F32>()                                   // features
                                  .Ret<F32>()                                   // saved features
                                  .Ret<U8>());                                  // active

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_arc_color_equivariant_backward, NoThrow<backward>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>() PHALANX_TRUNK_INPUTS  //
                                  .Arg<F32>()                                   // saved features
                                  .Arg<U8>()                                    // active
                                  .Arg<F32>()                                   // gradient of the features
                                  .Ret<F32>()                                   // gradients of the weights
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>());

}  // namespace phalanx::arc::color_equivariant
