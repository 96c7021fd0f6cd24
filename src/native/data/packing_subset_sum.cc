// Packing that fills bins completely by solving subset-sum problems over the histogram of lengths. The result
// is compared with best-fit decreasing, and the packing with fewer bins is used.

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/packing.h"

namespace phalanx::data {

namespace {

// Limits on memory and work. They count operations rather than time, so that the result is the same on every
// machine.
constexpr int64_t kMaxTableWords = int64_t{1} << 23;
constexpr int64_t kMaxWork = int64_t{1} << 29;

// A rule to choose among the ways to fill a bin. `capacity / slack_divisor` of a bin may stay empty if longer
// samples can be used instead (0: nothing may), which helps if few samples have the same length. With
// `mix_short`, bins without a sample longer than half a bin combine the longest samples with the shortest, so
// that the last bins are not left with only samples of similar length. No strategy is best for all
// distributions of lengths.
struct Strategy {
  int32_t slack_divisor;
  bool mix_short;
};
constexpr Strategy kStrategies[] = {{0, false}, {0, true}, {256, false}, {512, true}, {32, false}};

// Bit `s` of row `level` is set if some of the remaining samples of the `level` shortest distinct lengths sum
// to `s`. Rows are computed when they are needed, and again when a count below them has changed enough to
// matter.
class SubsetSums {
 public:
  SubsetSums(const std::vector<int64_t>& counts, int32_t capacity)
      : capacity_(capacity), words_(capacity / 64 + 1), scratch_(words_) {
    for (int32_t length = 1; length <= capacity; ++length) {
      if (counts[length] > 0) {
        lengths_.push_back(length);
        counts_.push_back(counts[length]);
      }
    }
  }

  int32_t levels() const { return static_cast<int32_t>(lengths_.size()); }
  int32_t length(int32_t level) const { return lengths_[level]; }
  int64_t remaining(int32_t level) const { return remaining_[level]; }
  int64_t work() const { return work_; }
  bool fits_in_memory() const { return (levels() + int64_t{1}) * words_ <= kMaxTableWords; }

  // Makes all samples available again. The work done so far still counts.
  void reset() {
    remaining_ = counts_;
    num_valid_ = 0;
    table_.resize((levels() + int64_t{1}) * words_);
    table_[0] = 1;
  }

  void use(int32_t level, int64_t count) {
    const int64_t before = relevant_count(level);
    remaining_[level] -= count;
    if (relevant_count(level) != before) num_valid_ = std::min(num_valid_, level);
  }

  // Returns how many of the first `limit` distinct lengths are at most `longest`.
  int32_t levels_up_to(int32_t longest, int32_t limit) const {
    const auto end = lengths_.begin() + limit;
    return static_cast<int32_t>(std::upper_bound(lengths_.begin(), end, longest) - lengths_.begin());
  }

  // Returns the largest sum of at most `limit` that the `level` shortest lengths reach.
  int32_t largest(int32_t level, int32_t limit) {
    compute_rows(level);
    const uint64_t* row = &table_[level * words_];
    int32_t word = limit >> 6;
    uint64_t bits = row[word] & (~uint64_t{0} >> (63 - (limit & 63)));
    while (bits == 0) bits = row[--word];  // bit 0, the empty sum, is always set
    return (word << 6) + 63 - __builtin_clzll(bits);
  }

 private:
  // More samples of a length than fit into one bin do not change any sum.
  int64_t relevant_count(int32_t level) const {
    return std::min<int64_t>(remaining_[level], capacity_ / lengths_[level]);
  }

  void compute_rows(int32_t level) {
    for (; num_valid_ < level; ++num_valid_) {
      const uint64_t* from = &table_[num_valid_ * words_];
      uint64_t* to = &table_[(num_valid_ + 1) * words_];
      std::memcpy(to, from, words_ * sizeof(uint64_t));
      work_ += words_;
      // Every number up to the count is a sum of some of the steps 1, 2, 4, ... and the remainder.
      for (int64_t rest = relevant_count(num_valid_), step = 1; rest > 0; step *= 2) {
        const int64_t taken = std::min(step, rest);
        or_shifted(to, taken * lengths_[num_valid_]);
        rest -= taken;
        work_ += words_;
      }
    }
  }

  // row |= row << shift
  void or_shifted(uint64_t* __restrict row, int64_t shift) {
    const int64_t words = shift >> 6;
    const int bits = static_cast<int>(shift & 63);
    if (words >= words_) return;
    uint64_t* __restrict old = scratch_.data();
    std::memcpy(old, row, (words_ - words) * sizeof(uint64_t));
    if (bits == 0) {
      for (int64_t w = words; w < words_; ++w) row[w] |= old[w - words];
      return;
    }
    row[words] |= old[0] << bits;
    for (int64_t w = words + 1; w < words_; ++w) {
      row[w] |= old[w - words] << bits | old[w - words - 1] >> (64 - bits);
    }
  }

  int32_t capacity_;
  int64_t words_;
  int32_t num_valid_ = 0;
  int64_t work_ = 0;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> remaining_;
  std::vector<uint64_t> table_;
  std::vector<uint64_t> scratch_;
};

struct Component {
  int32_t level;
  int32_t count;
};

// Returns how many of the shortest lengths, at most `levels`, are needed to reach a sum from `low` to `high`.
int32_t min_levels(SubsetSums& sums, int32_t levels, int32_t low, int32_t high) {
  int32_t fewest = 1;
  while (fewest < levels) {
    const int32_t middle = (fewest + levels) / 2;
    if (sums.largest(middle, high) >= low) {
      levels = middle;
    } else {
      fewest = middle + 1;
    }
  }
  return levels;
}

// Finds samples for one bin, including one of the longest remaining length, that fill it except for the slack
// that the strategy allows.
void find_pattern(SubsetSums& sums, int32_t top, int32_t capacity, Strategy strategy,
                  std::vector<Component>& pattern) {
  const int32_t length = sums.length(top);
  const int32_t free = capacity - length;
  int32_t best_sum = -1, num_top = 0, level = 0, rest_sum = 0;
  for (int32_t more = static_cast<int32_t>(std::min<int64_t>(sums.remaining(top) - 1, free / length));
       more >= 0 && best_sum < free; --more) {
    const int32_t rest = free - more * length;
    const int32_t below = sums.levels_up_to(rest, top);
    const int32_t sum = sums.largest(below, rest);
    if (more * length + sum > best_sum) {
      best_sum = more * length + sum;
      num_top = more + 1;
      level = below;
      rest_sum = sum;
    }
  }
  pattern.assign(1, {top, num_top});
  const bool mix_short = strategy.mix_short && length <= capacity / 2;
  const int32_t slack = strategy.slack_divisor > 0 ? capacity / strategy.slack_divisor : 0;
  // The other samples must sum to at least `low` and at most `high`.
  int32_t high = capacity - num_top * length;
  int32_t low = std::min(rest_sum, std::max(high - slack, 0));
  while (low > 0) {
    level = sums.levels_up_to(high, level);
    if (mix_short) level = min_levels(sums, level, low, high);
    --level;
    const int32_t component = sums.length(level);
    const auto is_feasible = [&](int32_t count) {
      return sums.largest(level, high - count * component) >= low - count * component;
    };
    int32_t count =
        mix_short ? 1 : static_cast<int32_t>(std::min<int64_t>(sums.remaining(level), high / component));
    if (mix_short) {
      while (!is_feasible(count)) ++count;
    } else {
      while (count > 0 && !is_feasible(count)) --count;
    }
    if (count > 0) pattern.push_back({level, count});
    high -= count * component;
    low -= count * component;
  }
}

Packing pack_by_patterns(SubsetSums& sums, int32_t capacity, Strategy strategy) {
  Packing packing;
  std::vector<Component> pattern;
  int32_t top = sums.levels() - 1;
  sums.reset();
  while (sums.work() <= kMaxWork) {
    while (top >= 0 && sums.remaining(top) == 0) --top;
    if (top < 0) return packing;
    find_pattern(sums, top, capacity, strategy, pattern);
    int64_t times = sums.remaining(top);
    for (const Component& component : pattern)
      times = std::min(times, sums.remaining(component.level) / component.count);
    for (const Component& component : pattern) {
      packing.runs.push_back(
          {sums.length(component.level), packing.bins, component.count, times * component.count});
      sums.use(component.level, times * component.count);
    }
    packing.bins += static_cast<int32_t>(times);
  }
  std::vector<int64_t> rest(capacity + 1, 0);
  for (int32_t level = 0; level <= top; ++level) rest[sums.length(level)] = sums.remaining(level);
  const Packing leftover = best_fit_decreasing(rest, capacity);
  for (BinRun run : leftover.runs) {
    run.first_bin += packing.bins;
    packing.runs.push_back(run);
  }
  packing.bins += leftover.bins;
  return packing;
}

// Returns a lower bound on the number of bins: all tokens must fit, and no two samples longer than half a bin
// can share one.
int64_t lower_bound(const std::vector<int64_t>& counts, int32_t capacity) {
  int64_t tokens = 0, num_large = 0;
  for (int32_t length = 1; length <= capacity; ++length) {
    tokens += counts[length] * length;
    if (length > capacity / 2) num_large += counts[length];
  }
  return std::max((tokens + capacity - 1) / capacity, num_large);
}

}  // namespace

Packing subset_sum(const std::vector<int64_t>& counts, int32_t capacity) {
  Packing best = best_fit_decreasing(counts, capacity);
  const int64_t min_bins = lower_bound(counts, capacity);
  SubsetSums sums(counts, capacity);
  if (!sums.fits_in_memory()) return best;
  for (const Strategy& strategy : kStrategies) {
    if (best.bins == min_bins || sums.work() > kMaxWork) break;
    Packing filled = pack_by_patterns(sums, capacity, strategy);
    if (filled.bins < best.bins) best = std::move(filled);
  }
  return best;
}

}  // namespace phalanx::data
