// One step of a transformer with a KV cache, for a few tokens of any rows.
#pragma once

#include <cstdint>

namespace phalanx::lm::decode {

constexpr int64_t kMaxTokens = 48;  // tokens that are processed together

// Rounds up to whole panels of 16 columns.
inline int64_t pad_to_panel(int64_t columns) { return (columns + 15) / 16 * 16; }

struct Shape {
  int64_t vocab_size, d_model, num_layers, num_heads, d_ff;
  int64_t cache_length;  // positions in a KV cache

  int64_t head_dim() const { return d_model / num_heads; }
  // A value vector, padded to whole SIMD vectors.
  int64_t padded_dim() const { return (head_dim() + 7) / 8 * 8; }
  // A cache consists of the keys [num_layers][num_heads][cache_length / 16][head_dim][16] and the values
  // [num_layers][num_heads][cache_length][padded_dim].
  int64_t key_floats() const { return num_layers * num_heads * cache_length * head_dim(); }
  int64_t cache_floats() const { return key_floats() + num_layers * num_heads * cache_length * padded_dim(); }
};

// Weights of all layers; the layer is the first axis.
struct Weights {
  const float *embedding, *head;  // [vocab_size][d_model]
  const float* norm;              // [d_model]
  const float* norms[2];          // [num_layers][d_model]
  const float *qkv, *qkv_bias;    // [num_layers][d_model][3 * d_model]
  const float *out, *out_bias;    // [num_layers][d_model][d_model]
  const float *gate, *gate_bias;  // [num_layers][d_model][2 * d_ff]
  const float *down, *down_bias;  // [num_layers][d_ff][d_model]
  const float *cosine, *sine;     // [cache_length][head_dim / 2]
  float epsilon;
};

// A token, its position and the cache of its row.
struct Token {
  int32_t token, position;
  float* cache;
};

struct Kernels {
  int64_t (*packed_size)(const Shape&);
  // Copies the matrices to panels of 16 columns.
  void (*pack)(const Shape&, const Weights&, float* packed_weights);
  int64_t (*scratch_size)(const Shape&);
  // Processes `count` tokens, at most kMaxTokens, and adds them to the caches of their rows. Tokens of the
  // same row must be consecutive and in order, and all earlier tokens of the row must be in its cache. Writes
  // the logits of the last `num_logits` tokens as [num_logits][pad_to_panel(vocab_size)]. The result for a
  // row does not depend on the other rows.
  void (*forward_tokens)(const Shape&, const Weights&, const float* packed_weights, const Token* tokens,
                         int64_t count, int64_t num_logits, float* logits, float* scratch);
};

namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}

}  // namespace phalanx::lm::decode
