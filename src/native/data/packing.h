// Bin packing assigns samples to bins of equal capacity, given only their lengths. Among equally full bins,
// the one that was opened first is used, so the result of every algorithm is fully determined. Row filling
// copies the tokens of the samples into padded rows.
#pragma once

#include <cstdint>
#include <optional>
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

// Segments of an array of tokens, grouped by row. Segment s consists of `lengths[s]` tokens from `starts[s]`
// on. Row i has the segments from `offsets[i]` to `offsets[i + 1]`.
struct Segments {
  const int32_t* tokens;
  const int8_t* loss;  // One entry per token, or null if all tokens count in the loss.
  int64_t num_tokens;
  const int64_t* starts;
  const int32_t* lengths;
  int64_t num_segments;
  const int64_t* offsets;
};

// The arrays to fill, each of shape [rows, width].
struct PackedRows {
  int64_t rows;
  int64_t width;
  int32_t* input_ids;
  int8_t* loss_mask;
  int32_t* segment_ids;
  int32_t* position_ids;
};

// Fills rows with their segments, with a separator between segments if one is given, and pads them at the
// end. Segment ids count from 1 in each row, and 0 is padding. Position ids count from 0 in each segment.
// Throws std::invalid_argument before anything is written if a segment is outside of the tokens, or if the
// segments of a row do not fit into it.
void fill_packs(const Segments& segments, std::optional<int32_t> separator, int32_t pad,
                const PackedRows& packs);

}  // namespace phalanx::data
