// Keys are distributed by their first byte in place; each part then fits into the cache and is sorted by
// counting. The time is linear in the number of keys.

#include "data/shuffle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace phalanx::data {

namespace {

constexpr int kRadixBits = 8;
constexpr int kRadix = 1 << kRadixBits;
constexpr int kMaxBucketBits = 13;
// Longer buckets are rare unless the keys are not random.
constexpr int64_t kMaxInsertionSort = 24;
// Runs can be anywhere in memory, so each is prefetched this many runs before it is copied.
constexpr int64_t kPrefetchDistance = 8;

struct Entry {
  uint64_t key;
  int16_t value;
  bool operator<(const Entry& other) const { return key < other.key; }
};

template <typename Key>
void sort_small(Key* begin, Key* end) {
  if (end - begin > kMaxInsertionSort) {
    std::sort(begin, end);
    return;
  }
  for (Key* at = begin + 1; at < end; ++at) {
    const Key key = *at;
    Key* hole = at;
    for (; hole > begin && key < hole[-1]; --hole) *hole = hole[-1];
    *hole = key;
  }
}

template <bool with_values>
void sort_keys(uint64_t* keys, int64_t count, uint64_t low_mask, int32_t* order, int16_t* values) {
  using Key = std::conditional_t<with_values, Entry, uint64_t>;
  std::array<int64_t, kRadix + 1> starts{};
  for (int64_t i = 0; i < count; ++i) ++starts[(keys[i] >> (64 - kRadixBits)) + 1];
  for (int first = 0; first < kRadix; ++first) starts[first + 1] += starts[first];

  // In place: a key that is in the wrong part is swapped with the next unsorted key of its own part.
  std::array<int64_t, kRadix> heads;
  std::copy_n(starts.begin(), kRadix, heads.begin());
  int64_t largest = 0;
  for (int first = 0; first < kRadix; ++first) {
    largest = std::max(largest, starts[first + 1] - starts[first]);
    while (heads[first] < starts[first + 1]) {
      uint64_t key = keys[heads[first]];
      [[maybe_unused]] int16_t value = 0;
      if constexpr (with_values) value = values[heads[first]];
      for (int part; (part = static_cast<int>(key >> (64 - kRadixBits))) != first;) {
        if constexpr (with_values) std::swap(value, values[heads[part]]);
        std::swap(key, keys[heads[part]++]);
      }
      if constexpr (with_values) values[heads[first]] = value;
      keys[heads[first]++] = key;
    }
  }

  std::vector<Key> sorted(largest);
  std::vector<int64_t> ends((1 << kMaxBucketBits) + 1);
  for (int first = 0; first < kRadix; ++first) {
    const uint64_t* source = keys + starts[first];
    const int64_t size = starts[first + 1] - starts[first];
    if (size == 0) continue;
    // About four keys per bucket.
    int bits = 1;
    while (bits < kMaxBucketBits && (int64_t{8} << bits) <= size) ++bits;
    const int shift = 64 - kRadixBits - bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::fill_n(ends.begin(), mask + 2, 0);
    for (int64_t i = 0; i < size; ++i) ++ends[((source[i] >> shift) & mask) + 1];
    for (uint64_t next = 0; next <= mask; ++next) ends[next + 1] += ends[next];
    [[maybe_unused]] int16_t* bucket_values = with_values ? values + starts[first] : nullptr;
    for (int64_t i = 0; i < size; ++i) {
      Key& slot = sorted[ends[(source[i] >> shift) & mask]++];
      if constexpr (with_values) {
        slot = {source[i], bucket_values[i]};
      } else {
        slot = source[i];
      }
    }
    int64_t begin = 0;
    for (uint64_t next = 0; next <= mask; ++next) {
      sort_small(sorted.data() + begin, sorted.data() + ends[next]);
      begin = ends[next];
    }
    int32_t* destination = order + starts[first];
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (with_values) {
        destination[i] = static_cast<int32_t>(sorted[i].key & low_mask);
        bucket_values[i] = sorted[i].value;
      } else {
        destination[i] = static_cast<int32_t>(sorted[i] & low_mask);
      }
    }
  }
}

}  // namespace

void sort_random_keys(uint64_t* keys, int64_t count, uint64_t low_mask, int32_t* order, int16_t* values) {
  if (values == nullptr) {
    sort_keys<false>(keys, count, low_mask, order, values);
  } else {
    sort_keys<true>(keys, count, low_mask, order, values);
  }
}

void gather_runs(const int32_t* source, const int64_t* starts, const int64_t* ends, int64_t num_runs,
                 int32_t* destination) {
  for (int64_t run = 0; run < num_runs; ++run) {
    if (run + kPrefetchDistance < num_runs) {
      // The hardware prefetches the lines after these on its own.
      __builtin_prefetch(source + starts[run + kPrefetchDistance]);
      __builtin_prefetch(source + starts[run + kPrefetchDistance] + 16);
    }
    const int64_t size = ends[run] - starts[run];
    std::memcpy(destination, source + starts[run], size * sizeof(int32_t));
    destination += size;
  }
}

}  // namespace phalanx::data
