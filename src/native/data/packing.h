// Bin packing: assigns samples to bins of equal capacity, given only their lengths. Among equally full bins,
// the one that was opened first is used, so the result of every algorithm is fully determined.
#pragma once

#include <cstdint>
#include <vector>

namespace phalanx::data {

// The next `count` samples of this length go to `first_bin` and the bins after it, `per_bin` to each. The
// last bin may get fewer.
struct BinRun {
  int32_t length;
  int32_t first_bin;
  int32_t per_bin;
  int64_t count;
};

struct Packing {
  std::vector<BinRun> runs;
  int32_t bins = 0;
};

// Pack samples in the given order. Lengths must be 1 to `capacity`. Write the bin of each sample to `bins`
// and return the number of bins.
int32_t next_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins);
int32_t first_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins);
int32_t best_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins);

// Pack a histogram: there are `counts[length]` samples of each length from 1 to `capacity`.
Packing best_fit_decreasing(const std::vector<int64_t>& counts, int32_t capacity);
Packing subset_sum(const std::vector<int64_t>& counts, int32_t capacity);

// Assigns the samples to bins as the runs say. Samples of equal length are used in the given order.
void assign_bins(const int32_t* lengths, int64_t count, const std::vector<int64_t>& counts,
                 const std::vector<BinRun>& runs, int32_t* bins);

}  // namespace phalanx::data
