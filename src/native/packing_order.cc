// Sorting keys that are random in their high bits, as a shuffle makes them.
// In time that grows with their number alone: by the first byte in place, then each part of it in the cache.

#include <algorithm>
#include <array>
#include <vector>

#include "packing.h"

namespace phalanx::packing {

namespace {

constexpr int kFirstBits = 8;
constexpr int kFirst = 1 << kFirstBits;
constexpr int kMostBits = 13;
// Shorter ones are sorted by inserting; longer ones are rare, unless keys are not random.
constexpr int64_t kShort = 24;

void sort_few(uint64_t* begin, uint64_t* end) {
  if (end - begin > kShort) {
    std::sort(begin, end);
    return;
  }
  for (uint64_t* at = begin + 1; at < end; ++at) {
    const uint64_t key = *at;
    uint64_t* hole = at;
    for (; hole > begin && hole[-1] > key; --hole) *hole = hole[-1];
    *hole = key;
  }
}

}  // namespace

void sort_random_keys(uint64_t* keys, int64_t count, uint64_t low, int32_t* order) {
  std::array<int64_t, kFirst + 1> starts{};
  for (int64_t i = 0; i < count; ++i) ++starts[(keys[i] >> (64 - kFirstBits)) + 1];
  for (int first = 0; first < kFirst; ++first) starts[first + 1] += starts[first];

  // In place: a key that is not where it belongs takes the next free place of its part.
  std::array<int64_t, kFirst> heads;
  std::copy_n(starts.begin(), kFirst, heads.begin());
  int64_t largest = 0;
  for (int first = 0; first < kFirst; ++first) {
    largest = std::max(largest, starts[first + 1] - starts[first]);
    while (heads[first] < starts[first + 1]) {
      uint64_t key = keys[heads[first]];
      for (int part; (part = static_cast<int>(key >> (64 - kFirstBits))) != first;) {
        std::swap(key, keys[heads[part]++]);
      }
      keys[heads[first]++] = key;
    }
  }

  std::vector<uint64_t> sorted(largest);
  std::vector<int64_t> ends((1 << kMostBits) + 1);
  for (int first = 0; first < kFirst; ++first) {
    const uint64_t* from = keys + starts[first];
    const int64_t size = starts[first + 1] - starts[first];
    if (size == 0) continue;
    // About four keys for each value of the next bits.
    int bits = 1;
    while (bits < kMostBits && (int64_t{8} << bits) <= size) ++bits;
    const int shift = 64 - kFirstBits - bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::fill_n(ends.begin(), mask + 2, 0);
    for (int64_t i = 0; i < size; ++i) ++ends[((from[i] >> shift) & mask) + 1];
    for (uint64_t next = 0; next <= mask; ++next) ends[next + 1] += ends[next];
    for (int64_t i = 0; i < size; ++i) sorted[ends[(from[i] >> shift) & mask]++] = from[i];
    int64_t begin = 0;
    for (uint64_t next = 0; next <= mask; ++next) {
      sort_few(sorted.data() + begin, sorted.data() + ends[next]);
      begin = ends[next];
    }
    int32_t* to = order + starts[first];
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<int32_t>(sorted[i] & low);
  }
}

}  // namespace phalanx::packing
