// Collation of packed rows: copies segments of tokens into rows of equal width.
#pragma once

#include <cstdint>
#include <optional>

namespace phalanx::data {

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
