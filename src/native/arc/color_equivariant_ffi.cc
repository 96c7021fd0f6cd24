// The trunk of color planes as XLA custom calls: sizes are checked here, work is shared over XLA's thread pool, and
// gradients are summed in an order that does not depend on how many threads there are.

#include "arc/color_equivariant_ffi.h"

#include <cstring>
#include <string>
#include <vector>

#include "common/parallel.h"
#include "arc/color_equivariant.h"
#include "common/cpu_features.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace phalanx::planes {

const Kernels& kernels() { return PHALANX_BEST_KERNELS; }

namespace {

// Units of samples whose gradients are summed by one thread, one after the other; fixed, so that sums are too.
constexpr int64_t kBlock = 4;

using S8 = ffi::Buffer<ffi::S8>;
using F32 = ffi::Buffer<ffi::F32>;
using U8 = ffi::Buffer<ffi::U8>;

constexpr int kArrays = 8;

int64_t unit_vectors(const Shape& shape) { return (4 + kColors) * shape.grids * shape.cells() + shape.cells(); }

// Floats in each array of a trunk's weights, in the order of `Parameters`.
std::vector<int64_t> sizes_of(const Shape& s) {
  const int64_t w = s.width, d = s.depth;
  return {s.grids * kMarks * w, w, kColors * w, d * kWindow * w * w, d * 2 * w * w, d * w, d * 2 * w * w, d * w};
}

template <typename Number>
Parameters<Number> parameters(Number* const* arrays) {
  return {arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], arrays[6], arrays[7]};
}

// Memory of a thread's own, aligned for vectors; kept from call to call.
float* scratch_memory(int64_t floats, int which) {
  thread_local std::vector<float> memory[2];
  std::vector<float>& mine = memory[which];
  if (static_cast<int64_t>(mine.size()) < floats + 16) mine.resize(static_cast<size_t>(floats + 16));
  const auto address = reinterpret_cast<uintptr_t>(mine.data());
  return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

struct Weights {
  F32 stem, stem_bias, colors, convolution, across, across_bias, context, context_bias;
};

ffi::Error read_shape(const S8& grids, const Weights& w, Shape& shape, const float** arrays) {
  const auto size = grids.dimensions();
  const auto kernel = w.convolution.dimensions();
  if (size.size() != 4 || kernel.size() != 4)
    return ffi::Error::InvalidArgument("planes: grids must be [batch, grids, rows, columns], convolutions have 4 axes");
  shape = {size[0], static_cast<int>(size[1]), static_cast<int>(size[2]), static_cast<int>(size[3]),
           static_cast<int>(kernel[0]), static_cast<int>(kernel[3])};
  if (!has_width(shape.width)) return ffi::Error::InvalidArgument("planes: no kernel for this width");
  if (shape.grids < 1 || shape.rows < 1 || shape.columns < 1 || shape.rows > 32 || shape.columns > 32)
    return ffi::Error::InvalidArgument("planes: grids must be 1x1 to 32x32");
  const F32* all[kArrays] = {&w.stem,   &w.stem_bias,   &w.colors,  &w.convolution,
                             &w.across, &w.across_bias, &w.context, &w.context_bias};
  const std::vector<int64_t> sizes = sizes_of(shape);
  for (int k = 0; k < kArrays; ++k) {
    if (static_cast<int64_t>(all[k]->element_count()) != sizes[k])
      return ffi::Error::InvalidArgument("planes: weights " + std::to_string(k) + " have " +
                                         std::to_string(all[k]->element_count()) + " numbers, not " +
                                         std::to_string(sizes[k]));
    arrays[k] = all[k]->typed_data();
  }
  return ffi::Error::Success();
}

bool holds(size_t count, int64_t wanted) { return static_cast<int64_t>(count) == wanted; }

ffi::Error run_forward(ffi::ThreadPool& pool, const S8& grids, const Weights& w, ffi::Result<F32>& planes,
                       float* features, int64_t num_features, uint8_t* active, int64_t num_active) {
  ForwardCall call;
  const float* arrays[kArrays];
  if (ffi::Error error = read_shape(grids, w, call.shape, arrays); !error.success()) return error;
  const Shape& shape = call.shape;
  const int64_t layer = shape.layer();
  if (!holds(planes->element_count(), shape.batch * layer / kLanes) ||
      (features != nullptr && (num_features != shape.units() * (shape.depth + 1) * layer ||
                               num_active != shape.units() * shape.depth * layer / kLanes)))
    return ffi::Error::InvalidArgument("planes: the results' sizes do not fit the grids'");
  call.weights = parameters(arrays);
  call.grids = grids.typed_data();
  call.planes = planes->typed_data();
  call.features = features;
  call.active = active;
  const int64_t floats = kLanes * (unit_vectors(shape) + shape.cells() * shape.width) + 2 * layer;
  const Kernels& best = kernels();
  parallel_for(pool, shape.units(), 1,
               [&](int64_t begin, int64_t end) { best.forward(call, begin, end, scratch_memory(floats, 0)); });
  return ffi::Error::Success();
}

ffi::Error forward(ffi::ThreadPool pool, S8 grids, F32 stem, F32 stem_bias, F32 colors, F32 convolution, F32 across,
                   F32 across_bias, F32 context, F32 context_bias, ffi::Result<F32> planes) {
  const Weights w = {stem, stem_bias, colors, convolution, across, across_bias, context, context_bias};
  return run_forward(pool, grids, w, planes, nullptr, 0, nullptr, 0);
}

ffi::Error forward_saving(ffi::ThreadPool pool, S8 grids, F32 stem, F32 stem_bias, F32 colors, F32 convolution,
                          F32 across, F32 across_bias, F32 context, F32 context_bias, ffi::Result<F32> planes,
                          ffi::Result<F32> features, ffi::Result<U8> active) {
  const Weights w = {stem, stem_bias, colors, convolution, across, across_bias, context, context_bias};
  return run_forward(pool, grids, w, planes, features->typed_data(), features->element_count(), active->typed_data(),
                     active->element_count());
}

ffi::Error backward(ffi::ThreadPool pool, S8 grids, F32 stem, F32 stem_bias, F32 colors, F32 convolution, F32 across,
                    F32 across_bias, F32 context, F32 context_bias, F32 features, U8 active, F32 cotangent,
                    ffi::Result<F32> d_stem, ffi::Result<F32> d_stem_bias, ffi::Result<F32> d_colors,
                    ffi::Result<F32> d_convolution, ffi::Result<F32> d_across, ffi::Result<F32> d_across_bias,
                    ffi::Result<F32> d_context, ffi::Result<F32> d_context_bias) {
  BackwardCall call;
  const Weights w = {stem, stem_bias, colors, convolution, across, across_bias, context, context_bias};
  const float* arrays[kArrays];
  if (ffi::Error error = read_shape(grids, w, call.shape, arrays); !error.success()) return error;
  const Shape& shape = call.shape;
  const int64_t layer = shape.layer();
  if (!holds(features.element_count(), shape.units() * (shape.depth + 1) * layer) ||
      !holds(active.element_count(), shape.units() * shape.depth * layer / kLanes) ||
      !holds(cotangent.element_count(), shape.batch * layer / kLanes))
    return ffi::Error::InvalidArgument("planes: what the forward pass kept does not fit the grids");
  const std::vector<int64_t> sizes = sizes_of(shape);
  ffi::Result<F32>* results[kArrays] = {&d_stem,   &d_stem_bias,   &d_colors,  &d_convolution,
                                        &d_across, &d_across_bias, &d_context, &d_context_bias};
  int64_t total = 0;
  for (int k = 0; k < kArrays; ++k) {
    if (!holds((*results[k])->element_count(), sizes[k]))
      return ffi::Error::InvalidArgument("planes: a gradient's size is not its weight's");
    total += sizes[k];
  }
  call.weights = parameters(arrays);
  call.grids = grids.typed_data();
  call.features = features.typed_data();
  call.active = active.typed_data();
  call.cotangent = cotangent.typed_data();

  const int64_t blocks = (shape.units() + kBlock - 1) / kBlock;
  const int64_t turned = static_cast<int64_t>(shape.depth) * kWindow * shape.width * shape.width;
  const int64_t floats = kLanes * (unit_vectors(shape) + 2 * shape.cells() * shape.width) + layer + turned;
  std::vector<float> partial(static_cast<size_t>(blocks * total));
  const Kernels& best = kernels();
  parallel_for(pool, blocks, 1, [&](int64_t begin, int64_t end) {
    float* sums = scratch_memory(total * kLanes, 1);
    float* pieces[kArrays];
    int64_t at = 0;
    for (int k = 0; k < kArrays; ++k) pieces[k] = sums + at * kLanes, at += sizes[k];
    for (int64_t block = begin; block < end; ++block) {
      std::memset(sums, 0, sizeof(float) * static_cast<size_t>(total * kLanes));
      const int64_t last = (block + 1) * kBlock < shape.units() ? (block + 1) * kBlock : shape.units();
      best.backward(call, block * kBlock, last, parameters(pieces), scratch_memory(floats, 0));
      float* mine = partial.data() + block * total;
      for (int64_t k = 0; k < total; ++k) {
        const float* lanes = sums + k * kLanes;
        mine[k] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
      }
    }
  });
  int64_t at = 0;
  for (int k = 0; k < kArrays; ++k) {
    float* to = (*results[k])->typed_data();
    std::memset(to, 0, sizeof(float) * static_cast<size_t>(sizes[k]));
    for (int64_t block = 0; block < blocks; ++block) {
      const float* from = partial.data() + block * total + at;
      for (int64_t j = 0; j < sizes[k]; ++j) to[j] += from[j];
    }
    at += sizes[k];
  }
  return ffi::Error::Success();
}

}  // namespace

bool has_width(int64_t width) { return width == 8 || width == 12 || width == 16 || width == 24 || width == 32; }

#define PHALANX_WEIGHTS .Arg<S8>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>()

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_planes_forward, forward,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() PHALANX_WEIGHTS.Ret<F32>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_planes_forward_saving, forward_saving,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() PHALANX_WEIGHTS.Ret<F32>().Ret<F32>().Ret<U8>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_planes_backward, backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>() PHALANX_WEIGHTS.Arg<F32>()
                                  .Arg<U8>()
                                  .Arg<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>());

}  // namespace phalanx::planes
