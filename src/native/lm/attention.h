// Attention within the segments of packed rows, forward and backward: what one call needs, and the table of functions
// that each instruction set provides. The arithmetic is in attention_kernel.inc, JAX's side in attention_ffi.cc.
#pragma once

#include <cstdint>

namespace phalanx::attention {

constexpr int kRows = 6;     // rows of a tile whose sums stay in registers
constexpr int kQueries = 48;  // tokens that attend together: a multiple of kRows
constexpr int kKeys = 96;     // tokens that are attended to together: a multiple of kRows and of two vectors

struct Shape {
  int64_t rows, tokens, heads, size;

  int64_t padded() const { return (size + 7) / 8 * 8; }
  // Tokens with room for whole tiles behind them.
  int64_t room() const { return (tokens + 15) / 16 * 16 + kKeys; }
  int64_t tasks() const { return rows * heads; }
};

// Tokens by segment, in their order: a stretch of `order` for each segment, one of its own for each padding token.
struct Stretches {
  const int32_t* order;   // [rows][tokens]
  const int32_t* begins;  // [rows][tokens + 1]: where stretches begin in `order`, and behind them where the last ends
  const int32_t* counts;  // [rows]
};

struct ForwardCall {
  Shape shape;
  Stretches stretches;
  const float* qkv;     // [rows][tokens][3][heads][size], before positions rotate it
  const float *cosine, *sine;  // [rows][tokens][size / 2]
  float* attended;      // [rows][tokens][heads][size]
  float* logs;          // [rows][heads][tokens]: the binary logarithm of the sum of each token's powers of 2
};

struct BackwardCall {
  Shape shape;
  Stretches stretches;
  const float* qkv;
  const float *cosine, *sine;
  const float *attended, *logs;
  const float* cotangent;  // like `attended`
  float* gradient;         // like `qkv`
};

// One instruction set's compilation; each works on tasks [begin, end), a task being a head of a row. A task writes
// what no other writes, and sums in an order of its own, so that results do not depend on threads.
struct Kernels {
  const char* isa;
  int64_t (*forward_floats)(const Shape&);
  int64_t (*backward_floats)(const Shape&);
  void (*forward)(const ForwardCall&, int64_t begin, int64_t end, float* scratch);
  void (*backward)(const BackwardCall&, int64_t begin, int64_t end, float* scratch);
};

extern const Kernels kBaselineKernels;
#ifdef PHALANX_HAVE_AVX2
extern const Kernels kAvx2Kernels;
#endif

}  // namespace phalanx::attention
