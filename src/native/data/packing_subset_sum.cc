// The hybrid mode: bins filled to the brim by subset sums over the histogram, or best-fit decreasing,
// whichever needs fewer bins.

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/packing.h"

namespace phalanx::packing {

namespace {

// Limits of effort. They count work and not time, so that the result is the same on every machine;
// `phalanx.data.bin_packing` has the same numbers.
constexpr int64_t kTableWords = int64_t{1} << 23;
constexpr int64_t kWorkWords = int64_t{1} << 29;

// A way to choose among the ways to fill a bin. `one_part` of the capacity may stay empty if longer samples
// can then be used (0: none may), which helps where few samples have the same length. With `mix`, bins that
// hold no sample longer than half a bin take the shortest beside the longest, so that at the end there are
// not only short ones left, which fill bins badly. No strategy is the best for all lengths.
struct Strategy {
  int32_t one_part;
  bool mix;
};
constexpr Strategy kStrategies[] = {{0, false}, {0, true}, {256, false}, {512, true}, {32, false}};

// Row `level` has bit `s` set when some of the samples of the `level` shortest distinct lengths sum to
// `s`. Rows are computed when they are asked for, and again when a count below them has changed enough.
class SubsetSums {
 public:
  SubsetSums(const std::vector<int64_t>& counts, int32_t capacity)
      : capacity_(capacity), words_(capacity / 64 + 1), scratch_(words_) {
    for (int32_t length = 1; length <= capacity; ++length) {
      if (counts[length] > 0) {
        lengths_.push_back(length);
        all_.push_back(counts[length]);
      }
    }
  }

  int32_t levels() const { return static_cast<int32_t>(lengths_.size()); }
  int32_t length(int32_t level) const { return lengths_[level]; }
  int64_t left(int32_t level) const { return left_[level]; }
  int64_t work() const { return work_; }
  bool fits_in_memory() const { return (levels() + int64_t{1}) * words_ <= kTableWords; }

  // All samples are there again. The work done so far still counts.
  void restart() {
    left_ = all_;
    valid_ = 0;
    table_.resize((levels() + int64_t{1}) * words_);
    table_[0] = 1;
  }

  void use(int32_t level, int64_t count) {
    const int64_t before = useful(level);
    left_[level] -= count;
    if (useful(level) != before) valid_ = std::min(valid_, level);
  }

  // How many of the distinct lengths below `limit` are at most `longest`.
  int32_t levels_up_to(int32_t longest, int32_t limit) const {
    const auto end = lengths_.begin() + limit;
    return static_cast<int32_t>(std::upper_bound(lengths_.begin(), end, longest) - lengths_.begin());
  }

  // The largest sum of at most `limit` that the `level` shortest lengths reach.
  int32_t largest(int32_t level, int32_t limit) {
    compute(level);
    const uint64_t* row = &table_[level * words_];
    int32_t word = limit >> 6;
    uint64_t bits = row[word] & (~uint64_t{0} >> (63 - (limit & 63)));
    while (bits == 0) bits = row[--word];  // the empty sum is always there
    return (word << 6) + 63 - __builtin_clzll(bits);
  }

 private:
  // Samples of a length beyond those that one bin can hold change no sum.
  int64_t useful(int32_t level) const { return std::min<int64_t>(left_[level], capacity_ / lengths_[level]); }

  void compute(int32_t level) {
    for (; valid_ < level; ++valid_) {
      const uint64_t* from = &table_[valid_ * words_];
      uint64_t* to = &table_[(valid_ + 1) * words_];
      std::memcpy(to, from, words_ * sizeof(uint64_t));
      work_ += words_;
      // Any number up to the count is a sum of these steps: 1, 2, 4, ... and what is left.
      for (int64_t rest = useful(valid_), step = 1; rest > 0; step *= 2) {
        const int64_t taken = std::min(step, rest);
        shift_into(to, taken * lengths_[valid_]);
        rest -= taken;
        work_ += words_;
      }
    }
  }

  // row |= row << shift
  void shift_into(uint64_t* __restrict row, int64_t shift) {
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
  int32_t valid_ = 0;
  int64_t work_ = 0;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> all_;
  std::vector<int64_t> left_;
  std::vector<uint64_t> table_;
  std::vector<uint64_t> scratch_;
};

struct Part {
  int32_t level;
  int32_t each;
};

// The fewest of the shortest lengths, out of `levels`, that reach a sum in low..high.
int32_t fewest_levels(SubsetSums& sums, int32_t levels, int32_t low, int32_t high) {
  int32_t least = 1;
  while (least < levels) {
    const int32_t middle = (least + levels) / 2;
    if (sums.largest(middle, high) >= low) {
      levels = middle;
    } else {
      least = middle + 1;
    }
  }
  return levels;
}

// A bin with a sample of the longest length left, as full as can be but for what the strategy lets empty.
void find_pattern(SubsetSums& sums, int32_t top, int32_t capacity, Strategy strategy, std::vector<Part>& pattern) {
  const int32_t length = sums.length(top);
  const int32_t room = capacity - length;
  int32_t most = -1, copies = 0, level = 0, found = 0;
  for (int32_t more = static_cast<int32_t>(std::min<int64_t>(sums.left(top) - 1, room / length));
       more >= 0 && most < room; --more) {
    const int32_t rest = room - more * length;
    const int32_t below = sums.levels_up_to(rest, top);
    const int32_t sum = sums.largest(below, rest);
    if (more * length + sum > most) {
      most = more * length + sum;
      copies = more + 1;
      level = below;
      found = sum;
    }
  }
  pattern.assign(1, {top, copies});
  const bool mix = strategy.mix && length <= capacity / 2;
  const int32_t spare = strategy.one_part > 0 ? capacity / strategy.one_part : 0;
  // The other samples must sum to at least `low` and at most `high`.
  int32_t high = capacity - copies * length;
  int32_t low = std::min(found, std::max(high - spare, 0));
  while (low > 0) {
    level = sums.levels_up_to(high, level);
    if (mix) level = fewest_levels(sums, level, low, high);
    --level;
    const int32_t part = sums.length(level);
    const auto works = [&](int32_t each) {
      return sums.largest(level, high - each * part) >= low - each * part;
    };
    int32_t each = mix ? 1 : static_cast<int32_t>(std::min<int64_t>(sums.left(level), high / part));
    if (mix) {
      while (!works(each)) ++each;
    } else {
      while (each > 0 && !works(each)) --each;
    }
    if (each > 0) pattern.push_back({level, each});
    high -= each * part;
    low -= each * part;
  }
}

Packing fill_by_patterns(SubsetSums& sums, int32_t capacity, Strategy strategy) {
  Packing packing;
  std::vector<Part> pattern;
  int32_t top = sums.levels() - 1;
  sums.restart();
  while (sums.work() <= kWorkWords) {
    while (top >= 0 && sums.left(top) == 0) --top;
    if (top < 0) return packing;
    find_pattern(sums, top, capacity, strategy, pattern);
    int64_t times = sums.left(top);
    for (const Part& part : pattern) times = std::min(times, sums.left(part.level) / part.each);
    for (const Part& part : pattern) {
      packing.runs.push_back({sums.length(part.level), packing.bins, part.each, times * part.each});
      sums.use(part.level, times * part.each);
    }
    packing.bins += static_cast<int32_t>(times);
  }
  std::vector<int64_t> rest(capacity + 1, 0);
  for (int32_t level = 0; level <= top; ++level) rest[sums.length(level)] = sums.left(level);
  const Packing others = best_fit_decreasing(rest, capacity);
  for (Run run : others.runs) {
    run.first_bin += packing.bins;
    packing.runs.push_back(run);
  }
  packing.bins += others.bins;
  return packing;
}

// No packing needs fewer bins: the tokens must go somewhere, and no two samples longer than half a bin
// share one.
int64_t lower_bound(const std::vector<int64_t>& counts, int32_t capacity) {
  int64_t tokens = 0, large = 0;
  for (int32_t length = 1; length <= capacity; ++length) {
    tokens += counts[length] * length;
    if (length > capacity / 2) large += counts[length];
  }
  return std::max((tokens + capacity - 1) / capacity, large);
}

}  // namespace

Packing hybrid(const std::vector<int64_t>& counts, int32_t capacity) {
  Packing best = best_fit_decreasing(counts, capacity);
  const int64_t least = lower_bound(counts, capacity);
  SubsetSums sums(counts, capacity);
  if (!sums.fits_in_memory()) return best;
  for (const Strategy& strategy : kStrategies) {
    if (best.bins == least || sums.work() > kWorkWords) break;
    Packing filled = fill_by_patterns(sums, capacity, strategy);
    if (filled.bins < best.bins) best = std::move(filled);
  }
  return best;
}

}  // namespace phalanx::packing
