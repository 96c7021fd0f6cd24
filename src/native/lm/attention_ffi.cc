// The custom calls `phalanx_lm_attention_forward` and `phalanx_lm_attention_backward`.

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "common/cpu_features.h"
#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "common/scratch.h"
#include "lm/attention.h"

namespace phalanx::lm::attention {
namespace {

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;

// Sorts the tokens of each row by segment. Segments can have any ids and need not be contiguous.
class SegmentIndex {
 public:
  SegmentIndex(const int32_t* segments, int64_t rows, int64_t tokens)
      : order_(rows * tokens), begins_(rows * (tokens + 1)), counts_(rows) {
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t* ids = segments + row * tokens;
      int32_t *order = order_.data() + row * tokens, *begins = begins_.data() + row * (tokens + 1), count = 0;
      std::iota(order, order + tokens, 0);
      const auto by_id = [ids](int32_t a, int32_t b) { return ids[a] < ids[b]; };
      if (!std::is_sorted(order, order + tokens, by_id)) std::stable_sort(order, order + tokens, by_id);
      for (int64_t t = 0; t < tokens; ++t) {
        const int32_t id = ids[order[t]];
        // A padding token (segment 0) attends only to itself.
        if (t == 0 || id == 0 || id != ids[order[t - 1]]) begins[count++] = static_cast<int32_t>(t);
      }
      begins[count] = static_cast<int32_t>(tokens);
      counts_[row] = count;
    }
  }

  SegmentSpans spans() const { return {order_.data(), begins_.data(), counts_.data()}; }

 private:
  std::vector<int32_t> order_, begins_, counts_;
};

Shape read_shape(const F32& qkv) {
  return {axis_size(qkv, 0), axis_size(qkv, 1), axis_size(qkv, 3), axis_size(qkv, 4)};
}

void check_inputs(ShapeCheck& check, const Shape& s, const F32& qkv, const F32& cosine, const F32& sine,
                  const S32& segments) {
  check.require(qkv.dimensions().size() == 5, "qkv must have the shape [rows, tokens, 3, heads, head_dim]");
  check.expect("qkv", qkv, {s.rows, s.tokens, 3, s.heads, s.head_dim});
  check.require(s.head_dim >= 2 && s.head_dim % 2 == 0,
                "head_dim must be even, because rotary embeddings rotate pairs of features");
  check.require(s.tokens < std::numeric_limits<int32_t>::max(), "a row must have less than 2^31 tokens");
  check.expect("cosine", cosine, {s.rows, s.tokens, s.head_dim / 2});
  check.expect("sine", sine, {s.rows, s.tokens, s.head_dim / 2});
  check.expect("segments", segments, {s.rows, s.tokens});
}

ffi::Error forward(ffi::ThreadPool pool, F32 qkv, F32 cosine, F32 sine, S32 segments, ffi::Result<F32> output,
                   ffi::Result<F32> logsumexp) {
  const Shape s = read_shape(qkv);
  ShapeCheck check("phalanx_lm_attention_forward");
  check_inputs(check, s, qkv, cosine, sine, segments);
  check.expect("output", *output, {s.rows, s.tokens, s.heads, s.head_dim});
  check.expect("logsumexp", *logsumexp, {s.rows, s.heads, s.tokens});
  if (check.failed()) return check.error();
  if (s.num_tasks() == 0 || s.tokens == 0) return ffi::Error::Success();
  const SegmentIndex index(segments.typed_data(), s.rows, s.tokens);
  const ForwardCall call = {s,
                            index.spans(),
                            qkv.typed_data(),
                            cosine.typed_data(),
                            sine.typed_data(),
                            output->typed_data(),
                            logsumexp->typed_data()};
  const Kernels& kernels = PHALANX_SELECT_KERNELS;
  parallel_for(PoolLauncher(pool), s.num_tasks(), 1, [&](int64_t, int64_t begin, int64_t end) {
    kernels.forward(call, begin, end, thread_scratch(kernels.forward_scratch(s)));
  });
  return ffi::Error::Success();
}

ffi::Error backward(ffi::ThreadPool pool, F32 qkv, F32 cosine, F32 sine, S32 segments, F32 output,
                    F32 logsumexp, F32 output_gradient, ffi::Result<F32> qkv_gradient) {
  const Shape s = read_shape(qkv);
  ShapeCheck check("phalanx_lm_attention_backward");
  check_inputs(check, s, qkv, cosine, sine, segments);
  check.expect("output", output, {s.rows, s.tokens, s.heads, s.head_dim});
  check.expect("logsumexp", logsumexp, {s.rows, s.heads, s.tokens});
  check.expect("output_gradient", output_gradient, {s.rows, s.tokens, s.heads, s.head_dim});
  check.expect("qkv_gradient", *qkv_gradient, {s.rows, s.tokens, 3, s.heads, s.head_dim});
  if (check.failed()) return check.error();
  if (s.num_tasks() == 0 || s.tokens == 0) return ffi::Error::Success();
  const SegmentIndex index(segments.typed_data(), s.rows, s.tokens);
  const BackwardCall call = {s,
                             index.spans(),
                             qkv.typed_data(),
                             cosine.typed_data(),
                             sine.typed_data(),
                             output.typed_data(),
                             logsumexp.typed_data(),
                             output_gradient.typed_data(),
                             qkv_gradient->typed_data()};
  const Kernels& kernels = PHALANX_SELECT_KERNELS;
  parallel_for(PoolLauncher(pool), s.num_tasks(), 1, [&](int64_t, int64_t begin, int64_t end) {
    kernels.backward(call, begin, end, thread_scratch(kernels.backward_scratch(s)));
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_lm_attention_forward, NoThrow<forward>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<F32>()    // qkv
                                  .Arg<F32>()    // cosine
                                  .Arg<F32>()    // sine
                                  .Arg<S32>()    // segments
                                  .Ret<F32>()    // output
                                  .Ret<F32>());  // logsumexp

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_lm_attention_backward, NoThrow<backward>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<F32>()    // qkv
                                  .Arg<F32>()    // cosine
                                  .Arg<F32>()    // sine
                                  .Arg<S32>()    // segments
                                  .Arg<F32>()    // output
                                  .Arg<F32>()    // logsumexp
                                  .Arg<F32>()    // output gradient
                                  .Ret<F32>());  // qkv gradient

}  // namespace phalanx::lm::attention
