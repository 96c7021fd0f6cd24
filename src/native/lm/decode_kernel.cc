#include "common/simd.h"
#include "lm/decode.h"

namespace phalanx::lm::decode::PHALANX_ISA {
namespace {

// Returns how many rows the next tile has. Tiles with very few rows are avoided, because their sums wait for
// each other.
inline int64_t tile_rows(int64_t remaining) {
  return remaining == 7 || remaining == 8 ? 4 : min_int(remaining, 6);
}

inline void add_tile(int64_t rows, const float* a, int64_t a_row, const float* b, float* c, int64_t c_row,
                     int64_t depth) {
  switch (rows) {
    case 1: return multiply_tile<1, 2>(a, a_row, 1, b, kPanel, c, c_row, depth, true);
    case 2: return multiply_tile<2, 2>(a, a_row, 1, b, kPanel, c, c_row, depth, true);
    case 3: return multiply_tile<3, 2>(a, a_row, 1, b, kPanel, c, c_row, depth, true);
    case 4: return multiply_tile<4, 2>(a, a_row, 1, b, kPanel, c, c_row, depth, true);
    case 5: return multiply_tile<5, 2>(a, a_row, 1, b, kPanel, c, c_row, depth, true);
    default: return multiply_tile<6, 2>(a, a_row, 1, b, kPanel, c, c_row, depth, true);
  }
}

// c [rows][pad_to_panel(columns)] += a [rows][depth] * panels
inline void add_product(int64_t rows, const float* a, int64_t a_row, const float* panels, int64_t depth,
                        int64_t columns, float* c) {
  const int64_t c_row = pad_to_panel(columns);
  for (int64_t j = 0; j < c_row; j += kPanel) {
    for (int64_t i = 0, num_rows = 0; i < rows; i += num_rows) {
      num_rows = tile_rows(rows - i);
      add_tile(num_rows, a + i * a_row, a_row, panels + j * depth, c + i * c_row + j, c_row, depth);
    }
  }
}

inline void add_bias(int64_t rows, const float* bias, int64_t columns, bool overwrite, float* c) {
  const int64_t c_row = pad_to_panel(columns);
  for (int64_t i = 0; i < rows; ++i) {
    float* to = c + i * c_row;
    if (overwrite) set_zero(to + columns / kPanel * kPanel, c_row - columns / kPanel * kPanel);
    for (int64_t j = 0; j < columns; ++j) to[j] = (overwrite ? 0.0f : to[j]) + bias[j];
  }
}

// RMSNorm of rows that are padded to whole panels.
inline void normalize(int64_t rows, const float* x, const float* scale, int64_t d_model, float epsilon,
                      float* to) {
  const int64_t row = pad_to_panel(d_model);
  for (int64_t i = 0; i < rows; ++i) {
    Vector squares = {};
    for (int64_t j = 0; j < row; j += kLanes)
      squares += vector_at(x + i * row + j) * vector_at(x + i * row + j);
    const float factor = 1.0f / sqrtf(horizontal_sum(squares) / static_cast<float>(d_model) + epsilon);
    for (int64_t j = 0; j < d_model; ++j) to[i * row + j] = x[i * row + j] * factor * scale[j];
    set_zero(to + i * row + d_model, row - d_model);
  }
}

// silu(gate) * linear
inline void apply_silu_gate(int64_t rows, const float* gate_and_linear, int64_t d_ff, float* to) {
  const int64_t from_row = pad_to_panel(2 * d_ff), row = pad_to_panel(d_ff);
  for (int64_t i = 0; i < rows; ++i) {
    const float *gate = gate_and_linear + i * from_row, *linear = gate + d_ff;
    float* here = to + i * row;
    int64_t j = 0;
    for (; j + kLanes <= d_ff; j += kLanes) {
      const Vector g = unaligned_at(gate + j), t = unaligned_at(linear + j);
      const Vector exponent = g * -kLog2E;
      vector_at(here + j) =
          g * t / (1.0f + exp2_lanes(select(exponent > broadcast(126.0f), broadcast(126.0f), exponent)));
    }
    for (; j < d_ff; ++j) here[j] = gate[j] * linear[j] / (1.0f + expf(-gate[j]));
  }
}

// The keys and values of one layer and head.
struct Cache {
  const Shape& s;
  float *keys, *values;

  Cache(const Shape& shape, float* cache, int64_t layer, int64_t head) : s(shape) {
    const int64_t index = layer * s.num_heads + head;
    keys = cache + index * s.cache_length * s.head_dim();
    values = cache + s.key_floats() + index * s.cache_length * s.padded_dim();
  }

  void write(int64_t position, const float* key, const float* value) {
    float* panel = keys + position / kPanel * kPanel * s.head_dim() + position % kPanel;
    for (int64_t d = 0; d < s.head_dim(); ++d) panel[d * kPanel] = key[d];
    float* row = values + position * s.padded_dim();
    for (int64_t d = 0; d < s.head_dim(); ++d) row[d] = value[d];
    for (int64_t d = s.head_dim(); d < s.padded_dim(); ++d) row[d] = 0.0f;
  }
};

inline void rotate(const float* from, const float* cosine, const float* sine, int64_t half, float scale,
                   float* to) {
  for (int64_t d = 0; d < half; ++d) {
    const float first = from[d] * scale, second = from[half + d] * scale;
    to[d] = first * cosine[d] - second * sine[d];
    to[half + d] = second * cosine[d] + first * sine[d];
  }
}

// Computes the scores of a query with the keys of P panels.
template <int P>
inline void score_panels(const float* query, const float* keys, int64_t head_dim, float* scores) {
  Vector sum[P][2];
  for (int p = 0; p < P; ++p) sum[p][0] = sum[p][1] = Vector{};
  for (int64_t d = 0; d < head_dim; ++d) {
    const Vector left = broadcast(query[d]);
    for (int p = 0; p < P; ++p) {
      const float* right = keys + (p * head_dim + d) * kPanel;
      sum[p][0] += left * vector_at(right);
      sum[p][1] += left * vector_at(right + kLanes);
    }
  }
  for (int p = 0; p < P; ++p)
    vector_at(scores + p * kPanel) = sum[p][0], vector_at(scores + p * kPanel + kLanes) = sum[p][1];
}

// Sums V vectors of each value times its weight. Even and odd positions have separate sums, which do not wait
// for each other.
template <int V>
inline void weighted_sum(const float* weights, const float* values, int64_t row, int64_t count, float* to) {
  Vector even[V], odd[V];
  for (int v = 0; v < V; ++v) even[v] = odd[v] = Vector{};
  int64_t position = 0;
  for (; position + 2 <= count; position += 2) {
    const Vector first = broadcast(weights[position]), second = broadcast(weights[position + 1]);
    for (int v = 0; v < V; ++v) {
      even[v] += first * vector_at(values + position * row + v * kLanes);
      odd[v] += second * vector_at(values + (position + 1) * row + v * kLanes);
    }
  }
  if (position < count) {
    const Vector first = broadcast(weights[position]);
    for (int v = 0; v < V; ++v) even[v] += first * vector_at(values + position * row + v * kLanes);
  }
  for (int v = 0; v < V; ++v) vector_at(to + v * kLanes) = even[v] + odd[v];
}

// Replaces scores (as binary logarithms) by weights that sum to 1.
inline void softmax(float* scores, int64_t count) {
  const int64_t padded = round_up(count, kLanes);
  if (count % kLanes != 0) {
    float* last = scores + padded - kLanes;
    vector_at(last) = select(first_lanes(count % kLanes), vector_at(last), broadcast(-1e30f));
  }
  Vector lane_max = broadcast(-1e30f), total = {};
  for (int64_t j = 0; j < padded; j += kLanes) lane_max = max_lanes(vector_at(scores + j), lane_max);
  float max_score = lane_max[0];
  for (int lane = 1; lane < kLanes; ++lane)
    max_score = lane_max[lane] > max_score ? lane_max[lane] : max_score;
  for (int64_t j = 0; j < padded; j += kLanes)
    total += vector_at(scores + j) = exp2_lanes(vector_at(scores + j) - max_score);
  const float scale = 1.0f / horizontal_sum(total);
  for (int64_t j = 0; j < padded; j += kLanes) vector_at(scores + j) *= scale;
}

// Attention of a query to the first `count` positions.
inline void attend(const float* query, const Cache& cache, int64_t count, float* scores, float* output) {
  const int64_t head_dim = cache.s.head_dim(), padded_dim = cache.s.padded_dim(),
                panels = round_up(count, kPanel) / kPanel;
  int64_t p = 0;
  for (; p + 4 <= panels; p += 4)
    score_panels<4>(query, cache.keys + p * kPanel * head_dim, head_dim, scores + p * kPanel);
  for (; p < panels; ++p)
    score_panels<1>(query, cache.keys + p * kPanel * head_dim, head_dim, scores + p * kPanel);
  softmax(scores, count);
  int64_t d = 0;
  for (; d + 4 * kLanes <= padded_dim; d += 4 * kLanes)
    weighted_sum<4>(scores, cache.values + d, padded_dim, count, output + d);
  for (; d < padded_dim; d += kLanes)
    weighted_sum<1>(scores, cache.values + d, padded_dim, count, output + d);
}

// Offsets of the packed matrices.
struct PackedLayout {
  int64_t qkv, out, gate, down, layer, head, total;

  explicit PackedLayout(const Shape& s) {
    qkv = 0;
    out = qkv + s.d_model * pad_to_panel(3 * s.d_model);
    gate = out + s.d_model * pad_to_panel(s.d_model);
    down = gate + s.d_model * pad_to_panel(2 * s.d_ff);
    layer = down + s.d_ff * pad_to_panel(s.d_model);
    head = s.num_layers * layer;
    total = head + s.d_model * pad_to_panel(s.vocab_size);
  }
};

// Copies a matrix [depth][columns] with the given strides to panels [panels][depth][16].
inline void pack_matrix(const float* from, int64_t depth, int64_t columns, int64_t row, int64_t column,
                        float* to) {
  for (int64_t j = 0; j < pad_to_panel(columns); j += kPanel)
    for (int64_t k = 0; k < depth; ++k, to += kPanel)
      for (int64_t c = 0; c < kPanel; ++c) to[c] = j + c < columns ? from[k * row + (j + c) * column] : 0.0f;
}

void pack(const Shape& s, const Weights& w, float* packed_weights) {
  const PackedLayout layout(s);
  for (int64_t layer = 0; layer < s.num_layers; ++layer) {
    float* to = packed_weights + layer * layout.layer;
    pack_matrix(w.qkv + layer * s.d_model * 3 * s.d_model, s.d_model, 3 * s.d_model, 3 * s.d_model, 1,
                to + layout.qkv);
    pack_matrix(w.out + layer * s.d_model * s.d_model, s.d_model, s.d_model, s.d_model, 1, to + layout.out);
    pack_matrix(w.gate + layer * s.d_model * 2 * s.d_ff, s.d_model, 2 * s.d_ff, 2 * s.d_ff, 1,
                to + layout.gate);
    pack_matrix(w.down + layer * s.d_ff * s.d_model, s.d_ff, s.d_model, s.d_model, 1, to + layout.down);
  }
  pack_matrix(w.head, s.d_model, s.vocab_size, 1, s.d_model, packed_weights + layout.head);
}

int64_t packed_size(const Shape& s) { return PackedLayout(s).total; }

int64_t scratch_size(const Shape& s) {
  const int64_t rows = 3 * pad_to_panel(s.d_model) + pad_to_panel(3 * s.d_model) + pad_to_panel(2 * s.d_ff) +
                       pad_to_panel(s.d_ff);
  return kMaxTokens * rows + pad_to_panel(s.cache_length) + 2 * pad_to_panel(s.head_dim()) + 2 * kPanel;
}

void forward_tokens(const Shape& s, const Weights& w, const float* packed_weights, const Token* tokens,
                    int64_t count, int64_t num_logits, float* logits, float* scratch) {
  const PackedLayout layout(s);
  const int64_t d_model = s.d_model, row = pad_to_panel(d_model), head_dim = s.head_dim(),
                half = head_dim / 2;
  const int64_t qkv_row = pad_to_panel(3 * d_model), gate_row = pad_to_panel(2 * s.d_ff);
  Arena arena{scratch};
  float *x = arena.allocate(kMaxTokens * row), *normed = arena.allocate(kMaxTokens * row),
        *attended = arena.allocate(kMaxTokens * row);
  float *qkv = arena.allocate(kMaxTokens * qkv_row), *gate_and_linear = arena.allocate(kMaxTokens * gate_row);
  float *inner = arena.allocate(kMaxTokens * pad_to_panel(s.d_ff)), *scores = arena.allocate(s.cache_length);
  float *query = arena.allocate(head_dim), *output = arena.allocate(s.padded_dim());
  const float scale = kLog2E / sqrtf(static_cast<float>(head_dim));
  for (int64_t i = 0; i < count; ++i) {
    memcpy(x + i * row, w.embedding + tokens[i].token * d_model,
           sizeof(float) * static_cast<size_t>(d_model));
    set_zero(x + i * row + d_model, row - d_model);
  }
  for (int64_t layer = 0; layer < s.num_layers; ++layer) {
    const float* matrices = packed_weights + layer * layout.layer;
    normalize(count, x, w.norms[0] + layer * d_model, d_model, w.epsilon, normed);
    add_bias(count, w.qkv_bias + layer * 3 * d_model, 3 * d_model, true, qkv);
    add_product(count, normed, row, matrices + layout.qkv, d_model, 3 * d_model, qkv);
    // After the keys and values of the last layer, only the tokens whose logits are needed are processed.
    const int64_t first = layer + 1 == s.num_layers ? count - num_logits : 0, rows = count - first;
    for (int64_t i = 0; i < count; ++i) {
      const float *cosine = w.cosine + tokens[i].position * half, *sine = w.sine + tokens[i].position * half;
      for (int64_t head = 0; head < s.num_heads; ++head) {
        const float* row_qkv = qkv + i * qkv_row + head * head_dim;
        rotate(row_qkv + d_model, cosine, sine, half, 1.0f, query);
        Cache(s, tokens[i].cache, layer, head).write(tokens[i].position, query, row_qkv + 2 * d_model);
      }
    }
    for (int64_t i = first; i < count; ++i) {
      const float *cosine = w.cosine + tokens[i].position * half, *sine = w.sine + tokens[i].position * half;
      for (int64_t head = 0; head < s.num_heads; ++head) {
        rotate(qkv + i * qkv_row + head * head_dim, cosine, sine, half, scale, query);
        attend(query, Cache(s, tokens[i].cache, layer, head), tokens[i].position + 1, scores, output);
        memcpy(attended + i * row + head * head_dim, output, sizeof(float) * static_cast<size_t>(head_dim));
      }
    }
    float* residual = x + first * row;
    add_bias(rows, w.out_bias + layer * d_model, d_model, false, residual);
    add_product(rows, attended + first * row, row, matrices + layout.out, d_model, d_model, residual);
    normalize(rows, residual, w.norms[1] + layer * d_model, d_model, w.epsilon, normed);
    add_bias(rows, w.gate_bias + layer * 2 * s.d_ff, 2 * s.d_ff, true, gate_and_linear);
    add_product(rows, normed, row, matrices + layout.gate, d_model, 2 * s.d_ff, gate_and_linear);
    apply_silu_gate(rows, gate_and_linear, s.d_ff, inner);
    add_bias(rows, w.down_bias + layer * d_model, d_model, false, residual);
    add_product(rows, inner, pad_to_panel(s.d_ff), matrices + layout.down, s.d_ff, d_model, residual);
  }
  if (num_logits == 0) return;
  normalize(num_logits, x + (count - num_logits) * row, w.norm, d_model, w.epsilon, normed);
  set_zero(logits, num_logits * pad_to_panel(s.vocab_size));
  add_product(num_logits, normed, row, packed_weights + layout.head, d_model, s.vocab_size, logits);
}

}  // namespace

const Kernels kernels = {packed_size, pack, scratch_size, forward_tokens};

}  // namespace phalanx::lm::decode::PHALANX_ISA
