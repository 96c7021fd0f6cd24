// A set of small integers that finds its smallest member from a given value on.
#pragma once

#include <cstdint>
#include <vector>

namespace phalanx::data {

// A tree of 64-bit words: a bit of one level says whether a word of the level below is not empty. Three
// levels hold 262,144 values, so a search reads at most five words.
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

  // Returns the smallest member that is at least `value`, or -1 if there is none.
  int32_t lower_bound(int32_t value) const {
    int64_t position = value;
    for (size_t level = 0; level < levels_.size(); ++level) {
      const int64_t word = position >> 6;
      if (word >= static_cast<int64_t>(levels_[level].size())) return -1;
      const uint64_t rest = levels_[level][word] & (~uint64_t{0} << (position & 63));
      if (rest != 0) {
        position = (word << 6) + __builtin_ctzll(rest);
        while (level-- > 0) position = (position << 6) + __builtin_ctzll(levels_[level][position]);
        return static_cast<int32_t>(position);
      }
      position = word + 1;
    }
    return -1;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace phalanx::data
