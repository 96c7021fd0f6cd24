#include "arc/color_equivariant.h"
#include "common/simd.h"

namespace phalanx::arc::color_equivariant::PHALANX_ISA {
namespace {

constexpr float kMinValue = -1e9f;

// Outputs that are summed in registers at the same time.
template <int W>
constexpr int block_size() {
  return W % 12 == 0 ? 12 : W % 8 == 0 ? 8 : 4;
}

// The inputs of a block of samples that do not depend on weights.
struct SampleBlock {
  int num_grids, cells;
  Vector* marks;      // [num_grids][black, another color, outside][cells]: 1 or 0
  Vector* own_color;  // [num_grids][kColors][cells]
  Vector* inside;     // [cells]
  Vector num_cells;   // cells inside, at least 1
  Mask has_cells;     // whether any cell is inside
};

inline void load_samples(const Shape& shape, const int8_t* grids, int64_t block, SampleBlock& out) {
  const int cells = static_cast<int>(shape.cells());
  out.num_grids = shape.num_grids;
  out.cells = cells;
  Vector num_cells = {};
  for (int g = 0; g < shape.num_grids; ++g) {
    for (int p = 0; p < cells; ++p) {
      Mask value;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t sample = block * kLanes + lane;
        // Lanes beyond the batch repeat the last sample; their gradients are zero.
        const int64_t row = sample < shape.batch ? sample : shape.batch - 1;
        value[lane] = grids[(row * shape.num_grids + g) * cells + p];
      }
      const Vector one = broadcast(1.0f), zero = {};
      const Mask black = value == 0, outside = value < 0;
      Vector* marks = out.marks + 3 * g * cells;
      marks[p] = select(black, one, zero);
      marks[cells + p] = select(black | outside, zero, one);
      marks[2 * cells + p] = select(outside, one, zero);
      for (int c = 0; c < kColors; ++c)
        out.own_color[(g * kColors + c) * cells + p] = select(value == c, one, zero);
      if (g == 0) {
        out.inside[p] = select(outside, zero, one);
        num_cells += out.inside[p];
      }
    }
  }
  out.has_cells = num_cells > 0.0f;
  out.num_cells = max_lanes(num_cells, broadcast(1.0f));
}

template <int W>
void stem(const SampleBlock& samples, const Parameters<const float>& weights, Vector* x) {
  const int cells = samples.cells;
  for (int p = 0; p < cells; ++p) {
    Vector base[W];
    for (int o = 0; o < W; ++o) base[o] = broadcast(weights.stem_bias[o]);
    for (int g = 0; g < samples.num_grids; ++g) {
      const float* rows = weights.stem + g * kNumMarks * W;
      const Vector* marks = samples.marks + 3 * g * cells;
      for (int o = 0; o < W; ++o)
        base[o] += marks[p] * rows[W + o] + marks[cells + p] * rows[2 * W + o] +
                   marks[2 * cells + p] * rows[3 * W + o];
    }
    for (int c = 0; c < kColors; ++c) {
      Vector* to = x + (c * cells + p) * W;
      for (int o = 0; o < W; ++o) to[o] = base[o] + weights.colors[c * W + o];
      for (int g = 0; g < samples.num_grids; ++g) {
        const float* rows = weights.stem + g * kNumMarks * W;
        const Vector own_color = samples.own_color[(g * kColors + c) * cells + p];
        // A cell of this color was counted as another color above; black was not.
        for (int o = 0; o < W; ++o) to[o] += own_color * (rows[o] - (c == 0 ? 0.0f : rows[2 * W + o]));
      }
    }
  }
}

// Mean and maximum of each feature over the cells of a color that are inside.
template <int W>
void pool_cells(const SampleBlock& samples, const Vector* plane, Vector* mean, Vector* max) {
  for (int i = 0; i < W; ++i) mean[i] = Vector{}, max[i] = broadcast(kMinValue);
  for (int p = 0; p < samples.cells; ++p) {
    const Vector in = samples.inside[p];
    for (int i = 0; i < W; ++i) {
      const Vector value = plane[p * W + i];
      mean[i] += value * in;
      max[i] = max_lanes(max[i], select(in > 0.0f, value, broadcast(kMinValue)));
    }
  }
  for (int i = 0; i < W; ++i) {
    mean[i] /= samples.num_cells;
    max[i] = select(samples.has_cells, max[i], Vector{});
  }
}

// Mean and maximum of each feature over the colors of a cell.
template <int W>
void pool_colors(const Vector* x, int cells, int p, Vector* mean, Vector* max) {
  for (int i = 0; i < W; ++i) mean[i] = max[i] = x[p * W + i];
  for (int c = 1; c < kColors; ++c) {
    const Vector* color_features = x + (c * cells + p) * W;
    for (int i = 0; i < W; ++i) mean[i] += color_features[i], max[i] = max_lanes(max[i], color_features[i]);
  }
  for (int i = 0; i < W; ++i) mean[i] *= 1.0f / kColors;
}

// out[o] = bias[o] + sum over i of first[i] * w[i][o] + second[i] * w[W + i][o]
template <int W>
void pooled_layer(const Vector* first, const Vector* second, const float* w, const float* bias, Vector* out) {
  constexpr int B = block_size<W>();
  for (int block = 0; block < W; block += B) {
    Vector sum[B];
    for (int o = 0; o < B; ++o) sum[o] = broadcast(bias[block + o]);
    for (int i = 0; i < W; ++i)
      for (int o = 0; o < B; ++o) sum[o] += first[i] * w[i * W + block + o];
    for (int i = 0; i < W; ++i)
      for (int o = 0; o < B; ++o) sum[o] += second[i] * w[(W + i) * W + block + o];
    for (int o = 0; o < B; ++o) out[block + o] = sum[o];
  }
}

// The cells of a 3x3 window that are on the grid.
struct Window {
  int size;
  int kernel_index[kWindowSize], cell[kWindowSize];
};

inline Window window_at(int row, int column, int rows, int columns) {
  Window window;
  window.size = 0;
  for (int k = 0; k < kWindowSize; ++k) {
    const int r = row + k / 3 - 1, c = column + k % 3 - 1;
    if (r < 0 || r >= rows || c < 0 || c >= columns) continue;
    window.kernel_index[window.size] = k;
    window.cell[window.size++] = r * columns + c;
  }
  return window;
}

inline uint8_t to_bits(Mask mask) {
  uint8_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint8_t>((mask[lane] & 1) << lane);
  return bits;
}

inline Mask to_mask(uint8_t bits) {
  const Mask lanes = {1, 2, 4, 8, 16, 32, 64, 128};
  return (lanes & static_cast<int32_t>(bits)) != 0;
}

template <int W>
void block_forward(const Shape& shape, const SampleBlock& samples, const Parameters<const float>& weights,
                   int layer, const Vector* x, Vector* out, uint8_t* active, Vector* scratch) {
  constexpr int B = block_size<W>();
  const int cells = samples.cells;
  const float* convolution = weights.convolution + static_cast<int64_t>(layer) * kWindowSize * W * W;
  const float *across = weights.across + layer * 2 * W * W, *context = weights.context + layer * 2 * W * W;
  Vector mean[W], max[W], context_output[W];
  Vector* across_output = scratch;
  for (int p = 0; p < cells; ++p) {
    pool_colors<W>(x, cells, p, mean, max);
    pooled_layer<W>(mean, max, across, weights.across_bias + layer * W, across_output + p * W);
  }
  for (int c = 0; c < kColors; ++c) {
    const Vector* plane = x + c * cells * W;
    pool_cells<W>(samples, plane, mean, max);
    pooled_layer<W>(mean, max, context, weights.context_bias + layer * W, context_output);
    for (int p = 0; p < cells; ++p) {
      const Window window = window_at(p / shape.columns, p % shape.columns, shape.rows, shape.columns);
      for (int block = 0; block < W; block += B) {
        Vector sum[B];
        for (int o = 0; o < B; ++o) sum[o] = context_output[block + o] + across_output[p * W + block + o];
        for (int k = 0; k < window.size; ++k) {
          const Vector* from = plane + window.cell[k] * W;
          const float* w = convolution + window.kernel_index[k] * W * W + block;
          for (int i = 0; i < W; ++i)
            for (int o = 0; o < B; ++o) sum[o] += from[i] * w[i * W + o];
        }
        for (int o = 0; o < B; ++o) {
          const int64_t at = (c * cells + p) * W + block + o;
          const Mask is_active = sum[o] > 0.0f;
          out[at] = x[at] + select(is_active, sum[o], Vector{});
          if (active != nullptr) active[at] = to_bits(is_active);
        }
      }
    }
  }
}

// Convert between the layout of a block, with the lanes last, and the layout of samples.
inline void store_samples(const Shape& shape, const Vector* x, int64_t block, float* features) {
  const int64_t size = kColors * shape.cells() * shape.width;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t sample = block * kLanes + lane;
    if (sample >= shape.batch) return;
    const float* from = reinterpret_cast<const float*>(x) + lane;
    float* to = features + sample * size;
    for (int64_t k = 0; k < size; ++k) to[k] = from[k * kLanes];
  }
}

inline void load_samples(const Shape& shape, const float* features, int64_t block, Vector* x) {
  const int64_t size = kColors * shape.cells() * shape.width;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t sample = block * kLanes + lane;
    float* to = reinterpret_cast<float*>(x) + lane;
    const float* from = features + (sample < shape.batch ? sample : 0) * size;
    for (int64_t k = 0; k < size; ++k) to[k * kLanes] = sample < shape.batch ? from[k] : 0.0f;
  }
}

// Allocates parts of a block of scratch memory.
struct VectorArena {
  Vector* next;
  Vector* allocate(int64_t vectors) {
    Vector* part = next;
    next += vectors;
    return part;
  }
};

inline SampleBlock allocate_samples(VectorArena& arena, const Shape& shape) {
  SampleBlock samples;
  samples.marks = arena.allocate(3 * shape.num_grids * shape.cells());
  samples.own_color = arena.allocate(kColors * shape.num_grids * shape.cells());
  samples.inside = arena.allocate(shape.cells());
  return samples;
}

template <int W>
void forward_blocks(const ForwardCall& call, int64_t begin, int64_t end, float* scratch) {
  const Shape& shape = call.shape;
  VectorArena arena{reinterpret_cast<Vector*>(scratch)};
  SampleBlock samples = allocate_samples(arena, shape);
  Vector* across_output = arena.allocate(shape.cells() * W);
  const int64_t layer = shape.layer_floats() / kLanes;
  Vector* layer_buffers[2] = {arena.allocate(layer), arena.allocate(layer)};
  for (int64_t u = begin; u < end; ++u) {
    load_samples(shape, call.grids, u, samples);
    Vector* saved_features = call.saved_features == nullptr ? nullptr
                                                            : reinterpret_cast<Vector*>(call.saved_features) +
                                                                  u * (shape.num_layers + 1) * layer;
    Vector* x = saved_features != nullptr ? saved_features : layer_buffers[0];
    stem<W>(samples, call.weights, x);
    for (int l = 0; l < shape.num_layers; ++l) {
      Vector* out = saved_features != nullptr ? saved_features + (l + 1) * layer : layer_buffers[(l + 1) % 2];
      uint8_t* active = call.active == nullptr ? nullptr : call.active + (u * shape.num_layers + l) * layer;
      block_forward<W>(shape, samples, call.weights, l, x, out, active, across_output);
      x = out;
    }
    store_samples(shape, x, u, call.features);
  }
}

// sums[i][o] += first[i] * gradient[o]
template <int W>
void add_outer_product(const Vector* first, const Vector* gradient, Vector* sums) {
  for (int i = 0; i < W; ++i)
    for (int o = 0; o < W; ++o) sums[i * W + o] += first[i] * gradient[o];
}

// input_gradient[i] += sum over o of w[i][o] * gradient[o]
template <int W>
void add_transposed_product(const float* w, const Vector* gradient, Vector* input_gradient) {
  constexpr int B = block_size<W>();
  for (int block = 0; block < W; block += B) {
    Vector sum[B] = {};
    for (int o = 0; o < W; ++o)
      for (int i = 0; i < B; ++i) sum[i] += gradient[o] * w[(block + i) * W + o];
    for (int i = 0; i < B; ++i) input_gradient[block + i] += sum[i];
  }
}

// Adds the gradients of the inputs of the convolution to `input_gradient`, and those of its weights to
// `sums`.
template <int W>
void convolution_backward(const Shape& shape, const float* transposed_convolution, const Vector* plane,
                          const Vector* preactivation_gradient, Vector* input_gradient, Vector* sums) {
  constexpr int B = block_size<W>();
  const int cells = static_cast<int>(shape.cells());
  for (int p = 0; p < cells; ++p) {
    const Window window = window_at(p / shape.columns, p % shape.columns, shape.rows, shape.columns);
    for (int block = 0; block < W; block += B) {
      Vector sum[B] = {};
      for (int k = 0; k < window.size; ++k) {
        // A cell sees its neighbor at index k of its window; the neighbor sees the cell at the opposite
        // index.
        const float* w = transposed_convolution + (kWindowSize - 1 - window.kernel_index[k]) * W * W + block;
        const Vector* from = preactivation_gradient + window.cell[k] * W;
        for (int o = 0; o < W; ++o)
          for (int i = 0; i < B; ++i) sum[i] += from[o] * w[o * W + i];
      }
      for (int i = 0; i < B; ++i) input_gradient[p * W + block + i] += sum[i];
    }
  }
  constexpr int I = 3, O = 4;  // twelve sums stay in registers for all cells
  static_assert(W % O == 0);
  for (int k = 0; k < kWindowSize; ++k) {
    const int down = k / 3 - 1, right = k % 3 - 1;
    const int top = down < 0 ? 1 : 0, bottom = shape.rows - (down > 0 ? 1 : 0);
    const int left = right < 0 ? 1 : 0, right_end = shape.columns - (right > 0 ? 1 : 0);
    for (int i = 0; i < W; i += I) {
      for (int o = 0; o < W; o += O) {
        Vector sum[I][O] = {};
        for (int r = top; r < bottom; ++r) {
          for (int c = left; c < right_end; ++c) {
            const Vector* from = plane + ((r + down) * shape.columns + c + right) * W + i;
            const Vector* gradient = preactivation_gradient + (r * shape.columns + c) * W + o;
            for (int a = 0; a < I; ++a) {
              const Vector value = i + a < W ? from[a] : Vector{};
              for (int b = 0; b < O; ++b) sum[a][b] += value * gradient[b];
            }
          }
        }
        for (int a = 0; a < I && i + a < W; ++a)
          for (int b = 0; b < O; ++b) sums[(k * W + i + a) * W + o + b] += sum[a][b];
      }
    }
  }
}

template <int W>
void block_backward(const Shape& shape, const SampleBlock& samples, const Parameters<const float>& weights,
                    int layer, const float* transposed_convolution, const Vector* x, const uint8_t* active,
                    Vector* gradient, const Parameters<Vector>& sums, Vector* preactivation_gradient,
                    Vector* across_gradient) {
  const int cells = samples.cells;
  const float *across = weights.across + layer * 2 * W * W, *context = weights.context + layer * 2 * W * W;
  Vector* across_sums = sums.across + layer * 2 * W * W;
  Vector* context_sums = sums.context + layer * 2 * W * W;
  const Vector zero = {};
  for (int64_t k = 0; k < static_cast<int64_t>(cells) * W; ++k) across_gradient[k] = zero;
  for (int c = 0; c < kColors; ++c) {
    const Vector* plane = x + c * cells * W;
    Vector* input_gradient = gradient + c * cells * W;
    const uint8_t* active_bits = active + c * cells * W;
    Vector color_gradient[W] = {};
    for (int p = 0; p < cells; ++p) {
      for (int o = 0; o < W; ++o) {
        const int at = p * W + o;
        preactivation_gradient[at] = select(to_mask(active_bits[at]), input_gradient[at], zero);
        across_gradient[at] += preactivation_gradient[at];
        color_gradient[o] += preactivation_gradient[at];
      }
    }
    Vector mean[W], max[W], mean_gradient[W] = {}, max_gradient[W] = {}, num_ties[W] = {};
    pool_cells<W>(samples, plane, mean, max);
    for (int o = 0; o < W; ++o) sums.context_bias[layer * W + o] += color_gradient[o];
    add_outer_product<W>(mean, color_gradient, context_sums);
    add_outer_product<W>(max, color_gradient, context_sums + W * W);
    add_transposed_product<W>(context, color_gradient, mean_gradient);
    add_transposed_product<W>(context + W * W, color_gradient, max_gradient);
    for (int p = 0; p < cells; ++p)
      for (int i = 0; i < W; ++i)
        num_ties[i] +=
            select((plane[p * W + i] == max[i]) & (samples.inside[p] > 0.0f), broadcast(1.0f), zero);
    for (int i = 0; i < W; ++i) {
      mean_gradient[i] /= samples.num_cells;
      // The maximum of no cells is the constant zero.
      max_gradient[i] =
          select(samples.has_cells, max_gradient[i] / max_lanes(num_ties[i], broadcast(1.0f)), zero);
    }
    convolution_backward<W>(shape, transposed_convolution, plane, preactivation_gradient, input_gradient,
                            sums.convolution + layer * kWindowSize * W * W);
    for (int p = 0; p < cells; ++p) {
      const Mask in = samples.inside[p] > 0.0f;
      for (int i = 0; i < W; ++i) {
        const int at = p * W + i;
        input_gradient[at] +=
            select(in, mean_gradient[i] + select(plane[at] == max[i], max_gradient[i], zero), zero);
      }
    }
  }
  for (int p = 0; p < cells; ++p) {
    Vector mean[W], max[W], mean_gradient[W] = {}, max_gradient[W] = {}, num_ties[W] = {};
    const Vector* cell_gradient = across_gradient + p * W;
    pool_colors<W>(x, cells, p, mean, max);
    for (int o = 0; o < W; ++o) sums.across_bias[layer * W + o] += cell_gradient[o];
    add_outer_product<W>(mean, cell_gradient, across_sums);
    add_outer_product<W>(max, cell_gradient, across_sums + W * W);
    add_transposed_product<W>(across, cell_gradient, mean_gradient);
    add_transposed_product<W>(across + W * W, cell_gradient, max_gradient);
    for (int c = 0; c < kColors; ++c)
      for (int i = 0; i < W; ++i)
        num_ties[i] += select(x[(c * cells + p) * W + i] == max[i], broadcast(1.0f), zero);
    for (int i = 0; i < W; ++i) max_gradient[i] /= num_ties[i], mean_gradient[i] *= 1.0f / kColors;
    for (int c = 0; c < kColors; ++c) {
      for (int i = 0; i < W; ++i) {
        const int at = (c * cells + p) * W + i;
        gradient[at] += mean_gradient[i] + select(x[at] == max[i], max_gradient[i], zero);
      }
    }
  }
}

template <int W>
void stem_backward(const SampleBlock& samples, const Vector* gradient, const Parameters<Vector>& sums) {
  const int cells = samples.cells;
  for (int p = 0; p < cells; ++p) {
    Vector summed_gradient[W] = {};
    for (int c = 0; c < kColors; ++c) {
      const Vector* color_gradient = gradient + (c * cells + p) * W;
      for (int o = 0; o < W; ++o)
        summed_gradient[o] += color_gradient[o], sums.colors[c * W + o] += color_gradient[o];
      for (int k = 0; k < samples.num_grids; ++k) {
        Vector* rows = sums.stem + k * kNumMarks * W;
        const Vector own_color = samples.own_color[(k * kColors + c) * cells + p];
        for (int o = 0; o < W; ++o) rows[o] += own_color * color_gradient[o];
        if (c != 0)
          for (int o = 0; o < W; ++o) rows[2 * W + o] -= own_color * color_gradient[o];
      }
    }
    for (int o = 0; o < W; ++o) sums.stem_bias[o] += summed_gradient[o];
    for (int k = 0; k < samples.num_grids; ++k) {
      Vector* rows = sums.stem + k * kNumMarks * W;
      const Vector* marks = samples.marks + 3 * k * cells;
      for (int o = 0; o < W; ++o) {
        rows[W + o] += marks[p] * summed_gradient[o];
        rows[2 * W + o] += marks[cells + p] * summed_gradient[o];
        rows[3 * W + o] += marks[2 * cells + p] * summed_gradient[o];
      }
    }
  }
}

template <int W>
void backward_blocks(const BackwardCall& call, int64_t begin, int64_t end, const Parameters<float>& floats,
                     float* scratch) {
  const Shape& shape = call.shape;
  const auto vectors = [](float* from) { return reinterpret_cast<Vector*>(from); };
  const Parameters<Vector> sums = {vectors(floats.stem),    vectors(floats.stem_bias),
                                   vectors(floats.colors),  vectors(floats.convolution),
                                   vectors(floats.across),  vectors(floats.across_bias),
                                   vectors(floats.context), vectors(floats.context_bias)};
  VectorArena arena{reinterpret_cast<Vector*>(scratch)};
  SampleBlock samples = allocate_samples(arena, shape);
  const int64_t layer = shape.layer_floats() / kLanes;
  Vector *preactivation_gradient = arena.allocate(shape.cells() * W),
         *across_gradient = arena.allocate(shape.cells() * W), *gradient = arena.allocate(layer);
  // Convolutions with inputs and outputs exchanged, so that the backward pass reads consecutive weights.
  float* transposed_convolution = reinterpret_cast<float*>(arena.next);
  for (int64_t m = 0; m < static_cast<int64_t>(shape.num_layers) * kWindowSize; ++m)
    for (int i = 0; i < W; ++i)
      for (int o = 0; o < W; ++o)
        transposed_convolution[(m * W + o) * W + i] = call.weights.convolution[(m * W + i) * W + o];
  for (int64_t u = begin; u < end; ++u) {
    load_samples(shape, call.grids, u, samples);
    load_samples(shape, call.features_gradient, u, gradient);
    const Vector* saved_features =
        reinterpret_cast<const Vector*>(call.saved_features) + u * (shape.num_layers + 1) * layer;
    for (int l = shape.num_layers - 1; l >= 0; --l)
      block_backward<W>(shape, samples, call.weights, l,
                        transposed_convolution + static_cast<int64_t>(l) * kWindowSize * W * W,
                        saved_features + l * layer, call.active + (u * shape.num_layers + l) * layer,
                        gradient, sums, preactivation_gradient, across_gradient);
    stem_backward<W>(samples, gradient, sums);
  }
}

#define PHALANX_WIDTHS(DO) DO(8) DO(12) DO(16) DO(24) DO(32)

bool forward(const ForwardCall& call, int64_t begin, int64_t end, float* scratch) {
  switch (call.shape.width) {
#define PHALANX_CASE(W) \
  case W: return forward_blocks<W>(call, begin, end, scratch), true;
    PHALANX_WIDTHS(PHALANX_CASE)
#undef PHALANX_CASE
    default: return false;
  }
}

bool backward(const BackwardCall& call, int64_t begin, int64_t end, const Parameters<float>& sums,
              float* scratch) {
  switch (call.shape.width) {
#define PHALANX_CASE(W) \
  case W: return backward_blocks<W>(call, begin, end, sums, scratch), true;
    PHALANX_WIDTHS(PHALANX_CASE)
#undef PHALANX_CASE
    default: return false;
  }
}

}  // namespace

const Kernels kernels = {forward, backward};

}  // namespace phalanx::arc::color_equivariant::PHALANX_ISA
