// SplitMix64 random numbers, which are the same on every machine.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace phalanx {

constexpr uint64_t kSplitMix64Increment = 0x9E3779B97F4A7C15ull;

// Returns the number that SplitMix64 draws in the given state; also used as a hash.
inline uint64_t splitmix64(uint64_t state) {
  uint64_t z = state + kSplitMix64Increment;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    const uint64_t number = splitmix64(state_);
    state_ += kSplitMix64Increment;
    return number;
  }

  // Draws an integer from [0, bound).
  int below(int bound) { return static_cast<int>(((next() >> 32) * static_cast<uint64_t>(bound)) >> 32); }

  // Shuffles the first `count` items.
  template <class Items>
  void shuffle(Items& items, int count) {
    for (int i = count - 1; i > 0; --i) std::swap(items[i], items[below(i + 1)]);
  }

  // Returns the numbers from 0 to `count` - 1 in random order.
  std::vector<int> permutation(int count) {
    std::vector<int> items(count);
    std::iota(items.begin(), items.end(), 0);
    shuffle(items, count);
    return items;
  }

 private:
  uint64_t state_;
};

}  // namespace phalanx
