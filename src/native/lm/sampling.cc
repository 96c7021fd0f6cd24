#include "lm/sampling.h"

#include <algorithm>
#include <functional>

#include "common/simd.h"

namespace phalanx::writing {
namespace {

constexpr float kNever = -1e30f;

// e to the x less the greatest, of numbers in whole vectors, and their sum.
struct Shares {
  float most, total;
};

Shares exponentials(const float* logits, int64_t count, float* to) {
  float most = kNever;
  for (int64_t j = 0; j < count; ++j) most = logits[j] > most ? logits[j] : most;
  Vector total = {};
  for (int64_t j = 0; j < count; j += kLanes) {
    const Vector powers = power_of_two((*reinterpret_cast<const Loose*>(logits + j) - most) * kLog2E);
    *reinterpret_cast<Loose*>(to + j) = choose(seen_of(count - j), powers, Vector{});
    total += choose(seen_of(count - j), powers, Vector{});
  }
  return {most, sum_of(total)};
}

// The least logit that is drawn from.
float least_of(const float* logits, int64_t count, const Sampling& sampling, float* heap, float* shares) {
  const bool few = sampling.top_k > 0 && sampling.top_k < count, nucleus = sampling.top_p < 1.0f;
  if (!few && !nucleus) return kNever;
  // What is no number has no place in an order.
  for (int64_t j = 0; j < count; ++j) heap[j] = logits[j] >= kNever ? logits[j] : kNever;
  float least = kNever;
  int64_t left = count;
  if (few) {
    std::nth_element(heap, heap + sampling.top_k - 1, heap + count, std::greater<float>());
    least = heap[sampling.top_k - 1];
    // Tokens as likely as the last stay with it.
    left = std::partition(heap + sampling.top_k, heap + count, [least](float x) { return x >= least; }) - heap;
  }
  if (!nucleus) return least;
  const Shares all = exponentials(heap, left, shares);
  std::make_heap(heap, heap + left);
  // From the likeliest on, which always stays; the one that passes the share is the last.
  for (float before = 0.0f; left > 0 && before < sampling.top_p; --left) {
    least = heap[0];
    before += expf(least - all.most) / all.total;
    std::pop_heap(heap, heap + left);
  }
  return least;
}

}  // namespace

Draw draw(const float* logits, int64_t vocabulary, const Sampling& sampling, float uniform, const uint8_t* allowed,
          std::vector<float>& memory) {
  const int64_t room = round_up(vocabulary, kLanes);
  memory.resize(static_cast<size_t>(4 * room));
  float *scaled = memory.data(), *shares = scaled + room, *heap = shares + room;
  const float scale = sampling.temperature > 0.0f ? sampling.temperature : 1.0f;
  for (int64_t j = 0; j < vocabulary; ++j)
    scaled[j] = allowed == nullptr || allowed[j] != 0 ? logits[j] / scale : kNever;
  const Shares all = exponentials(scaled, vocabulary, shares);
  int64_t token = 0;
  if (sampling.temperature > 0.0f) {
    const float least = least_of(scaled, vocabulary, sampling, heap, heap + room);
    float cumulated = 0.0f;
    for (int64_t j = 0; j < vocabulary; ++j) {
      if (scaled[j] < least) shares[j] = 0.0f;
      cumulated += shares[j];
    }
    // The cumulated share that the number falls into; the last that has any, should rounding put it behind all.
    const float wanted = uniform * cumulated;
    cumulated = 0.0f;
    for (int64_t j = 0; j < vocabulary; ++j) {
      cumulated += shares[j];
      if (shares[j] > 0.0f) token = j;
      if (shares[j] > 0.0f && cumulated > wanted) break;
    }
  } else {
    for (int64_t j = 1; j < vocabulary; ++j) token = scaled[j] > scaled[token] ? j : token;
  }
  return {static_cast<int32_t>(token), scaled[token] - all.most - logf(all.total)};
}

}  // namespace phalanx::writing
