// Packing samples into bins by their lengths alone, and copying tokens into the packed rows.
// What a segment means (masks, policies for overlong samples) is decided in Python.
#pragma once

#include <cstdint>
#include <vector>

#include <nanobind/nanobind.h>

namespace phalanx::packing {

// Every rule below names one bin for each sample, so the Python twins in `phalanx.data.bin_packing`
// give the same bins: ties between equally full bins go to the bin that was opened first.

// The next `count` samples of this length, in the order given, go to `first_bin` and the bins after it,
// `per_bin` in each (the last bin may get fewer).
struct Run {
  int32_t length;
  int32_t first_bin;
  int32_t per_bin;
  int64_t count;
};

struct Packing {
  std::vector<Run> runs;
  int32_t bins = 0;
};

// In the order given. Lengths must be in 1..capacity; each returns the number of bins.
int32_t next_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins);
int32_t first_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins);
int32_t best_fit(const int32_t* lengths, int64_t count, int32_t capacity, int32_t* bins);

// Over a histogram: `counts[length]` samples for length 1..capacity.
Packing best_fit_decreasing(const std::vector<int64_t>& counts, int32_t capacity);
Packing hybrid(const std::vector<int64_t>& counts, int32_t capacity);

// Gives the samples their bins by the runs, equal lengths in the order given.
void deal(const int32_t* lengths, int64_t count, const std::vector<int64_t>& counts,
          const std::vector<Run>& runs, int32_t* bins);

// Uses the keys up: `order` gets the `low` bits of each, in the order of the keys. Right for any distinct
// keys, fast for those whose high bits are random. `values`, one for each key, are put into the same order:
// they are read once from front to back, where looking them up afterwards would read all over the memory.
void sort_random_keys(uint64_t* keys, int64_t count, uint64_t low, int32_t* order, int16_t* values = nullptr);

// Copies `runs` pieces of `from`, each from `starts` to `ends`, one behind the other.
void copy_runs(const int32_t* from, const int64_t* starts, const int64_t* ends, int64_t runs, int32_t* to);

void bind_packing(nanobind::module_& module);

}  // namespace phalanx::packing
