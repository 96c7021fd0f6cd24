// Sorting keys that are random in their high bits, as a shuffle makes them, with what they carry along.
// In time that grows with their number alone: by the first byte in place, then each part of it in the cache.

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "data/packing.h"

namespace phalanx::packing {

namespace {

constexpr int kFirstBits = 8;
constexpr int kFirst = 1 << kFirstBits;
constexpr int kMostBits = 13;
// Shorter ones are sorted by inserting; longer ones are rare, unless keys are not random.
constexpr int64_t kShort = 24;
// How many runs ahead of its copy a run is asked for, which may lie anywhere in memory.
constexpr int64_t kAhead = 8;

// A key, and the value that it carries along.
struct Entry {
  uint64_t key;
  int16_t value;
  bool operator<(const Entry& other) const { return key < other.key; }
};

template <typename Key>
void sort_few(Key* begin, Key* end) {
  if (end - begin > kShort) {
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

template <bool carries>
void sort_carrying(uint64_t* keys, int64_t count, uint64_t low, int32_t* order, int16_t* values) {
  using Key = std::conditional_t<carries, Entry, uint64_t>;
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
      [[maybe_unused]] int16_t value = 0;
      if constexpr (carries) value = values[heads[first]];
      for (int part; (part = static_cast<int>(key >> (64 - kFirstBits))) != first;) {
        if constexpr (carries) std::swap(value, values[heads[part]]);
        std::swap(key, keys[heads[part]++]);
      }
      if constexpr (carries) values[heads[first]] = value;
      keys[heads[first]++] = key;
    }
  }

  std::vector<Key> sorted(largest);
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
    [[maybe_unused]] int16_t* carried = carries ? values + starts[first] : nullptr;
    for (int64_t i = 0; i < size; ++i) {
      Key& place = sorted[ends[(from[i] >> shift) & mask]++];
      if constexpr (carries) {
        place = {from[i], carried[i]};
      } else {
        place = from[i];
      }
    }
    int64_t begin = 0;
    for (uint64_t next = 0; next <= mask; ++next) {
      sort_few(sorted.data() + begin, sorted.data() + ends[next]);
      begin = ends[next];
    }
    int32_t* to = order + starts[first];
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (carries) {
        to[i] = static_cast<int32_t>(sorted[i].key & low);
        carried[i] = sorted[i].value;
      } else {
        to[i] = static_cast<int32_t>(sorted[i] & low);
      }
    }
  }
}

}  // namespace

void sort_random_keys(uint64_t* keys, int64_t count, uint64_t low, int32_t* order, int16_t* values) {
  if (values == nullptr) {
    sort_carrying<false>(keys, count, low, order, values);
  } else {
    sort_carrying<true>(keys, count, low, order, values);
  }
}

void copy_runs(const int32_t* from, const int64_t* starts, const int64_t* ends, int64_t runs, int32_t* to) {
  for (int64_t run = 0; run < runs; ++run) {
    if (run + kAhead < runs) {
      // The hardware asks for the lines that follow by itself.
      __builtin_prefetch(from + starts[run + kAhead]);
      __builtin_prefetch(from + starts[run + kAhead] + 16);
    }
    const int64_t size = ends[run] - starts[run];
    std::memcpy(to, from + starts[run], size * sizeof(int32_t));
    to += size;
  }
}

}  // namespace phalanx::packing
