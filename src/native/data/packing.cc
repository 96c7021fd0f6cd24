// Next-fit, first-fit, best-fit and best-fit decreasing packing.

#include "data/packing.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "data/capacity_index.h"

namespace phalanx::data {

namespace {

// Open bins by their free space. `Entry` is a bin, or a range of consecutive bins that are equally full.
template <typename Entry>
class OpenBins {
 public:
  explicit OpenBins(int32_t capacity) : free_by_capacity_(capacity + 1), heap_index_(capacity + 1, -1) {}

  void put(int32_t free, Entry entry) {
    if (heap_index_[free] < 0) {
      heap_index_[free] = static_cast<int32_t>(heaps_.size());
      heaps_.emplace_back();
    }
    auto& heap = heaps_[heap_index_[free]];
    if (heap.empty()) free_by_capacity_.insert(free);
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), std::greater<Entry>());
  }

  // Returns the smallest free space of an open bin that is at least `length`, or -1 if there is none.
  int32_t smallest_free(int32_t length) const { return free_by_capacity_.lower_bound(length); }

  Entry take(int32_t free) {
    auto& heap = heaps_[heap_index_[free]];
    std::pop_heap(heap.begin(), heap.end(), std::greater<Entry>());
    const Entry entry = heap.back();
    heap.pop_back();
    if (heap.empty()) free_by_capacity_.erase(free);
    return entry;
  }

 private:
  CapacityIndex free_by_capacity_;
  std::vector<int32_t> heap_index_;
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
  int32_t free = capacity;
  for (int64_t i = 0; i < count; ++i) {
    if (lengths[i] > free) {
      ++bin;
      free = capacity;
    }
    free -= lengths[i];
    bins[i] = bin;
  }
  return count > 0 ? bin + 1 : 0;
}

int32_t first_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins) {
  // A tree of maxima over the free space of all bins, including those that are not used yet. It doubles when
  // it is full.
  int64_t leaves = 1024;
  std::vector<int32_t> free(2 * leaves, capacity);
  int32_t num_bins = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t length = lengths[i];
    if (free[1] < length) {
      std::vector<int32_t> larger(4 * leaves, capacity);
      for (int64_t level = leaves; level > 0; level /= 2) {
        std::copy_n(free.begin() + level, level, larger.begin() + 2 * level);
      }
      free.swap(larger);
      leaves *= 2;
    }
    int64_t node = 1;
    while (node < leaves) {
      node *= 2;
      node += free[node] < length;
    }
    bins[i] = static_cast<int32_t>(node - leaves);
    num_bins = std::max(num_bins, bins[i] + 1);
    free[node] -= length;
    while (node > 1) {
      node /= 2;
      const int32_t largest = std::max(free[2 * node], free[2 * node + 1]);
      if (free[node] == largest) break;
      free[node] = largest;
    }
  }
  return num_bins;
}

int32_t best_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins) {
  OpenBins<int32_t> open(capacity);
  int32_t num_bins = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t free = open.smallest_free(lengths[i]);
    const int32_t bin = free < 0 ? num_bins++ : open.take(free);
    const int32_t remaining = (free < 0 ? capacity : free) - lengths[i];
    if (remaining > 0) open.put(remaining, bin);
    bins[i] = bin;
  }
  return num_bins;
}

// Samples of equal length are packed one after another, and the fullest bin that fits one of them is also the
// fullest that fits the next. Bins that are equally full are therefore filled alike, a range of bins at a
// time, and the time depends on the number of distinct lengths rather than samples.
Packing best_fit_decreasing(const std::vector<int64_t>& counts, int32_t capacity) {
  Packing packing;
  OpenBins<Range> open(capacity);
  int32_t shortest = 1;
  while (shortest <= capacity && counts[shortest] == 0) ++shortest;
  const auto put = [&](int32_t free, int32_t first, int64_t bins) {
    if (bins > 0 && free >= shortest) open.put(free, {first, static_cast<int32_t>(bins)});
  };
  for (int32_t length = capacity; length >= shortest; --length) {
    for (int64_t remaining = counts[length]; remaining > 0;) {
      const int32_t found = open.smallest_free(length);
      const int32_t free = found < 0 ? capacity : found;
      const int32_t per_bin = free / length;
      Range range{packing.bins, static_cast<int32_t>((remaining + per_bin - 1) / per_bin)};
      if (found < 0) {
        packing.bins += range.count;
      } else {
        range = open.take(free);
      }
      const int64_t filled = std::min<int64_t>(range.count, remaining / per_bin);
      const int32_t rest = filled < range.count ? static_cast<int32_t>(remaining - filled * per_bin) : 0;
      const int32_t num_partial = rest > 0 ? 1 : 0;
      const int32_t end = range.first + static_cast<int32_t>(filled);
      packing.runs.push_back({length, range.first, per_bin, filled * per_bin + rest});
      put(free - per_bin * length, range.first, filled);
      put(free - rest * length, end, num_partial);
      put(free, end + num_partial, range.count - filled - num_partial);
      remaining -= filled * per_bin + rest;
    }
  }
  return packing;
}

void assign_bins(const int32_t* lengths, int64_t count, const std::vector<int64_t>& counts,
                 const std::vector<BinRun>& runs, int32_t* bins) {
  std::vector<int64_t> next(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, next.begin() + 1);
  std::vector<int64_t> written = next;
  std::vector<int32_t> by_length(count);
  for (const BinRun& run : runs) {
    int64_t& at = written[run.length];
    int32_t bin = run.first_bin;
    for (int64_t remaining = run.count; remaining > 0; remaining -= run.per_bin, ++bin) {
      const int64_t here = std::min<int64_t>(remaining, run.per_bin);
      std::fill_n(by_length.begin() + at, here, bin);
      at += here;
    }
  }
  for (int64_t i = 0; i < count; ++i) bins[i] = by_length[next[lengths[i]]++];
}

}  // namespace phalanx::data
