// Bin packing over lengths: in order, and over the histogram of lengths.

#include "data/packing.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "data/capacity_index.h"

namespace phalanx::packing {

namespace {

// Open bins by the room they have left; under one room, the bin that was opened first comes first.
// `Entry` is a bin, or a range of neighbouring bins that are equally full.
template <typename Entry>
class OpenBins {
 public:
  explicit OpenBins(int32_t capacity) : rooms_(capacity + 1), slot_(capacity + 1, -1) {}

  void put(int32_t room, Entry entry) {
    if (slot_[room] < 0) {
      slot_[room] = static_cast<int32_t>(heaps_.size());
      heaps_.emplace_back();
    }
    auto& heap = heaps_[slot_[room]];
    if (heap.empty()) rooms_.insert(room);
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), std::greater<Entry>());
  }

  // The smallest room of at least `length` that an open bin has; -1 if none has.
  int32_t tightest(int32_t length) const { return rooms_.at_least(length); }

  Entry take(int32_t room) {
    auto& heap = heaps_[slot_[room]];
    std::pop_heap(heap.begin(), heap.end(), std::greater<Entry>());
    const Entry entry = heap.back();
    heap.pop_back();
    if (heap.empty()) rooms_.erase(room);
    return entry;
  }

 private:
  CapacityIndex rooms_;
  std::vector<int32_t> slot_;
  std::vector<std::vector<Entry>> heaps_;
};

struct Range {
  int32_t first;
  int32_t count;
  bool operator>(const Range& other) const { return first > other.first; }
};

}  // namespace

int32_t next_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins) {
  int32_t bin = 0;
  int32_t room = capacity;
  for (int64_t i = 0; i < count; ++i) {
    if (lengths[i] > room) {
      ++bin;
      room = capacity;
    }
    room -= lengths[i];
    bins[i] = bin;
  }
  return count > 0 ? bin + 1 : 0;
}

int32_t first_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins) {
  // A tree of maxima over the rooms of the bins, unopened ones included; it doubles when it is full.
  int64_t leaves = 1024;
  std::vector<int32_t> room(2 * leaves, capacity);
  int32_t opened = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t length = lengths[i];
    if (room[1] < length) {
      std::vector<int32_t> larger(4 * leaves, capacity);
      for (int64_t level = leaves; level > 0; level /= 2) {
        std::copy_n(room.begin() + level, level, larger.begin() + 2 * level);
      }
      room.swap(larger);
      leaves *= 2;
    }
    int64_t node = 1;
    while (node < leaves) {
      node *= 2;
      node += room[node] < length;
    }
    bins[i] = static_cast<int32_t>(node - leaves);
    opened = std::max(opened, bins[i] + 1);
    room[node] -= length;
    while (node > 1) {
      node /= 2;
      const int32_t most = std::max(room[2 * node], room[2 * node + 1]);
      if (room[node] == most) break;
      room[node] = most;
    }
  }
  return opened;
}

int32_t best_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins) {
  OpenBins<int32_t> open(capacity);
  int32_t opened = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t room = open.tightest(lengths[i]);
    const int32_t bin = room < 0 ? opened++ : open.take(room);
    const int32_t left = (room < 0 ? capacity : room) - lengths[i];
    if (left > 0) open.put(left, bin);
    bins[i] = bin;
  }
  return opened;
}

// Equal lengths follow one another here, and once the tightest bin has taken one sample it is the tightest
// for the next, until it is full. So bins that are equally full are filled alike, a range at a time, and
// the work depends on the number of distinct lengths, not of samples.
Packing best_fit_decreasing(const std::vector<int64_t>& counts, int32_t capacity) {
  Packing packing;
  OpenBins<Range> open(capacity);
  int32_t shortest = 1;
  while (shortest <= capacity && counts[shortest] == 0) ++shortest;
  const auto put = [&](int32_t room, int32_t first, int64_t bins) {
    if (bins > 0 && room >= shortest) open.put(room, {first, static_cast<int32_t>(bins)});
  };
  for (int32_t length = capacity; length >= shortest; --length) {
    for (int64_t left = counts[length]; left > 0;) {
      const int32_t tightest = open.tightest(length);
      const int32_t room = tightest < 0 ? capacity : tightest;
      const int32_t each = room / length;
      Range range{packing.bins, static_cast<int32_t>((left + each - 1) / each)};
      if (tightest < 0) {
        packing.bins += range.count;
      } else {
        range = open.take(room);
      }
      const int64_t filled = std::min<int64_t>(range.count, left / each);
      const int32_t rest = filled < range.count ? static_cast<int32_t>(left - filled * each) : 0;
      const int32_t partly = rest > 0 ? 1 : 0;
      const int32_t end = range.first + static_cast<int32_t>(filled);
      packing.runs.push_back({length, range.first, each, filled * each + rest});
      put(room - each * length, range.first, filled);
      put(room - rest * length, end, partly);
      put(room, end + partly, range.count - filled - partly);
      left -= filled * each + rest;
    }
  }
  return packing;
}

void deal(const int32_t* lengths, int64_t count, const std::vector<int64_t>& counts,
          const std::vector<Run>& runs, int32_t* bins) {
  std::vector<int64_t> next(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, next.begin() + 1);
  std::vector<int64_t> written = next;
  std::vector<int32_t> by_length(count);
  for (const Run& run : runs) {
    int64_t& at = written[run.length];
    int32_t bin = run.first_bin;
    for (int64_t left = run.count; left > 0; left -= run.per_bin, ++bin) {
      const int64_t here = std::min<int64_t>(left, run.per_bin);
      std::fill_n(by_length.begin() + at, here, bin);
      at += here;
    }
  }
  for (int64_t i = 0; i < count; ++i) bins[i] = by_length[next[lengths[i]]++];
}

}  // namespace phalanx::packing
