#include "data/collation.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace phalanx::data {

namespace {

void check_segments(const Segments& segments, bool has_separator, const PackedRows& packs) {
  const int64_t* offsets = segments.offsets;
  for (int64_t row = 0; row < packs.rows; ++row) {
    if (offsets[row] < 0 || offsets[row] > offsets[row + 1] || offsets[row + 1] > segments.num_segments)
      throw std::invalid_argument("offsets must ascend from 0 to the number of segments");
    int64_t used = 0;
    for (int64_t s = offsets[row]; s < offsets[row + 1]; ++s) {
      const int32_t length = segments.lengths[s];
      const int64_t start = segments.starts[s];
      if (length < 0 || start < 0 || start > segments.num_tokens - length)
        throw std::invalid_argument("a segment is outside of the tokens");
      used += length + (has_separator && s > offsets[row] ? 1 : 0);
    }
    if (used > packs.width) throw std::invalid_argument("the segments of a row are longer than the row");
  }
}

}  // namespace

void fill_packs(const Segments& segments, std::optional<int32_t> separator, int32_t pad,
                const PackedRows& packs) {
  check_segments(segments, separator.has_value(), packs);
  const int64_t* offsets = segments.offsets;
  for (int64_t row = 0; row < packs.rows; ++row) {
    const int64_t row_end = (row + 1) * packs.width;
    int64_t at = row * packs.width;
    for (int64_t s = offsets[row]; s < offsets[row + 1]; ++s) {
      const int64_t start = segments.starts[s];
      const int32_t num_tokens = segments.lengths[s];
      // A separator belongs to the segment that it ends: it has the same id and the next position.
      const int32_t num_ids = num_tokens + (separator && s + 1 < offsets[row + 1] ? 1 : 0);
      std::memcpy(packs.input_ids + at, segments.tokens + start, num_tokens * sizeof(int32_t));
      if (segments.loss != nullptr) {
        std::memcpy(packs.loss_mask + at, segments.loss + start, num_tokens);
      } else {
        std::memset(packs.loss_mask + at, 1, num_tokens);
      }
      if (num_ids > num_tokens) {
        packs.input_ids[at + num_tokens] = *separator;
        packs.loss_mask[at + num_tokens] = 0;
      }
      std::fill_n(packs.segment_ids + at, num_ids, static_cast<int32_t>(s - offsets[row] + 1));
      std::iota(packs.position_ids + at, packs.position_ids + at + num_ids, 0);
      at += num_ids;
    }
    std::fill_n(packs.input_ids + at, row_end - at, pad);
    std::memset(packs.loss_mask + at, 0, row_end - at);
    std::memset(packs.segment_ids + at, 0, (row_end - at) * sizeof(int32_t));
    std::memset(packs.position_ids + at, 0, (row_end - at) * sizeof(int32_t));
  }
}

}  // namespace phalanx::data
