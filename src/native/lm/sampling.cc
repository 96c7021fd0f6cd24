#include "lm/sampling.h"

#include <algorithm>
#include <functional>

#include "common/simd.h"

namespace phalanx::lm {
namespace {

constexpr float kMinLogit = -1e30f;

struct Softmax {
  float max_logit, sum;
};

// Writes exp(logit - max_logit) of all logits to `to`, which is padded to whole vectors.
Softmax exponentiate(const float* logits, int64_t count, float* to) {
  float max_logit = kMinLogit;
  for (int64_t j = 0; j < count; ++j) max_logit = logits[j] > max_logit ? logits[j] : max_logit;
  Vector sum = {};
  for (int64_t j = 0; j < count; j += kLanes) {
    const Vector powers = exp2_lanes((unaligned_at(logits + j) - max_logit) * kLog2E);
    unaligned_at(to + j) = select(first_lanes(count - j), powers, Vector{});
    sum += select(first_lanes(count - j), powers, Vector{});
  }
  return {max_logit, horizontal_sum(sum)};
}

// Returns the smallest logit that top-k and top-p keep.
float min_sampled_logit(const float* logits, int64_t count, const Sampling& sampling, float* candidates,
                        float* weights) {
  const bool use_top_k = sampling.top_k > 0 && sampling.top_k < count, use_top_p = sampling.top_p < 1.0f;
  if (!use_top_k && !use_top_p) return kMinLogit;
  // NaN has no order.
  for (int64_t j = 0; j < count; ++j) candidates[j] = logits[j] >= kMinLogit ? logits[j] : kMinLogit;
  float min_logit = kMinLogit;
  int64_t num_left = count;
  if (use_top_k) {
    std::nth_element(candidates, candidates + sampling.top_k - 1, candidates + count, std::greater<float>());
    min_logit = candidates[sampling.top_k - 1];
    // Tokens that are as likely as the last one are kept, too.
    num_left = std::partition(candidates + sampling.top_k, candidates + count,
                              [min_logit](float x) { return x >= min_logit; }) -
               candidates;
  }
  if (!use_top_p) return min_logit;
  const Softmax all = exponentiate(candidates, num_left, weights);
  std::make_heap(candidates, candidates + num_left);
  // From the most likely token on, which is always kept, up to and including the one that exceeds top_p.
  for (float cumulative = 0.0f; num_left > 0 && cumulative < sampling.top_p; --num_left) {
    min_logit = candidates[0];
    cumulative += expf(min_logit - all.max_logit) / all.sum;
    std::pop_heap(candidates, candidates + num_left);
  }
  return min_logit;
}

}  // namespace

SampledToken sample_token(const float* logits, int64_t vocab_size, const Sampling& sampling, float uniform,
                          const uint8_t* allowed, std::vector<float>& scratch) {
  const int64_t padded_size = round_up(vocab_size, kLanes);
  scratch.resize(static_cast<size_t>(4 * padded_size));
  float *scaled = scratch.data(), *weights = scaled + padded_size, *candidates = weights + padded_size;
  const float temperature = sampling.temperature > 0.0f ? sampling.temperature : 1.0f;
  for (int64_t j = 0; j < vocab_size; ++j)
    scaled[j] = allowed == nullptr || allowed[j] != 0 ? logits[j] / temperature : kMinLogit;
  const Softmax all = exponentiate(scaled, vocab_size, weights);
  int64_t token = 0;
  if (sampling.temperature > 0.0f) {
    const float min_logit =
        min_sampled_logit(scaled, vocab_size, sampling, candidates, candidates + padded_size);
    float cumulative = 0.0f;
    for (int64_t j = 0; j < vocab_size; ++j) {
      if (scaled[j] < min_logit) weights[j] = 0.0f;
      cumulative += weights[j];
    }
    // Select the token whose interval of cumulative weights contains the threshold. If rounding puts the
    // threshold beyond the last interval, select the last token with a positive weight.
    const float threshold = uniform * cumulative;
    cumulative = 0.0f;
    for (int64_t j = 0; j < vocab_size; ++j) {
      cumulative += weights[j];
      if (weights[j] > 0.0f) token = j;
      if (weights[j] > 0.0f && cumulative > threshold) break;
    }
  } else {
    for (int64_t j = 1; j < vocab_size; ++j) token = scaled[j] > scaled[token] ? j : token;
  }
  return {static_cast<int32_t>(token), scaled[token] - all.max_logit - logf(all.sum)};
}

}  // namespace phalanx::lm
