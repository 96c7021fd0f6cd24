// How the next token is chosen from its logits, as `phalanx.lm.generation` describes it.
#pragma once

#include <cstdint>
#include <vector>

namespace phalanx::writing {

struct Sampling {
  float temperature;  // 0 takes the likeliest token
  float top_p;        // 1 for all tokens
  int64_t top_k;      // 0 for all tokens
};

struct Draw {
  int32_t token;
  float log_prob;  // among the tokens that are allowed, or among all where none is forbidden
};

// Draws by a uniform number below 1. `allowed` has a byte for each token, or is null; `memory` is of the caller's, and
// of any size.
Draw draw(const float* logits, int64_t vocabulary, const Sampling& sampling, float uniform, const uint8_t* allowed,
          std::vector<float>& memory);

}  // namespace phalanx::writing
