// Samples the next token from logits, with temperature, top-k and top-p.
#pragma once

#include <cstdint>
#include <vector>

namespace phalanx::lm {

struct Sampling {
  float temperature;  // 0 selects the most likely token
  float top_p;        // 1 for all tokens
  int64_t top_k;      // 0 for all tokens
};

struct SampledToken {
  int32_t token;
  float logp;  // log-probability at this temperature, before top-k and top-p, among the allowed tokens
};

// Samples a token, given a uniform random number below 1. `allowed` has a byte per token, or is null if all
// tokens are allowed. `scratch` is resized as needed.
SampledToken sample_token(const float* logits, int64_t vocab_size, const Sampling& sampling, float uniform,
                          const uint8_t* allowed, std::vector<float>& scratch);

}  // namespace phalanx::lm
