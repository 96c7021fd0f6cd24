// The custom call `phalanx_lm_generate`. Each worker has slots for some rows that are decoded together, one
// token per step. When a row ends, the next row takes its slot, so that matrix products stay large. Prompts
// are processed row by row; if the same prompt is already in the cache of a slot, its keys and values are
// reused.

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/cpu_features.h"
#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "common/scratch.h"
#include "lm/decode.h"
#include "lm/sampling.h"

namespace phalanx::lm::decode {
namespace {

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using Flags = ffi::Buffer<ffi::PRED>;

constexpr int64_t kMaxSlots = 32;  // per worker; with more, the caches cost more than larger products save
constexpr int64_t kMaxEqualPrompts = 8;  // consecutive rows with equal prompts that one worker takes at once
constexpr int64_t kMaxFloats = int64_t{1} << 38;

const Kernels& kernels() { return PHALANX_SELECT_KERNELS; }

struct Prompts {
  const int32_t *tokens, *starts;  // [rows][width] and [rows]: a prompt is at the end of its row
  int64_t rows, width;

  const int32_t* begin(int64_t row) const { return tokens + row * width + starts[row]; }
  const int32_t* end(int64_t row) const { return tokens + (row + 1) * width; }
  int64_t length(int64_t row) const { return width - starts[row]; }
  bool equal(int64_t a, int64_t b) const {
    return length(a) == length(b) && std::equal(begin(a), end(a), begin(b));
  }
};

struct Completions {
  int32_t* tokens;   // [rows][max_new_tokens]
  float* logps;      // [rows][max_new_tokens]
  int32_t* lengths;  // [rows]
  bool* ended;       // [rows]: whether the last token is the stop token
};

struct Call {
  Shape shape;
  Weights weights;
  Prompts prompts;
  const float* uniforms;  // [rows][max_new_tokens]: random numbers
  const int32_t*
      choices;  // [rows][num_choices][max_new_tokens], padded with -1: allowed completions, or none
  int64_t num_choices, max_new_tokens;
  Sampling sampling;
  int32_t stop_token;
  Completions completions;
};

// Rows sorted by prompt, in groups with equal prompts.
class PromptQueue {
 public:
  explicit PromptQueue(const Prompts& prompts) : order_(static_cast<size_t>(prompts.rows)) {
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
      return std::lexicographical_compare(prompts.begin(a), prompts.end(a), prompts.begin(b), prompts.end(b));
    });
    for (int64_t i = 0; i < prompts.rows; ++i)
      if (i == 0 || i - begins_.back() == kMaxEqualPrompts || !prompts.equal(order_[i], order_[i - 1]))
        begins_.push_back(i);
    num_groups_ = static_cast<int64_t>(begins_.size());
    begins_.push_back(prompts.rows);
  }

  // Returns the rows of the next group, or null pointers if there is none.
  std::pair<const int64_t*, const int64_t*> take() {
    const int64_t group = next_.fetch_add(1, std::memory_order_relaxed);
    if (group >= num_groups_) return {nullptr, nullptr};
    return {order_.data() + begins_[group], order_.data() + begins_[group + 1]};
  }

 private:
  std::vector<int64_t> order_, begins_;
  int64_t num_groups_ = 0;
  std::atomic<int64_t> next_{0};
};

// The state of a row that is being decoded.
struct Slot {
  float* cache;
  float* prompt_logits;                     // after the prompt
  const float* logits = nullptr;            // after the last token
  int64_t row = -1;                         // -1 if the slot is free
  int64_t prompt_row = -1;                  // row whose prompt is at the start of the cache
  int64_t length = 0;                       // number of new tokens
  std::vector<uint8_t> possible_choices{};  // choices that start with the tokens so far
};

class Decoder {
 public:
  Decoder(const Call& call, const float* packed_weights, int64_t num_slots, PromptQueue& queue)
      : call_(call),
        packed_weights_(packed_weights),
        queue_(queue),
        num_slots_(num_slots),
        memory_(allocate_floats(memory_size())) {}

  bool has_memory() const { return memory_ != nullptr; }

  void run() {
    const int64_t logits_size = pad_to_panel(call_.shape.vocab_size), cache_size = aligned_cache_size();
    float* next = memory_.get();
    for (int64_t i = 0; i < num_slots_; ++i, next += cache_size + logits_size)
      slots_.push_back(Slot{next, next + cache_size});
    logits_ = next, scratch_ = next + kMaxTokens * logits_size;
    for (;;) {
      for (Slot& slot : slots_)
        if (slot.row < 0) start_row(slot);
      Token tokens[kMaxTokens];
      Slot* active[kMaxTokens];
      int64_t count = 0;
      for (Slot& slot : slots_) {
        if (slot.row < 0 || !choose_token(slot, tokens[count])) continue;
        active[count++] = &slot;
      }
      if (count == 0) {
        if (rows_.first == rows_.second && (rows_ = queue_.take()).first == nullptr) return;
        continue;
      }
      kernels().forward_tokens(call_.shape, call_.weights, packed_weights_, tokens, count, count, logits_,
                               scratch_);
      for (int64_t i = 0; i < count; ++i) active[i]->logits = logits_ + i * logits_size;
    }
  }

 private:
  int64_t aligned_cache_size() const { return pad_to_panel(call_.shape.cache_floats()); }

  int64_t memory_size() const {
    const int64_t logits_size = pad_to_panel(call_.shape.vocab_size);
    return num_slots_ * (aligned_cache_size() + logits_size) + kMaxTokens * logits_size +
           kernels().scratch_size(call_.shape);
  }

  // Assigns the next row to a slot and fills its cache with the prompt.
  void start_row(Slot& slot) {
    if (rows_.first == rows_.second) rows_ = queue_.take();
    if (rows_.first == rows_.second) return;
    slot.row = *rows_.first++;
    slot.length = 0;
    slot.logits = slot.prompt_logits;
    if (call_.num_choices > 0) {
      slot.possible_choices.resize(static_cast<size_t>(call_.num_choices));
      for (int64_t c = 0; c < call_.num_choices; ++c) slot.possible_choices[c] = next_of_choice(slot, c) >= 0;
    }
    const auto cached = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& other) {
      return other.prompt_row >= 0 && call_.prompts.equal(other.prompt_row, slot.row);
    });
    if (cached == slots_.end())
      process_prompt(slot);
    else if (&*cached != &slot)
      copy_prompt(*cached, slot);
    slot.prompt_row = slot.row;
  }

  void process_prompt(Slot& slot) {
    const int32_t* prompt = call_.prompts.begin(slot.row);
    const int64_t length = call_.prompts.length(slot.row);
    Token tokens[kMaxTokens];
    for (int64_t start = 0; start < length; start += kMaxTokens) {
      const int64_t count = std::min(kMaxTokens, length - start);
      for (int64_t i = 0; i < count; ++i)
        tokens[i] = {prompt[start + i], static_cast<int32_t>(start + i), slot.cache};
      const int64_t num_logits = start + count == length ? 1 : 0;
      kernels().forward_tokens(call_.shape, call_.weights, packed_weights_, tokens, count, num_logits,
                               slot.prompt_logits, scratch_);
    }
  }

  void copy_prompt(const Slot& from, Slot& to) const {
    const Shape& s = call_.shape;
    const int64_t length = call_.prompts.length(to.row);
    const int64_t num_keys = pad_to_panel(length) * s.head_dim(), num_values = length * s.padded_dim();
    for (int64_t head = 0; head < s.num_layers * s.num_heads; ++head) {
      const int64_t keys = head * s.cache_length * s.head_dim();
      const int64_t values = s.key_floats() + head * s.cache_length * s.padded_dim();
      std::copy(from.cache + keys, from.cache + keys + num_keys, to.cache + keys);
      std::copy(from.cache + values, from.cache + values + num_values, to.cache + values);
    }
    std::copy(from.prompt_logits, from.prompt_logits + pad_to_panel(s.vocab_size), to.prompt_logits);
  }

  int32_t next_of_choice(const Slot& slot, int64_t choice) const {
    return call_.choices[(slot.row * call_.num_choices + choice) * call_.max_new_tokens + slot.length];
  }

  // Samples the next token of a row; returns whether the row continues.
  bool choose_token(Slot& slot, Token& next) {
    const int64_t vocab_size = call_.shape.vocab_size, index = slot.row * call_.max_new_tokens + slot.length;
    if (call_.num_choices > 0) {
      allowed_.assign(static_cast<size_t>(vocab_size), 0);
      for (int64_t c = 0; c < call_.num_choices; ++c) {
        const int32_t token = next_of_choice(slot, c);
        if (slot.possible_choices[c] != 0 && token >= 0 && token < vocab_size) allowed_[token] = 1;
      }
    }
    const SampledToken sampled =
        sample_token(slot.logits, vocab_size, call_.sampling, call_.uniforms[index],
                     call_.num_choices > 0 ? allowed_.data() : nullptr, sampling_scratch_);
    for (int64_t c = 0; c < call_.num_choices; ++c)
      slot.possible_choices[c] = slot.possible_choices[c] != 0 && next_of_choice(slot, c) == sampled.token;
    const bool ended = sampled.token == call_.stop_token;
    call_.completions.tokens[index] = sampled.token;
    call_.completions.logps[index] = sampled.logp;
    next = {sampled.token, static_cast<int32_t>(call_.prompts.length(slot.row) + slot.length), slot.cache};
    if (++slot.length < call_.max_new_tokens && !ended) return true;
    call_.completions.lengths[slot.row] = static_cast<int32_t>(slot.length);
    call_.completions.ended[slot.row] = ended;
    slot.row = -1;
    return false;
  }

  const Call& call_;
  const float* packed_weights_;
  PromptQueue& queue_;
  int64_t num_slots_;
  FloatBuffer memory_;
  float *logits_ = nullptr, *scratch_ = nullptr;
  std::vector<Slot> slots_;
  std::pair<const int64_t*, const int64_t*> rows_{nullptr, nullptr};  // rest of the current group
  std::vector<uint8_t> allowed_;
  std::vector<float> sampling_scratch_;
};

void check_weights(ShapeCheck& check, const Shape& s, const F32& embedding, const F32& head, const F32& norm,
                   const F32& first_norm, const F32& second_norm, const F32& qkv, const F32& qkv_bias,
                   const F32& out, const F32& out_bias, const F32& gate, const F32& gate_bias,
                   const F32& down, const F32& down_bias, const F32& cosine, const F32& sine) {
  const int64_t max_size = std::numeric_limits<int32_t>::max();
  check.require(s.vocab_size >= 1 && s.vocab_size < max_size,
                "embedding must have the shape [vocab_size, d_model]");
  check.require(s.d_model >= 1 && s.d_model < 1 << 20 && s.num_layers >= 1 && s.num_layers < 1 << 20 &&
                    s.d_ff >= 1 && s.d_ff < 1 << 20,
                "d_model, num_layers and d_ff must be at least 1 and less than 2^20");
  check.require(s.num_heads >= 1 && s.d_model % (2 * s.num_heads) == 0,
                "d_model must be a multiple of 2 * num_heads");
  check.require(s.cache_length >= 1 && s.cache_length < max_size, "cosine must have a row for each position");
  check.expect("embedding", embedding, {s.vocab_size, s.d_model});
  check.expect("head", head, {s.vocab_size, s.d_model});
  check.expect("norm", norm, {s.d_model});
  check.expect("first_norm", first_norm, {s.num_layers, s.d_model});
  check.expect("second_norm", second_norm, {s.num_layers, s.d_model});
  check.expect("qkv", qkv, {s.num_layers, s.d_model, 3 * s.d_model});
  check.expect("qkv_bias", qkv_bias, {s.num_layers, 3 * s.d_model});
  check.expect("out", out, {s.num_layers, s.d_model, s.d_model});
  check.expect("out_bias", out_bias, {s.num_layers, s.d_model});
  check.expect("gate", gate, {s.num_layers, s.d_model, 2 * s.d_ff});
  check.expect("gate_bias", gate_bias, {s.num_layers, 2 * s.d_ff});
  check.expect("down", down, {s.num_layers, s.d_ff, s.d_model});
  check.expect("down_bias", down_bias, {s.num_layers, s.d_model});
  if (check.failed()) return;
  check.expect("cosine", cosine, {s.cache_length, s.head_dim() / 2});
  check.expect("sine", sine, {s.cache_length, s.head_dim() / 2});
}

bool are_valid(const Prompts& prompts, int64_t vocab_size) {
  for (int64_t row = 0; row < prompts.rows; ++row) {
    if (prompts.starts[row] < 0 || prompts.starts[row] >= prompts.width) return false;
    for (const int32_t* token = prompts.begin(row); token != prompts.end(row); ++token)
      if (*token < 0 || *token >= vocab_size) return false;
  }
  return true;
}

ffi::Error generate(ffi::ThreadPool pool, F32 embedding, F32 head, F32 norm, F32 first_norm, F32 second_norm,
                    F32 qkv, F32 qkv_bias, F32 out, F32 out_bias, F32 gate, F32 gate_bias, F32 down,
                    F32 down_bias, F32 cosine, F32 sine, S32 prompts, S32 starts, F32 uniforms,
                    F32 temperature, F32 top_p, S32 stop_token, S32 choices, ffi::Result<S32> tokens,
                    ffi::Result<F32> logps, ffi::Result<S32> lengths, ffi::Result<Flags> ended,
                    int64_t num_heads, int64_t top_k, float epsilon) {
  const Shape s = {axis_size(embedding, 0), axis_size(embedding, 1), axis_size(qkv, 0), num_heads,
                   axis_size(down, 1),      axis_size(cosine, 0)};
  ShapeCheck check("phalanx_lm_generate");
  check_weights(check, s, embedding, head, norm, first_norm, second_norm, qkv, qkv_bias, out, out_bias, gate,
                gate_bias, down, down_bias, cosine, sine);
  const int64_t rows = axis_size(prompts, 0), width = axis_size(prompts, 1);
  const int64_t max_new_tokens = axis_size(uniforms, 1), num_choices = axis_size(choices, 1);
  check.expect("prompts", prompts, {rows, width});
  check.expect("starts", starts, {rows});
  check.expect("uniforms", uniforms, {rows, max_new_tokens});
  check.expect("temperature", temperature, {});
  check.expect("top_p", top_p, {});
  check.expect("stop_token", stop_token, {});
  check.expect("choices", choices, {rows, num_choices, max_new_tokens});
  check.expect("tokens", *tokens, {rows, max_new_tokens});
  check.expect("logps", *logps, {rows, max_new_tokens});
  check.expect("lengths", *lengths, {rows});
  check.expect("ended", *ended, {rows});
  check.require(top_k >= 0, "top_k must not be negative");
  if (check.failed()) return check.error();
  check.require(width <= s.cache_length && max_new_tokens <= s.cache_length &&
                    width + max_new_tokens <= s.cache_length && s.cache_length % 16 == 0,
                "the rows of cosine must be a multiple of 16 and enough for the prompts and the new tokens");
  if (check.failed()) return check.error();
  const Call call = {s,
                     {embedding.typed_data(),
                      head.typed_data(),
                      norm.typed_data(),
                      {first_norm.typed_data(), second_norm.typed_data()},
                      qkv.typed_data(),
                      qkv_bias.typed_data(),
                      out.typed_data(),
                      out_bias.typed_data(),
                      gate.typed_data(),
                      gate_bias.typed_data(),
                      down.typed_data(),
                      down_bias.typed_data(),
                      cosine.typed_data(),
                      sine.typed_data(),
                      epsilon},
                     {prompts.typed_data(), starts.typed_data(), rows, width},
                     uniforms.typed_data(),
                     choices.typed_data(),
                     num_choices,
                     max_new_tokens,
                     {temperature.typed_data()[0], top_p.typed_data()[0], top_k},
                     stop_token.typed_data()[0],
                     {tokens->typed_data(), logps->typed_data(), lengths->typed_data(), ended->typed_data()}};
  if (!are_valid(call.prompts, s.vocab_size))
    return ffi::Error::InvalidArgument(
        "phalanx_lm_generate: each prompt must have at least one token, and all tokens must be below "
        "vocab_size");
  std::fill_n(call.completions.tokens, rows * max_new_tokens, 0);
  std::fill_n(call.completions.logps, rows * max_new_tokens, 0.0f);
  std::fill_n(call.completions.lengths, rows, 0);
  std::fill_n(call.completions.ended, rows, false);
  if (rows == 0 || max_new_tokens == 0) return ffi::Error::Success();

  const int64_t max_workers = PoolLauncher(pool).max_workers();
  const int64_t num_slots = std::min(kMaxSlots, (rows + max_workers - 1) / max_workers);
  const int64_t packed_size = kernels().packed_size(s);
  if (packed_size > kMaxFloats || s.cache_floats() > kMaxFloats / num_slots)
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      "phalanx_lm_generate: the model or its cache is too large");
  const FloatBuffer packed_weights = allocate_floats(packed_size);
  PromptQueue queue(call.prompts);
  std::vector<std::unique_ptr<Decoder>> decoders;
  bool has_memory = packed_weights != nullptr;
  for (int64_t row = 0; row < rows && has_memory; row += num_slots) {
    if (static_cast<int64_t>(decoders.size()) == max_workers) break;
    decoders.push_back(std::make_unique<Decoder>(call, packed_weights.get(), num_slots, queue));
    has_memory = decoders.back()->has_memory();
  }
  if (!has_memory)
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      "phalanx_lm_generate: not enough memory for the cache");
  kernels().pack(s, call.weights, packed_weights.get());
  parallel_for(PoolLauncher(pool), static_cast<int64_t>(decoders.size()), 1,
               [&](int64_t, int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) decoders[i]->run();
               });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_lm_generate, NoThrow<generate>::call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<F32>()    // embedding
                                  .Arg<F32>()    // head
                                  .Arg<F32>()    // norm
                                  .Arg<F32>()    // first norm
                                  .Arg<F32>()    // second norm
                                  .Arg<F32>()    // qkv
                                  .Arg<F32>()    // qkv bias
                                  .Arg<F32>()    // out
                                  .Arg<F32>()    // out bias
                                  .Arg<F32>()    // gate
                                  .Arg<F32>()    // gate bias
                                  .Arg<F32>()    // down
                                  .Arg<F32>()    // down bias
                                  .Arg<F32>()    // cosine
                                  .Arg<F32>()    // sine
                                  .Arg<S32>()    // prompts
                                  .Arg<S32>()    // starts
                                  .Arg<F32>()    // uniforms
                                  .Arg<F32>()    // temperature
                                  .Arg<F32>()    // top_p
                                  .Arg<S32>()    // stop token
                                  .Arg<S32>()    // choices
                                  .Ret<S32>()    // tokens
                                  .Ret<F32>()    // logps
                                  .Ret<S32>()    // lengths
                                  .Ret<Flags>()  // ended
                                  .Attr<int64_t>("num_heads")
                                  .Attr<int64_t>("top_k")
                                  .Attr<float>("epsilon"));

}  // namespace phalanx::lm::decode
