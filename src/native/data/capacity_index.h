// A set of small integers that finds its smallest member from a given value on.
#pragma once

#include <cstdint>
#include <vector>

namespace phalanx::packing {

// A tree of 64-bit words: a bit in one level says that the word below it is not empty. Three levels hold
// a quarter of a million values, so a search touches at most five words going up and down.
class CapacityIndex {
 public:
  explicit CapacityIndex(int32_t size) {
    for (int64_t words = size; words > 1 || levels_.empty();) {
      words = (words + 63) / 64;
      levels_.emplace_back(words, 0);
    }
  }

  void insert(int32_t value) {
    for (auto& level : levels_) {
      uint64_t& word = level[value >> 6];
      const bool was_empty = word == 0;
      word |= uint64_t{1} << (value & 63);
      if (!was_empty) return;
      value >>= 6;
    }
  }

  void erase(int32_t value) {
    for (auto& level : levels_) {
      uint64_t& word = level[value >> 6];
      word &= ~(uint64_t{1} << (value & 63));
      if (word != 0) return;
      value >>= 6;
    }
  }

  // The smallest member that is at least `value`; -1 if there is none.
  int32_t at_least(int32_t value) const {
    int64_t at = value;
    for (size_t level = 0; level < levels_.size(); ++level) {
      const int64_t word = at >> 6;
      if (word >= static_cast<int64_t>(levels_[level].size())) return -1;
      const uint64_t rest = levels_[level][word] & (~uint64_t{0} << (at & 63));
      if (rest != 0) {
        at = (word << 6) + __builtin_ctzll(rest);
        while (level-- > 0) at = (at << 6) + __builtin_ctzll(levels_[level][at]);
        return static_cast<int32_t>(at);
      }
      at = word + 1;
    }
    return -1;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace phalanx::packing
