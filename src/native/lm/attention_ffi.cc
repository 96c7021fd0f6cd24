// Attention within the segments of packed rows as XLA custom calls: sizes are checked here, tokens are sorted into
// segments, and the heads of all rows are shared over XLA's thread pool.

#include "lm/attention_ffi.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "lm/attention.h"
#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "common/cpu_features.h"

namespace phalanx::attention {
namespace {

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;

const Kernels& kernels() { return PHALANX_BEST_KERNELS; }

// Memory of a thread's own, aligned for vectors; kept from call to call.
float* scratch_memory(int64_t floats) {
  thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < floats + 16) memory.resize(static_cast<size_t>(floats + 16));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

// The tokens of each row by segment, whatever numbers segments have and wherever their tokens stand.
class Sorted {
 public:
  Sorted(const int32_t* segments, int64_t rows, int64_t tokens)
      : order_(rows * tokens), begins_(rows * (tokens + 1)), counts_(rows) {
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t* own = segments + row * tokens;
      int32_t *order = order_.data() + row * tokens, *begins = begins_.data() + row * (tokens + 1), count = 0;
      std::iota(order, order + tokens, 0);
      const auto before = [own](int32_t a, int32_t b) { return own[a] < own[b]; };
      if (!std::is_sorted(order, order + tokens, before)) std::stable_sort(order, order + tokens, before);
      for (int64_t t = 0; t < tokens; ++t) {
        const int32_t mine = own[order[t]];
        // Padding sees itself alone.
        if (t == 0 || mine == 0 || mine != own[order[t - 1]]) begins[count++] = static_cast<int32_t>(t);
      }
      begins[count] = static_cast<int32_t>(tokens);
      counts_[row] = count;
    }
  }

  Stretches stretches() const { return {order_.data(), begins_.data(), counts_.data()}; }

 private:
  std::vector<int32_t> order_, begins_, counts_;
};

Shape shape_of(const F32& qkv) { return {axis(qkv, 0), axis(qkv, 1), axis(qkv, 3), axis(qkv, 4)}; }

void expect_inputs(Sizes& sizes, const Shape& s, const F32& qkv, const F32& cosine, const F32& sine,
                   const S32& segments) {
  sizes.require(qkv.dimensions().size() == 5, "qkv must be [rows, tokens, 3, heads, size]");
  sizes.expect("qkv", qkv, {s.rows, s.tokens, 3, s.heads, s.size});
  sizes.require(s.size >= 2 && s.size % 2 == 0, "the size of a head must be even, for positions rotate pairs");
  sizes.require(s.tokens < std::numeric_limits<int32_t>::max(), "rows have too many tokens");
  sizes.expect("cosine", cosine, {s.rows, s.tokens, s.size / 2});
  sizes.expect("sine", sine, {s.rows, s.tokens, s.size / 2});
  sizes.expect("segments", segments, {s.rows, s.tokens});
}

ffi::Error forward(ffi::ThreadPool pool, F32 qkv, F32 cosine, F32 sine, S32 segments, ffi::Result<F32> attended,
                   ffi::Result<F32> logs) {
  const Shape s = shape_of(qkv);
  Sizes sizes("phalanx_attention_forward");
  expect_inputs(sizes, s, qkv, cosine, sine, segments);
  sizes.expect("attended", *attended, {s.rows, s.tokens, s.heads, s.size});
  sizes.expect("logs", *logs, {s.rows, s.heads, s.tokens});
  if (sizes.wrong()) return sizes.error();
  if (s.tasks() == 0 || s.tokens == 0) return ffi::Error::Success();
  const Sorted sorted(segments.typed_data(), s.rows, s.tokens);
  const ForwardCall call = {s, sorted.stretches(), qkv.typed_data(), cosine.typed_data(), sine.typed_data(),
                            attended->typed_data(), logs->typed_data()};
  const Kernels& best = kernels();
  parallel_for(pool, s.tasks(), 1, [&](int64_t begin, int64_t end) {
    best.forward(call, begin, end, scratch_memory(best.forward_floats(s)));
  });
  return ffi::Error::Success();
}

ffi::Error backward(ffi::ThreadPool pool, F32 qkv, F32 cosine, F32 sine, S32 segments, F32 attended, F32 logs,
                    F32 cotangent, ffi::Result<F32> gradient) {
  const Shape s = shape_of(qkv);
  Sizes sizes("phalanx_attention_backward");
  expect_inputs(sizes, s, qkv, cosine, sine, segments);
  sizes.expect("attended", attended, {s.rows, s.tokens, s.heads, s.size});
  sizes.expect("logs", logs, {s.rows, s.heads, s.tokens});
  sizes.expect("cotangent", cotangent, {s.rows, s.tokens, s.heads, s.size});
  sizes.expect("gradient", *gradient, {s.rows, s.tokens, 3, s.heads, s.size});
  if (sizes.wrong()) return sizes.error();
  if (s.tasks() == 0 || s.tokens == 0) return ffi::Error::Success();
  const Sorted sorted(segments.typed_data(), s.rows, s.tokens);
  const BackwardCall call = {s, sorted.stretches(), qkv.typed_data(), cosine.typed_data(), sine.typed_data(),
                             attended.typed_data(), logs.typed_data(), cotangent.typed_data(), gradient->typed_data()};
  const Kernels& best = kernels();
  parallel_for(pool, s.tasks(), 1, [&](int64_t begin, int64_t end) {
    best.backward(call, begin, end, scratch_memory(best.backward_floats(s)));
  });
  return ffi::Error::Success();
}

}  // namespace

#define PHALANX_INPUTS .Arg<F32>().Arg<F32>().Arg<F32>().Arg<S32>()

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_attention_forward, forward,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() PHALANX_INPUTS.Ret<F32>().Ret<F32>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    phalanx_attention_backward, backward,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() PHALANX_INPUTS.Arg<F32>().Arg<F32>().Arg<F32>().Ret<F32>());

}  // namespace phalanx::attention
