#include "kg/path_network_kernel.h"

#include "common/simd.h"

namespace phalanx::kg::path_network::PHALANX_ISA {
namespace {

constexpr int32_t kVectors = kWidth / kLanes;

// The features of an entity, in registers.
struct EntityVector {
  Vector vectors[kVectors];
};

inline EntityVector load(const float* from) {
  EntityVector row;
  for (int32_t i = 0; i < kVectors; ++i) row.vectors[i] = unaligned_at(from + kLanes * i);
  return row;
}

inline void store(const EntityVector& row, float* to) {
  for (int32_t i = 0; i < kVectors; ++i) unaligned_at(to + kLanes * i) = row.vectors[i];
}

inline void add(const EntityVector& row, float* to) {
  for (int32_t i = 0; i < kVectors; ++i) unaligned_at(to + kLanes * i) += row.vectors[i];
}

inline void add_product(const EntityVector& a, const EntityVector& b, float* to) {
  for (int32_t i = 0; i < kVectors; ++i) unaligned_at(to + kLanes * i) += a.vectors[i] * b.vectors[i];
}

// The order of the additions differs from `horizontal_sum`; changing it would change results.
inline float sum_elements(const EntityVector& row) {
  Vector sum = row.vectors[0];
  for (int32_t i = 1; i < kVectors; ++i) sum += row.vectors[i];
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

// row += x * matrix
inline void add_product_with_matrix(const float* x, const float* matrix, EntityVector& row) {
  for (int32_t k = 0; k < kWidth; ++k) {
    const EntityVector matrix_row = load(matrix + k * kWidth);
    for (int32_t i = 0; i < kVectors; ++i) row.vectors[i] += x[k] * matrix_row.vectors[i];
  }
}

// The same for two rows at once, which halves the reads of the matrix.
inline void add_products_with_matrix(const float* x, const float* y, const float* matrix, EntityVector& first,
                                     EntityVector& second) {
  for (int32_t k = 0; k < kWidth; ++k) {
    const EntityVector matrix_row = load(matrix + k * kWidth);
    for (int32_t i = 0; i < kVectors; ++i) {
      first.vectors[i] += x[k] * matrix_row.vectors[i];
      second.vectors[i] += y[k] * matrix_row.vectors[i];
    }
  }
}

inline void add_outer(const float* x, const EntityVector& row, float* matrix) {
  for (int32_t k = 0; k < kWidth; ++k)
    for (int32_t i = 0; i < kVectors; ++i)
      unaligned_at(matrix + k * kWidth + kLanes * i) += x[k] * row.vectors[i];
}

inline void transpose(const float* matrix, float* to) {
  for (int32_t k = 0; k < kWidth; ++k)
    for (int32_t i = 0; i < kWidth; ++i) to[i * kWidth + k] = matrix[k * kWidth + i];
}

// The parts of the workspace.
struct Buffers {
  float* messages[kMaxLayers];  // [relation][kWidth]: factors of messages
  float* messages_gradient[kMaxLayers];
  float* transposed[kMaxLayers];  // both matrices of a layer, transposed
  float* sums[kMaxLayers];        // incoming messages of an entity
  float* normalized[kMaxLayers];  // after the matrices, with mean 0 and standard deviation 1
  float* scale[kMaxLayers];
  float* state[kMaxLayers + 1];
  float *state_gradient, *sum_gradient,
      *needs_gradient;  // `needs_gradient`: 0 or 1, and 2 while a layer is processed

  Buffers(const Layout& layout, const Neighborhood& neighborhood, float* position) {
    const int64_t table = int64_t{layout.num_directed_relations} * kWidth;
    auto take = [&position](int64_t size) {
      float* taken = position;
      position += size;
      return taken;
    };
    state[0] = take(kWidth);
    for (int32_t t = 0; t < layout.num_layers; ++t) {
      const int64_t count = neighborhood.num_entities[t + 1];
      messages[t] = take(table), messages_gradient[t] = take(table),
      transposed[t] = take(2 * kWidth * kWidth);
      sums[t] = take(count * kWidth), normalized[t] = take(count * kWidth), scale[t] = take(count);
      state[t + 1] = take(count * kWidth);
    }
    const int64_t count = neighborhood.num_entities[layout.num_layers];
    state_gradient = take(count * kWidth), sum_gradient = take(count * kWidth), needs_gradient = take(count);
  }
};

inline void normalize(EntityVector mixed, const float* gain, const float* shift, const float* before,
                      float* normalized, float* scale, float* state) {
  const float mean = sum_elements(mixed) / kWidth;
  EntityVector square;
  for (int32_t i = 0; i < kVectors; ++i) {
    mixed.vectors[i] -= mean;
    square.vectors[i] = mixed.vectors[i] * mixed.vectors[i];
  }
  *scale = 1.0f / sqrtf(sum_elements(square) / kWidth + 1e-5f);
  const EntityVector gains = load(gain), shifts = load(shift);
  EntityVector out;
  for (int32_t i = 0; i < kVectors; ++i) {
    mixed.vectors[i] *= *scale;
    const Vector value = mixed.vectors[i] * gains.vectors[i] + shifts.vectors[i];
    out.vectors[i] = value > 0.0f ? value : value * 0.0f;
    if (before != nullptr) out.vectors[i] += unaligned_at(before + kLanes * i);
  }
  store(mixed, normalized), store(out, state);
}

void forward(const Layout& layout, const Neighborhood& neighborhood, int32_t relation,
             const float* parameters, float* workspace, float* scores) {
  const Buffers buffers(layout, neighborhood, workspace);
  const int64_t table = int64_t{layout.num_directed_relations} * kWidth;
  const float* start = parameters + layout.start() + int64_t{relation} * kWidth;
  memcpy(buffers.state[0], start, sizeof(float) * kWidth);
  for (int32_t t = 0; t < layout.num_layers; ++t) {
    const float* shared = parameters + layout.layer(t);
    float* messages = buffers.messages[t];
    memcpy(messages, shared, sizeof(float) * table);
    if (layout.query_dependent_relations) {
      const float* query_messages = shared + table * (1 + int64_t{relation});
      for (int64_t i = 0; i < table; ++i) messages[i] += query_messages[i];
    }
    const int32_t before = neighborhood.num_entities[t], after = neighborhood.num_entities[t + 1];
    const float* state = buffers.state[t];
    float* sums = buffers.sums[t];
    memset(sums, 0, sizeof(float) * after * kWidth);
    add(load(start), sums);
    for (int64_t e = 0; e < neighborhood.num_edges[t]; ++e)
      add_product(load(state + int64_t{neighborhood.source[e]} * kWidth),
                  load(messages + int64_t{neighborhood.relation[e]} * kWidth),
                  sums + int64_t{neighborhood.target[e]} * kWidth);
    const float* mixing = parameters + layout.mixing(t);
    const float *self_weights = mixing + kWidth * kWidth, *bias = self_weights + kWidth * kWidth;
    const float *gain = bias + kWidth, *shift = gain + kWidth;
    auto finish = [&](int64_t v, EntityVector mixed) {
      const float* previous = v < before ? state + v * kWidth : nullptr;
      if (previous != nullptr) add_product_with_matrix(previous, self_weights, mixed);
      normalize(mixed, gain, shift, previous, buffers.normalized[t] + v * kWidth, buffers.scale[t] + v,
                buffers.state[t + 1] + v * kWidth);
    };
    int64_t v = 0;
    for (; v + 1 < after; v += 2) {
      EntityVector first = load(bias), second = first;
      add_products_with_matrix(sums + v * kWidth, sums + (v + 1) * kWidth, mixing, first, second);
      finish(v, first), finish(v + 1, second);
    }
    for (; v < after; ++v) {
      EntityVector mixed = load(bias);
      add_product_with_matrix(sums + v * kWidth, mixing, mixed);
      finish(v, mixed);
    }
  }
  const EntityVector readout = load(parameters + layout.readout() + int64_t{relation} * kWidth);
  const float* state = buffers.state[layout.num_layers];
  for (int64_t v = 0; v < neighborhood.num_entities[layout.num_layers]; ++v) {
    EntityVector row = load(state + v * kWidth);
    for (int32_t i = 0; i < kVectors; ++i) row.vectors[i] *= readout.vectors[i];
    scores[v] = sum_elements(row);
  }
}

void backward(const Layout& layout, const Neighborhood& neighborhood, int32_t relation,
              const float* parameters, float* workspace, const float* score_gradient, float* gradient) {
  const Buffers buffers(layout, neighborhood, workspace);
  const int64_t table = int64_t{layout.num_directed_relations} * kWidth, column = int64_t{relation} * kWidth;
  const int32_t num_layers = layout.num_layers;
  const EntityVector readout = load(parameters + layout.readout() + column);
  for (int64_t v = 0; v < neighborhood.num_entities[num_layers]; ++v) {
    buffers.needs_gradient[v] = score_gradient[v] != 0.0f;
    EntityVector upstream;
    for (int32_t i = 0; i < kVectors; ++i) upstream.vectors[i] = score_gradient[v] * readout.vectors[i];
    store(upstream, buffers.state_gradient + v * kWidth);
    if (buffers.needs_gradient[v] == 0.0f) continue;
    EntityVector row = load(buffers.state[num_layers] + v * kWidth);
    for (int32_t i = 0; i < kVectors; ++i) row.vectors[i] *= score_gradient[v];
    add(row, gradient + layout.readout() + column);
  }
  float* start_gradient = gradient + layout.start() + column;
  for (int32_t t = num_layers - 1; t >= 0; --t) {
    const int32_t before = neighborhood.num_entities[t], after = neighborhood.num_entities[t + 1];
    const float *mixing = parameters + layout.mixing(t), *gain = mixing + 2 * kWidth * kWidth + kWidth;
    float* mixing_gradient = gradient + layout.mixing(t);
    float *self_gradient = mixing_gradient + kWidth * kWidth,
          *bias_gradient = self_gradient + kWidth * kWidth;
    float *gain_gradient = bias_gradient + kWidth, *shift_gradient = gain_gradient + kWidth;
    transpose(mixing, buffers.transposed[t]),
        transpose(mixing + kWidth * kWidth, buffers.transposed[t] + kWidth * kWidth);
    const EntityVector gains = load(gain), shifts = load(gain + kWidth);
    memset(buffers.messages_gradient[t], 0, sizeof(float) * table);
    for (int64_t v = 0; v < after; ++v) {
      if (buffers.needs_gradient[v] == 0.0f) continue;
      const EntityVector normalized = load(buffers.normalized[t] + v * kWidth);
      EntityVector upstream = load(buffers.state_gradient + v * kWidth), product;
      for (int32_t i = 0; i < kVectors; ++i) {
        const Vector value = normalized.vectors[i] * gains.vectors[i] + shifts.vectors[i];
        upstream.vectors[i] = value > 0.0f ? upstream.vectors[i] : upstream.vectors[i] * 0.0f;
      }
      add(upstream, shift_gradient), add_product(upstream, normalized, gain_gradient);
      for (int32_t i = 0; i < kVectors; ++i) {
        upstream.vectors[i] *= gains.vectors[i];
        product.vectors[i] = upstream.vectors[i] * normalized.vectors[i];
      }
      const float mean = sum_elements(upstream) / kWidth, projection = sum_elements(product) / kWidth,
                  scale = buffers.scale[t][v];
      for (int32_t i = 0; i < kVectors; ++i)
        upstream.vectors[i] = (upstream.vectors[i] - mean - normalized.vectors[i] * projection) * scale;
      add(upstream, bias_gradient);
      float flat[kWidth];
      store(upstream, flat);
      add_outer(buffers.sums[t] + v * kWidth, upstream, mixing_gradient);
      EntityVector sum_back{};
      add_product_with_matrix(flat, buffers.transposed[t], sum_back);
      store(sum_back, buffers.sum_gradient + v * kWidth);
      if (v >= before) continue;
      add_outer(buffers.state[t] + v * kWidth, upstream, self_gradient);
      EntityVector previous = load(buffers.state_gradient + v * kWidth);
      add_product_with_matrix(flat, buffers.transposed[t] + kWidth * kWidth, previous);
      store(previous, buffers.state_gradient + v * kWidth);
    }
    if (buffers.needs_gradient[0] != 0.0f) add(load(buffers.sum_gradient), start_gradient);
    for (int64_t e = 0; e < neighborhood.num_edges[t]; ++e) {
      const int64_t source = neighborhood.source[e], target = neighborhood.target[e],
                    message_index = int64_t{neighborhood.relation[e]} * kWidth;
      // A source that is first needed here belongs to the layers below, not to this one; 2 marks it until the
      // layer is done.
      if (buffers.needs_gradient[target] != 1.0f) continue;
      const EntityVector incoming = load(buffers.sum_gradient + target * kWidth);
      add_product(incoming, load(buffers.messages[t] + message_index),
                  buffers.state_gradient + source * kWidth);
      add_product(incoming, load(buffers.state[t] + source * kWidth),
                  buffers.messages_gradient[t] + message_index);
      if (buffers.needs_gradient[source] == 0.0f) buffers.needs_gradient[source] = 2.0f;
    }
    for (int64_t v = 0; v < before; ++v) buffers.needs_gradient[v] = buffers.needs_gradient[v] != 0.0f;
    float* shared = gradient + layout.layer(t);
    for (int64_t i = 0; i < table; ++i) shared[i] += buffers.messages_gradient[t][i];
    if (layout.query_dependent_relations)
      for (int64_t i = 0; i < table; ++i)
        shared[table * (1 + int64_t{relation}) + i] += buffers.messages_gradient[t][i];
  }
  add(load(buffers.state_gradient), start_gradient);
}

}  // namespace

const Kernels kernels = {forward, backward};

}  // namespace phalanx::kg::path_network::PHALANX_ISA
