// A language model that writes after prompts, as one XLA custom call: sizes and numbers are checked here. Each thread
// has places for some rows, which go forward together, a token a step; a row that ends leaves its place to the next, so
// that products stay large. Prompts are read row by row, and one that stands in a place already is not read again.

#include "lm/decode_ffi.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "common/ffi_shapes.h"
#include "common/parallel.h"
#include "common/cpu_features.h"
#include "lm/sampling.h"
#include "lm/decode.h"

namespace phalanx::writing {
namespace {

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using Pred = ffi::Buffer<ffi::PRED>;

constexpr int64_t kRowsOfAThread = 32;  // more of them need more of the cache than larger products give back
constexpr int64_t kSameTogether = 8;    // rows of one prompt that one thread takes
constexpr int64_t kHugePage = int64_t{1} << 21;
constexpr int64_t kMostFloats = int64_t{1} << 38;

const Kernels& kernels() { return PHALANX_BEST_KERNELS; }

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<float, Free>;

// Null where there is not so much. Caches are read from end to end at every step, so large pages spare a tenth.
Memory allocate(int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float)), page = bytes < kHugePage ? 64 : kHugePage;
  const int64_t whole = (bytes + page) / page * page;
  void* memory = std::aligned_alloc(static_cast<size_t>(page), static_cast<size_t>(whole));
#ifdef MADV_HUGEPAGE
  if (memory != nullptr && page == kHugePage) madvise(memory, static_cast<size_t>(whole), MADV_HUGEPAGE);
#endif
  return Memory(static_cast<float*>(memory));
}

struct Prompts {
  const int32_t *tokens, *starts;  // [rows][width] and [rows]: prompts stand at the ends of their rows
  int64_t rows, width;

  const int32_t* begin(int64_t row) const { return tokens + row * width + starts[row]; }
  int64_t length(int64_t row) const { return width - starts[row]; }
  bool same(int64_t a, int64_t b) const {
    return length(a) == length(b) && std::equal(begin(a), begin(a) + length(a), begin(b));
  }
};

struct Written {
  int32_t* tokens;  // [rows][room]
  float* log_probs;
  int32_t* lengths;
  bool* ended;
};

struct Call {
  Sizes sizes;
  Arrays arrays;
  Prompts prompts;
  const float* uniforms;   // [rows][room]
  const int32_t* choices;  // [rows][texts][room], with -1 behind the texts; none where there are no texts
  int64_t texts, room;
  Sampling sampling;
  int32_t stop_token;
  Written written;
};

// Rows in the order of their prompts, in runs of equal ones.
class Queue {
 public:
  explicit Queue(const Prompts& prompts) : order_(static_cast<size_t>(prompts.rows)) {
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
      return std::lexicographical_compare(prompts.begin(a), prompts.begin(a) + prompts.length(a), prompts.begin(b),
                                          prompts.begin(b) + prompts.length(b));
    });
    for (int64_t at = 0; at < prompts.rows; ++at) {
      if (at == 0 || at - begins_.back() == kSameTogether || !prompts.same(order_[at], order_[at - 1]))
        begins_.push_back(at);
    }
    runs_ = static_cast<int64_t>(begins_.size());
    begins_.push_back(prompts.rows);
  }

  // The next run: nothing behind the last.
  std::pair<const int64_t*, const int64_t*> take() {
    const int64_t run = next_.fetch_add(1, std::memory_order_relaxed);
    if (run >= runs_) return {nullptr, nullptr};
    return {order_.data() + begins_[run], order_.data() + begins_[run + 1]};
  }

 private:
  std::vector<int64_t> order_, begins_;
  int64_t runs_ = 0;
  std::atomic<int64_t> next_{0};
};

// Where a row stands while it is written.
struct Place {
  float* cache;
  float* prompt_logits;           // behind the prompt
  const float* logits = nullptr;  // behind what was written
  int64_t row = -1;               // none
  int64_t prompt = -1;            // the row whose prompt the cache begins with
  int64_t written = 0;
  std::vector<uint8_t> alive{};  // choices that begin with what was written
};

class Writer {
 public:
  Writer(const Call& call, const float* packed, int64_t places, Queue& queue)
      : call_(call), packed_(packed), queue_(queue), count_(places), memory_(allocate(floats())) {}

  bool ready() const { return memory_ != nullptr; }

  void write() {
    const int64_t row = whole_panels(call_.sizes.vocabulary), aligned = (call_.sizes.cache_floats() + 15) / 16 * 16;
    float* at = memory_.get();
    for (int64_t p = 0; p < count_; ++p, at += aligned + row) places_.push_back(Place{at, at + aligned});
    logits_ = at, scratch_ = at + kTogether * row;
    for (;;) {
      for (Place& place : places_)
        if (place.row < 0) begin(place);
      Token tokens[kTogether];
      Place* moving[kTogether];
      int64_t count = 0;
      for (Place& place : places_) {
        if (place.row < 0 || !choose(place, tokens[count])) continue;
        moving[count++] = &place;
      }
      if (count == 0) {
        if (rows_.first == rows_.second && (rows_ = queue_.take()).first == nullptr) return;
        continue;
      }
      kernels().advance(call_.sizes, call_.arrays, packed_, tokens, count, count, logits_, scratch_);
      for (int64_t i = 0; i < count; ++i) moving[i]->logits = logits_ + i * row;
    }
  }

 private:
  int64_t floats() const {
    const int64_t row = whole_panels(call_.sizes.vocabulary), aligned = (call_.sizes.cache_floats() + 15) / 16 * 16;
    return count_ * (aligned + row) + kTogether * row + kernels().scratch_floats(call_.sizes);
  }

  // The next row, its prompt read.
  void begin(Place& place) {
    if (rows_.first == rows_.second) rows_ = queue_.take();
    if (rows_.first == rows_.second) return;
    place.row = *rows_.first++;
    place.written = 0;
    place.logits = place.prompt_logits;
    if (call_.texts > 0) {
      place.alive.resize(static_cast<size_t>(call_.texts));
      for (int64_t t = 0; t < call_.texts; ++t) place.alive[t] = *following(place, t) >= 0;
    }
    const auto twin = std::find_if(places_.begin(), places_.end(), [&](const Place& other) {
      return other.prompt >= 0 && call_.prompts.same(other.prompt, place.row);
    });
    if (twin != places_.end() && &*twin != &place) copy(*twin, place);
    if (twin == places_.end()) read(place);
    place.prompt = place.row;
  }

  void read(Place& place) {
    const int32_t* prompt = call_.prompts.begin(place.row);
    const int64_t length = call_.prompts.length(place.row);
    Token tokens[kTogether];
    for (int64_t from = 0; from < length; from += kTogether) {
      const int64_t count = std::min(kTogether, length - from);
      for (int64_t i = 0; i < count; ++i) tokens[i] = {prompt[from + i], static_cast<int32_t>(from + i), place.cache};
      const int64_t wanted = from + count == length ? 1 : 0;
      kernels().advance(call_.sizes, call_.arrays, packed_, tokens, count, wanted, place.prompt_logits, scratch_);
    }
  }

  void copy(const Place& from, Place& to) const {
    const Sizes& s = call_.sizes;
    const int64_t length = call_.prompts.length(to.row);
    const int64_t keys = whole_panels(length) * s.size(), values = length * s.padded();
    for (int64_t head = 0; head < s.depth * s.heads; ++head) {
      const int64_t k = head * s.places * s.size(), v = s.keys() + head * s.places * s.padded();
      std::copy(from.cache + k, from.cache + k + keys, to.cache + k);
      std::copy(from.cache + v, from.cache + v + values, to.cache + v);
    }
    std::copy(from.prompt_logits, from.prompt_logits + whole_panels(s.vocabulary), to.prompt_logits);
  }

  const int32_t* following(const Place& place, int64_t text) const {
    return call_.choices + (place.row * call_.texts + text) * call_.room + place.written;
  }

  // Writes a row's next token; whether the row goes on with it.
  bool choose(Place& place, Token& next) {
    const int64_t vocabulary = call_.sizes.vocabulary, at = place.row * call_.room + place.written;
    if (call_.texts > 0) {
      allowed_.assign(static_cast<size_t>(vocabulary), 0);
      for (int64_t t = 0; t < call_.texts; ++t) {
        const int32_t token = *following(place, t);
        if (place.alive[t] != 0 && token >= 0 && token < vocabulary) allowed_[token] = 1;
      }
    }
    const Draw drawn = draw(place.logits, vocabulary, call_.sampling, call_.uniforms[at],
                            call_.texts > 0 ? allowed_.data() : nullptr, draws_);
    for (int64_t t = 0; t < call_.texts; ++t) place.alive[t] = place.alive[t] != 0 && *following(place, t) == drawn.token;
    const bool ended = drawn.token == call_.stop_token;
    call_.written.tokens[at] = drawn.token;
    call_.written.log_probs[at] = drawn.log_prob;
    next = {drawn.token, static_cast<int32_t>(call_.prompts.length(place.row) + place.written), place.cache};
    if (++place.written < call_.room && !ended) return true;
    call_.written.lengths[place.row] = static_cast<int32_t>(place.written);
    call_.written.ended[place.row] = ended;
    place.row = -1;
    return false;
  }

  const Call& call_;
  const float* packed_;
  Queue& queue_;
  int64_t count_;
  Memory memory_;
  float *logits_ = nullptr, *scratch_ = nullptr;
  std::vector<Place> places_;
  std::pair<const int64_t*, const int64_t*> rows_{nullptr, nullptr};  // of the run that is being begun
  std::vector<uint8_t> allowed_;
  std::vector<float> draws_;
};

void expect_arrays(phalanx::Sizes& check, const Sizes& s, const F32& embedding, const F32& head, const F32& norm,
                   const F32& first_norm, const F32& second_norm, const F32& qkv, const F32& qkv_bias, const F32& out,
                   const F32& out_bias, const F32& gate, const F32& gate_bias, const F32& down, const F32& down_bias,
                   const F32& cosine, const F32& sine) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  check.require(s.vocabulary >= 1 && s.vocabulary < most, "embedding must be [vocabulary, width]");
  check.require(s.width >= 1 && s.width < 1 << 20 && s.depth >= 1 && s.depth < 1 << 20 && s.hidden >= 1 &&
                    s.hidden < 1 << 20,
                "width, depth and hidden must be at least 1");
  check.require(s.heads >= 1 && s.width % (2 * s.heads) == 0, "width must be a multiple of twice the heads");
  check.require(s.places >= 1 && s.places < most, "cosine must have a row for each place");
  check.expect("embedding", embedding, {s.vocabulary, s.width});
  check.expect("head", head, {s.vocabulary, s.width});
  check.expect("norm", norm, {s.width});
  check.expect("first_norm", first_norm, {s.depth, s.width});
  check.expect("second_norm", second_norm, {s.depth, s.width});
  check.expect("qkv", qkv, {s.depth, s.width, 3 * s.width});
  check.expect("qkv_bias", qkv_bias, {s.depth, 3 * s.width});
  check.expect("out", out, {s.depth, s.width, s.width});
  check.expect("out_bias", out_bias, {s.depth, s.width});
  check.expect("gate", gate, {s.depth, s.width, 2 * s.hidden});
  check.expect("gate_bias", gate_bias, {s.depth, 2 * s.hidden});
  check.expect("down", down, {s.depth, s.hidden, s.width});
  check.expect("down_bias", down_bias, {s.depth, s.width});
  if (check.wrong()) return;
  check.expect("cosine", cosine, {s.places, s.size() / 2});
  check.expect("sine", sine, {s.places, s.size() / 2});
}

bool prompts_are_whole(const Prompts& prompts, int64_t vocabulary) {
  for (int64_t row = 0; row < prompts.rows; ++row) {
    if (prompts.starts[row] < 0 || prompts.starts[row] >= prompts.width) return false;
    for (const int32_t* token = prompts.begin(row); token != prompts.begin(row) + prompts.length(row); ++token)
      if (*token < 0 || *token >= vocabulary) return false;
  }
  return true;
}

ffi::Error write(ffi::ThreadPool pool, F32 embedding, F32 head, F32 norm, F32 first_norm, F32 second_norm, F32 qkv,
                 F32 qkv_bias, F32 out, F32 out_bias, F32 gate, F32 gate_bias, F32 down, F32 down_bias, F32 cosine,
                 F32 sine, S32 prompts, S32 starts, F32 uniforms, F32 temperature, F32 top_p, S32 stop_token,
                 S32 choices, ffi::Result<S32> tokens, ffi::Result<F32> log_probs, ffi::Result<S32> lengths,
                 ffi::Result<Pred> ended, int64_t heads, int64_t top_k, float epsilon) {
  const Sizes s = {axis(embedding, 0), axis(embedding, 1), axis(qkv, 0), heads, axis(down, 1), axis(cosine, 0)};
  phalanx::Sizes check("phalanx_lm_write");
  expect_arrays(check, s, embedding, head, norm, first_norm, second_norm, qkv, qkv_bias, out, out_bias, gate, gate_bias,
                down, down_bias, cosine, sine);
  const int64_t rows = axis(prompts, 0), width = axis(prompts, 1), room = axis(uniforms, 1), texts = axis(choices, 1);
  check.expect("prompts", prompts, {rows, width});
  check.expect("starts", starts, {rows});
  check.expect("uniforms", uniforms, {rows, room});
  check.expect("temperature", temperature, {});
  check.expect("top_p", top_p, {});
  check.expect("stop_token", stop_token, {});
  check.expect("choices", choices, {rows, texts, room});
  check.expect("tokens", *tokens, {rows, room});
  check.expect("log_probs", *log_probs, {rows, room});
  check.expect("lengths", *lengths, {rows});
  check.expect("ended", *ended, {rows});
  check.require(top_k >= 0, "top_k must not be negative");
  if (check.wrong()) return check.error();
  check.require(width <= s.places && room <= s.places && width + room <= s.places && s.places % 16 == 0,
                "places must be a multiple of 16 and hold the prompts and what is written");
  if (check.wrong()) return check.error();
  const Call call = {
      s,
      {embedding.typed_data(), head.typed_data(), norm.typed_data(), {first_norm.typed_data(), second_norm.typed_data()},
       qkv.typed_data(), qkv_bias.typed_data(), out.typed_data(), out_bias.typed_data(), gate.typed_data(),
       gate_bias.typed_data(), down.typed_data(), down_bias.typed_data(), cosine.typed_data(), sine.typed_data(),
       epsilon},
      {prompts.typed_data(), starts.typed_data(), rows, width},
      uniforms.typed_data(),
      choices.typed_data(),
      texts,
      room,
      {temperature.typed_data()[0], top_p.typed_data()[0], top_k},
      stop_token.typed_data()[0],
      {tokens->typed_data(), log_probs->typed_data(), lengths->typed_data(), ended->typed_data()}};
  if (!prompts_are_whole(call.prompts, s.vocabulary))
    return ffi::Error::InvalidArgument("phalanx_lm_write: each prompt must have a token, and only tokens of the model");
  std::fill_n(call.written.tokens, rows * room, 0);
  std::fill_n(call.written.log_probs, rows * room, 0.0f);
  std::fill_n(call.written.lengths, rows, 0);
  std::fill_n(call.written.ended, rows, false);
  if (rows == 0 || room == 0) return ffi::Error::Success();

  const int64_t threads =
      std::max<int64_t>(1, pool.num_threads() / sharing_devices().load(std::memory_order_relaxed));
  const int64_t places = std::min(kRowsOfAThread, (rows + threads - 1) / threads);
  const int64_t packed_floats = kernels().packed_floats(s);
  if (packed_floats > kMostFloats || s.cache_floats() > kMostFloats / places)
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "phalanx_lm_write: the model or its cache is too large");
  const Memory packed = allocate(packed_floats);
  Queue queue(call.prompts);
  std::vector<std::unique_ptr<Writer>> writers;
  bool ready = packed != nullptr;
  for (int64_t at = 0; at < rows && ready; at += places) {
    if (static_cast<int64_t>(writers.size()) == threads) break;
    writers.push_back(std::make_unique<Writer>(call, packed.get(), places, queue));
    ready = writers.back()->ready();
  }
  if (!ready) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "phalanx_lm_write: no memory for the cache");
  kernels().pack(s, call.arrays, packed.get());
  parallel_for(pool, static_cast<int64_t>(writers.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t which = begin; which < end; ++which) writers[which]->write();
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_lm_write, write,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>()   // to the norms
                                  .Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>()              // attention
                                  .Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>()              // the gated layer
                                  .Arg<F32>().Arg<F32>()                                    // positions
                                  .Arg<S32>().Arg<S32>().Arg<F32>().Arg<F32>().Arg<F32>()   // prompts, sampling
                                  .Arg<S32>().Arg<S32>()                                    // where texts end
                                  .Ret<S32>().Ret<F32>().Ret<S32>().Ret<Pred>()
                                  .Attr<int64_t>("heads").Attr<int64_t>("top_k").Attr<float>("epsilon"));

}  // namespace phalanx::writing
