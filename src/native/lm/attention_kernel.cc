// Attention in blocks of queries and keys that stay in the cache. Scores and softmax weights are never stored
// for a complete row, only the logsumexp of each query; the backward pass recomputes them.

#include "common/simd.h"
#include "lm/attention.h"

namespace phalanx::lm::attention::PHALANX_ISA {
namespace {

constexpr float kMinScore = -1e30f;

// c += a * b, where c has kTileRows rows and b has `columns` columns (whole vectors).
inline void add_product(const float* a, int64_t row, int64_t column, const float* b, float* c,
                        int64_t columns, int64_t depth) {
  int64_t j = 0;
  for (; j + kPanel <= columns; j += kPanel)
    multiply_tile<kTileRows, 2>(a, row, column, b + j, columns, c + j, columns, depth, true);
  if (j < columns) multiply_tile<kTileRows, 1>(a, row, column, b + j, columns, c + j, columns, depth, true);
}

// Computes the scores of kTileRows queries with the first `count` keys of a block in panel layout.
inline void score_tile(const float* queries, int64_t padded_dim, int64_t head_dim, const float* keys,
                       int64_t count, float* scores) {
  for (int64_t j = 0; j < count; j += kPanel)
    multiply_tile<kTileRows, 2>(queries, padded_dim, 1, keys + j * head_dim, kPanel, scores + j, kKeyBlock,
                                head_dim, false);
}

// One head of one row, and the tokens of a span.
struct Head {
  const Shape& shape;
  int64_t row, head;
  const int32_t* order;

  // Returns the offset of a vector in an array [tokens][parts][heads][head_dim].
  int64_t offset(int64_t position, int parts, int part) const {
    const int64_t token = row * shape.tokens + order[position];
    return ((token * parts + part) * shape.heads + head) * shape.head_dim;
  }
  int64_t angle_offset(int64_t position) const {
    return (row * shape.tokens + order[position]) * (shape.head_dim / 2);
  }
};

// Applies the rotary embedding to a query or key and multiplies it by `scale`.
inline void rotate(const float* from, const float* cosine, const float* sine, int64_t half, float scale,
                   float* to) {
  for (int64_t d = 0; d < half; ++d) {
    const float first = from[d] * scale, second = from[half + d] * scale;
    to[d] = first * cosine[d] - second * sine[d];
    to[half + d] = second * cosine[d] + first * sine[d];
  }
}

// The gradient of `rotate`.
inline void rotate_inverse(const float* from, const float* cosine, const float* sine, int64_t half,
                           float scale, float* to) {
  for (int64_t d = 0; d < half; ++d) {
    const float first = from[d] * scale, second = from[half + d] * scale;
    to[d] = first * cosine[d] + second * sine[d];
    to[half + d] = second * cosine[d] - first * sine[d];
  }
}

// Transposes rows [count][padded_dim] to panels [panels][head_dim][kPanel].
inline void to_panels(const float* rows, int64_t count, int64_t padded_dim, int64_t head_dim, float* panels) {
  const int64_t rounded = round_up(count, kPanel);
  for (int64_t t = 0; t < rounded; t += kPanel)
    for (int64_t d = 0; d < head_dim; ++d)
      for (int64_t k = 0; k < kPanel; ++k)
        panels[t * head_dim + d * kPanel + k] = rows[(t + k) * padded_dim + d];
}

// Copies (and rotates, if `cosine` is given) one part of the tokens of a span to rows [count][padded_dim],
// padded with zeros.
inline void pack(const Head& head, int64_t count, const float* from, int parts, int part, const float* cosine,
                 const float* sine, float scale, float* to) {
  const int64_t head_dim = head.shape.head_dim, padded_dim = head.shape.padded_dim();
  for (int64_t t = 0; t < count; ++t) {
    const float* token = from + head.offset(t, parts, part);
    float* here = to + t * padded_dim;
    if (cosine != nullptr) {
      rotate(token, cosine + head.angle_offset(t), sine + head.angle_offset(t), head_dim / 2, scale, here);
    } else {
      memcpy(here, token, sizeof(float) * static_cast<size_t>(head_dim));
    }
    for (int64_t d = head_dim; d < padded_dim; ++d) here[d] = 0.0f;
  }
  set_zero(to + count * padded_dim, (round_up(count, kPanel) + kPanel - count) * padded_dim);
}

// A tile reads up to kTileRows scores beyond those that a query can see; they must be zero.
inline int64_t tail_end(int64_t count) {
  return min_int(round_up((count < 0 ? 0 : count) + kTileRows, kLanes), kKeyBlock);
}

// Replaces the scores by 2^(score - reference) and returns their sum. Zeros follow up to `tail_end`.
inline float exponentiate_scores(float* scores, int64_t count, float reference) {
  Vector total = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    Vector* at = reinterpret_cast<Vector*>(scores + j);
    total += * at = exp2_lanes(*at - reference);
  }
  if (j < count) {
    Vector* at = reinterpret_cast<Vector*>(scores + j);
    total += * at = select(first_lanes(count - j), exp2_lanes(*at - reference), Vector{});
    j += kLanes;
  }
  for (; j < tail_end(count); j += kLanes) vector_at(scores + j) = Vector{};
  return horizontal_sum(total);
}

// Replaces the gradient of the softmax weights by the gradient of the scores. Zeros follow up to `tail_end`.
inline void backward_softmax(const float* weights, int64_t count, float delta, float* gradient) {
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    Vector* at = reinterpret_cast<Vector*>(gradient + j);
    *at = vector_at(weights + j) * (*at - delta);
  }
  if (j < count) {
    Vector* at = reinterpret_cast<Vector*>(gradient + j);
    *at = select(first_lanes(count - j), vector_at(weights + j) * (*at - delta), Vector{});
    j += kLanes;
  }
  for (; j < tail_end(count); j += kLanes) vector_at(gradient + j) = Vector{};
}

inline float max_score(const float* scores, int64_t count, float initial) {
  Vector lane_max = broadcast(initial);
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) lane_max = max_lanes(vector_at(scores + j), lane_max);
  if (j < count)
    lane_max =
        max_lanes(select(first_lanes(count - j), vector_at(scores + j), broadcast(kMinScore)), lane_max);
  for (int lane = 0; lane < kLanes; ++lane) initial = lane_max[lane] > initial ? lane_max[lane] : initial;
  return initial;
}

int64_t forward_scratch(const Shape& s) {
  return 4 * s.padded_tokens() * s.padded_dim() + kQueryBlock * (kKeyBlock + s.padded_dim() + 2) +
         16 * kPanel;
}

int64_t backward_scratch(const Shape& s) {
  return 8 * s.padded_tokens() * s.padded_dim() + kQueryBlock * (2 * kKeyBlock + s.padded_dim() + 2) +
         16 * kPanel;
}

void forward_span(const ForwardCall& call, const Head& head, int64_t count, Arena arena) {
  const Shape& s = call.shape;
  const int64_t head_dim = s.head_dim, padded_dim = s.padded_dim(), padded_tokens = s.padded_tokens();
  float *queries = arena.allocate(padded_tokens * padded_dim),
        *keys = arena.allocate(padded_tokens * padded_dim),
        *values = arena.allocate(padded_tokens * padded_dim);
  float *panels = arena.allocate(padded_tokens * padded_dim),
        *scores = arena.allocate(kQueryBlock * kKeyBlock);
  float *sums = arena.allocate(kQueryBlock * padded_dim), *max_scores = arena.allocate(kQueryBlock),
        *totals = arena.allocate(kQueryBlock);
  const float scale = kLog2E / sqrtf(static_cast<float>(head_dim));
  pack(head, count, call.qkv, 3, 0, call.cosine, call.sine, scale, queries);
  pack(head, count, call.qkv, 3, 1, call.cosine, call.sine, 1.0f, keys);
  pack(head, count, call.qkv, 3, 2, nullptr, nullptr, 1.0f, values);
  to_panels(keys, count, padded_dim, head_dim, panels);
  for (int64_t first = 0; first < count; first += kQueryBlock) {
    const int64_t rows = min_int(kQueryBlock, count - first);
    for (int64_t i = 0; i < kQueryBlock; ++i) max_scores[i] = kMinScore, totals[i] = 0.0f;
    set_zero(sums, kQueryBlock * padded_dim);
    for (int64_t key = 0; key < first + rows; key += kKeyBlock) {
      for (int64_t i = 0; i < rows; i += kTileRows) {
        // No query of the tile sees keys after its own last query.
        const int64_t num_keys = min_int(kKeyBlock, first + i + kTileRows - key);
        if (num_keys <= 0) continue;
        float* tile_scores = scores + i * kKeyBlock;
        score_tile(queries + (first + i) * padded_dim, padded_dim, head_dim, panels + key * head_dim,
                   num_keys, tile_scores);
        for (int64_t r = 0; r < kTileRows; ++r) {
          const int64_t num_visible = min_int(kKeyBlock, first + i + r - key + 1);
          const float new_max = max_score(tile_scores + r * kKeyBlock, num_visible, max_scores[i + r]);
          const float rescale = exp2_lanes(broadcast(max_scores[i + r] - new_max))[0];
          totals[i + r] = totals[i + r] * rescale +
                          exponentiate_scores(tile_scores + r * kKeyBlock, num_visible, new_max);
          max_scores[i + r] = new_max;
          for (int64_t d = 0; d < padded_dim; d += kLanes)
            vector_at(sums + (i + r) * padded_dim + d) *= rescale;
        }
        add_product(tile_scores, kKeyBlock, 1, values + key * padded_dim, sums + i * padded_dim, padded_dim,
                    num_keys);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      float* to = call.output + head.offset(first + i, 1, 0);
      for (int64_t d = 0; d < head_dim; ++d) to[d] = sums[i * padded_dim + d] / totals[i];
      call.logsumexp[(head.row * s.heads + head.head) * s.tokens + head.order[first + i]] =
          max_scores[i] + log2f(totals[i]);
    }
  }
}

void backward_span(const BackwardCall& call, const Head& head, int64_t count, Arena arena) {
  const Shape& s = call.shape;
  const int64_t head_dim = s.head_dim, padded_dim = s.padded_dim(), padded_tokens = s.padded_tokens(),
                half = head_dim / 2;
  float *queries = arena.allocate(padded_tokens * padded_dim),
        *keys = arena.allocate(padded_tokens * padded_dim),
        *values = arena.allocate(padded_tokens * padded_dim);
  float *upstream = arena.allocate(padded_tokens * padded_dim),
        *key_panels = arena.allocate(padded_tokens * padded_dim);
  float *value_panels = arena.allocate(padded_tokens * padded_dim),
        *d_keys = arena.allocate(padded_tokens * padded_dim);
  float *d_values = arena.allocate(padded_tokens * padded_dim),
        *scores = arena.allocate(kQueryBlock * kKeyBlock);
  float *d_scores = arena.allocate(kQueryBlock * kKeyBlock),
        *d_queries = arena.allocate(kQueryBlock * padded_dim);
  float *deltas = arena.allocate(kQueryBlock), *logsumexp = arena.allocate(kQueryBlock);
  const float scale = 1.0f / sqrtf(static_cast<float>(head_dim));
  pack(head, count, call.qkv, 3, 0, call.cosine, call.sine, scale * kLog2E, queries);
  pack(head, count, call.qkv, 3, 1, call.cosine, call.sine, 1.0f, keys);
  pack(head, count, call.qkv, 3, 2, nullptr, nullptr, 1.0f, values);
  pack(head, count, call.output_gradient, 1, 0, nullptr, nullptr, 1.0f, upstream);
  to_panels(keys, count, padded_dim, head_dim, key_panels);
  to_panels(values, count, padded_dim, head_dim, value_panels);
  set_zero(d_keys, (count + kTileRows) * padded_dim);
  set_zero(d_values, (count + kTileRows) * padded_dim);
  for (int64_t first = 0; first < count; first += kQueryBlock) {
    const int64_t rows = min_int(kQueryBlock, count - first);
    set_zero(d_queries, kQueryBlock * padded_dim);
    for (int64_t i = 0; i < rows; ++i) {
      const float* out = call.output + head.offset(first + i, 1, 0);
      float delta = 0.0f;
      for (int64_t d = 0; d < head_dim; ++d) delta += out[d] * upstream[(first + i) * padded_dim + d];
      deltas[i] = delta;
      logsumexp[i] = call.logsumexp[(head.row * s.heads + head.head) * s.tokens + head.order[first + i]];
    }
    for (int64_t key = 0; key < first + rows; key += kKeyBlock) {
      for (int64_t i = 0; i < rows; i += kTileRows) {
        const int64_t num_keys = min_int(kKeyBlock, first + i + kTileRows - key);
        if (num_keys <= 0) continue;
        float *tile_scores = scores + i * kKeyBlock, *tile_gradient = d_scores + i * kKeyBlock;
        score_tile(queries + (first + i) * padded_dim, padded_dim, head_dim, key_panels + key * head_dim,
                   num_keys, tile_scores);
        score_tile(upstream + (first + i) * padded_dim, padded_dim, head_dim, value_panels + key * head_dim,
                   num_keys, tile_gradient);
        for (int64_t r = 0; r < kTileRows && i + r < rows; ++r) {
          const int64_t num_visible = min_int(kKeyBlock, first + i + r - key + 1);
          exponentiate_scores(tile_scores + r * kKeyBlock, num_visible, logsumexp[i + r]);
          backward_softmax(tile_scores + r * kKeyBlock, num_visible, deltas[i + r],
                           tile_gradient + r * kKeyBlock);
        }
        add_product(tile_gradient, kKeyBlock, 1, keys + key * padded_dim, d_queries + i * padded_dim,
                    padded_dim, num_keys);
      }
      const int64_t last = min_int(kKeyBlock, first + rows - key);
      for (int64_t j = 0; j < last; j += kTileRows) {
        // No key of the tile is seen by queries before it.
        const int64_t first_query = key + j > first ? key + j - first : 0;
        const int64_t begin = first_query * kKeyBlock + j, token = first + first_query;
        add_product(scores + begin, 1, kKeyBlock, upstream + token * padded_dim,
                    d_values + (key + j) * padded_dim, padded_dim, rows - first_query);
        add_product(d_scores + begin, 1, kKeyBlock, queries + token * padded_dim,
                    d_keys + (key + j) * padded_dim, padded_dim, rows - first_query);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t angle_offset = head.angle_offset(first + i);
      rotate_inverse(d_queries + i * padded_dim, call.cosine + angle_offset, call.sine + angle_offset, half,
                     scale, call.qkv_gradient + head.offset(first + i, 3, 0));
    }
  }
  for (int64_t t = 0; t < count; ++t) {
    const int64_t angle_offset = head.angle_offset(t);
    // The packed queries contain the factor kLog2E, which is not part of the gradient.
    rotate_inverse(d_keys + t * padded_dim, call.cosine + angle_offset, call.sine + angle_offset, half,
                   1.0f / kLog2E, call.qkv_gradient + head.offset(t, 3, 1));
    memcpy(call.qkv_gradient + head.offset(t, 3, 2), d_values + t * padded_dim,
           sizeof(float) * static_cast<size_t>(head_dim));
  }
}

template <typename Call, typename SpanWork>
inline void for_each_span(const Call& call, int64_t begin, int64_t end, float* scratch,
                          const SpanWork& work) {
  const Shape& s = call.shape;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / s.heads;
    const int32_t* span_begins = call.spans.span_begins + row * (s.tokens + 1);
    for (int32_t k = 0; k < call.spans.num_spans[row]; ++k) {
      const Head head{s, row, task % s.heads, call.spans.order + row * s.tokens + span_begins[k]};
      work(call, head, span_begins[k + 1] - span_begins[k], Arena{scratch});
    }
  }
}

void forward(const ForwardCall& call, int64_t begin, int64_t end, float* scratch) {
  for_each_span(call, begin, end, scratch, forward_span);
}

void backward(const BackwardCall& call, int64_t begin, int64_t end, float* scratch) {
  for_each_span(call, begin, end, scratch, backward_span);
}

}  // namespace

const Kernels kernels = {forward_scratch, backward_scratch, forward, backward};

}  // namespace phalanx::lm::attention::PHALANX_ISA
