// Causal attention within the segments of packed rows, with rotary position embeddings, forward and backward.
#pragma once

#include <cstdint>

namespace phalanx::lm::attention {

constexpr int kTileRows = 6;     // rows of a tile whose sums fit into registers
constexpr int kQueryBlock = 48;  // queries that are processed together: a multiple of kTileRows
constexpr int kKeyBlock = 96;    // keys that are processed together: a multiple of kTileRows and of kPanel

struct Shape {
  int64_t rows, tokens, heads, head_dim;

  int64_t padded_dim() const { return (head_dim + 7) / 8 * 8; }
  // With space for complete tiles after the last token.
  int64_t padded_tokens() const { return (tokens + 15) / 16 * 16 + kKeyBlock; }
  int64_t num_tasks() const { return rows * heads; }
};

// The tokens of each row sorted by segment: each segment is a span of `order`, and so is each padding token.
struct SegmentSpans {
  const int32_t* order;        // [rows][tokens]
  const int32_t* span_begins;  // [rows][tokens + 1]: first token of each span, and the end of the last
  const int32_t* num_spans;    // [rows]
};

struct ForwardCall {
  Shape shape;
  SegmentSpans spans;
  const float* qkv;            // [rows][tokens][3][heads][head_dim], before rotation
  const float *cosine, *sine;  // [rows][tokens][head_dim / 2]
  float* output;               // [rows][tokens][heads][head_dim]
  float* logsumexp;            // [rows][heads][tokens]: binary logarithm of the sum of 2^score
};

struct BackwardCall {
  Shape shape;
  SegmentSpans spans;
  const float* qkv;
  const float *cosine, *sine;
  const float *output, *logsumexp;
  const float* output_gradient;  // like `output`
  float* qkv_gradient;           // like `qkv`
};

// A task is one head of one row. Each task writes its own part of the results and adds in a fixed order, so
// results do not depend on the number of threads.
struct Kernels {
  // Numbers of floats that `forward` and `backward` need as scratch memory.
  int64_t (*forward_scratch)(const Shape&);
  int64_t (*backward_scratch)(const Shape&);
  // Process the tasks [begin, end).
  void (*forward)(const ForwardCall&, int64_t begin, int64_t end, float* scratch);
  void (*backward)(const BackwardCall&, int64_t begin, int64_t end, float* scratch);
};

namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}

}  // namespace phalanx::lm::attention
