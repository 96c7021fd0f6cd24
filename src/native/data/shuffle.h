// Sorting of random keys, which is how epochs are shuffled, and gathering of contiguous runs.
#pragma once

#include <cstdint>

namespace phalanx::data {

// Writes the bits of each key that `low_mask` selects to `order`, sorted by key, and overwrites the keys.
// Correct for any distinct keys; fast if their high bits are random. `values` (one per key, or null) are
// reordered in the same way: they are read once from front to back, whereas indexing them with `order`
// afterwards would access memory randomly.
void sort_random_keys(uint64_t* keys, int64_t count, uint64_t low_mask, int32_t* order,
                      int16_t* values = nullptr);

// Copies the pieces `source[starts[i]:ends[i]]` one after another.
void gather_runs(const int32_t* source, const int64_t* starts, const int64_t* ends, int64_t num_runs,
                 int32_t* destination);

}  // namespace phalanx::data
