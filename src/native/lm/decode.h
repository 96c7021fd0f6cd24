// A language model that writes: its arrays as they are given and as the products want them, the cache of one row, and
// the table of functions that each instruction set provides. The arithmetic is in writing_kernel.inc, how tokens are
// drawn in writing_draws.cc, JAX's side and the rows' way through it in writing_ffi.cc.
#pragma once

#include <cstdint>

namespace phalanx::writing {

constexpr int64_t kTogether = 48;  // tokens that are computed together, at most

inline int64_t whole_panels(int64_t columns) { return (columns + 15) / 16 * 16; }

struct Sizes {
  int64_t vocabulary, width, depth, heads, hidden;
  int64_t places;  // of a cache

  int64_t size() const { return width / heads; }
  // Numbers of a value's vector, in whole vectors.
  int64_t padded() const { return (size() + 7) / 8 * 8; }
  // A row's keys are [depth][heads][places / 16][size][16], its values behind them [depth][heads][places][padded].
  int64_t keys() const { return depth * heads * places * size(); }
  int64_t cache_floats() const { return keys() + depth * heads * places * padded(); }
};

// Arrays of all blocks, the depth first.
struct Arrays {
  const float *embedding, *head;  // [vocabulary][width]
  const float* norm;              // [width]
  const float *norms[2];          // [depth][width]
  const float *qkv, *qkv_bias;    // [depth][width][3 width]
  const float *out, *out_bias;    // [depth][width][width]
  const float *gate, *gate_bias;  // [depth][width][2 hidden]
  const float *down, *down_bias;  // [depth][hidden][width]
  const float *cosine, *sine;     // [places][size / 2]
  float epsilon;
};

// One token of a row, and what its row has written so far.
struct Token {
  int32_t token, place;
  float* cache;
};

struct Kernels {
  int64_t (*packed_floats)(const Sizes&);
  // The matrices in panels of 16 columns, one behind the other, for `advance`.
  void (*pack)(const Sizes&, const Arrays&, float* packed);
  int64_t (*scratch_floats)(const Sizes&);
  // Takes `count` tokens further, at most kTogether; tokens of one row stand side by side in their order, and all before
  // them are in the row's cache. Writes logits, [wanted][whole panels of the vocabulary], of the last `wanted` tokens.
  // What a token gets does not depend on the tokens of other rows beside it.
  void (*advance)(const Sizes&, const Arrays&, const float* packed, const Token* tokens, int64_t count, int64_t wanted,
                  float* logits, float* scratch);
};

extern const Kernels kBaselineKernels;
#ifdef PHALANX_HAVE_AVX2
extern const Kernels kAvx2Kernels;
#endif

}  // namespace phalanx::writing
