"""Sequence packing, which assigns samples to rows based on their lengths."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer
from pydantic import Field

from phalanx.config import Config, check_type
from phalanx.data.lengths import check_lengths
from phalanx.native import require_native
from phalanx.ragged import counts_to_offsets, sum_groups

MAX_CAPACITY = 1 << 24
"""Maximum row length in tokens. Rows are indexed by their free space, so this limits the size of the
index."""


class PackingMode(enum.StrEnum):
    """Algorithm that assigns samples to rows. Ties are resolved in favor of the row that was opened first."""

    NEXT_FIT = "next_fit"
    """Put samples into the current row in the given order. A sample that does not fit opens a new row."""
    GREEDY = "next_fit"
    """Alias of `NEXT_FIT`."""
    FIRST_FIT = "first_fit"
    """Put each sample, in the given order, into the first row with enough space."""
    BEST_FIT = "best_fit"
    """Put each sample, in the given order, into the fullest row with enough space."""
    BEST_FIT_DECREASING = "best_fit_decreasing"
    """Put each sample, longest first, into the fullest row with enough space. Recommended."""
    SUBSET_SUM = "subset_sum"
    """Find combinations of lengths that fill rows completely, by solving subset-sum problems. This never
    needs more rows than best-fit decreasing."""


class OverlongPolicy(enum.StrEnum):
    """Policy for samples that are longer than a row."""

    ERROR = "error"
    """Raise an error that names the sample."""
    SKIP = "skip"
    """Leave the sample out of all rows, and list it as skipped."""
    TRUNCATE = "truncate"
    """Keep only the first `max_length` tokens of the sample."""
    SPLIT = "split"
    """Split the sample into segments of at most `max_length` tokens."""


class PackingConfig(Config):
    """Settings for sequence packing."""

    mode: PackingMode = PackingMode.BEST_FIT_DECREASING
    """Algorithm that assigns samples to rows."""
    max_length: int = Field(default=2048, ge=1)
    """Maximum number of tokens in a row, including separators."""
    pad_to_max: bool = True
    """Pad every row to `max_length`. Otherwise, pad to the longest row of the batch."""
    separator_token_id: int | None = Field(default=None, ge=0, lt=2**31)
    """Token that is inserted between two segments of a row. It belongs to the first of the two segments. If
    None, no separators are inserted."""
    separator_loss: bool = True
    """Count a separator toward the loss if the token before it counts, so that a model learns to stop. The
    last segment of a row has no separator. To end every sample with a token, use `TokenizeConfig.add_eos`."""
    overlong: OverlongPolicy = OverlongPolicy.ERROR
    """Policy for samples that are longer than `max_length`."""

    @classmethod
    def default(cls, max_length: int = 2048) -> "PackingConfig":
        """Return the default settings with the given row length."""
        return cls(max_length=max_length)


def pack_lengths(
    lengths: Integer[np.ndarray, " samples"] | Sequence[Any],
    capacity: int,
    mode: PackingMode | str = PackingMode.BEST_FIT_DECREASING,
) -> Int32[np.ndarray, " samples"]:
    """Return the index of the bin (row) of each sample. The lengths in a bin sum to at most `capacity`.

    Bins are numbered from 0 without gaps, in the order in which they are opened. In `SUBSET_SUM` mode, bins
    with the same combination of lengths are numbered consecutively.

    >>> pack_lengths([3, 4, 1], 4).tolist()
    [1, 0, 1]
    """
    if not 1 <= capacity <= MAX_CAPACITY:
        raise ValueError(f"capacity must be between 1 and {MAX_CAPACITY}, got {capacity}")
    checked = check_lengths(lengths)
    if checked.max(initial=0) > capacity:
        index = int(np.argmax(checked > capacity))
        raise ValueError(
            f"sample {index}: length {checked[index]} exceeds the capacity {capacity}; skip, truncate or "
            f"split the sample, or increase the capacity"
        )
    bins = np.empty(len(checked), np.int32)
    require_native("sequence packing").pack_lengths(checked, capacity, str(PackingMode(mode)), bins)
    return bins


def _no_samples() -> Int32[np.ndarray, " samples"]:
    return np.empty(0, np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class PackLayout:
    """Assignment of samples to rows. Row `r` consists of the segments `offsets[r]:offsets[r + 1]`.

    A segment is a sample, or a part of a sample that was split.
    """

    samples: Int32[np.ndarray, " segments"]
    """For each segment, the index of its sample. Within a row, samples are in the order in which they were
    given."""
    lengths: Int32[np.ndarray, " segments"]
    """Number of tokens in each segment, without its separator."""
    offsets: Int64[np.ndarray, " rows_and_one"]
    """Index of the first segment of each row, followed by the total number of segments."""
    width: int
    """Row length after padding, in tokens."""
    starts: Int32[np.ndarray, " segments"] | None = None
    """Start position of each segment within its sample. None if no sample was split, in which case all start
    positions are 0."""
    skipped: Int32[np.ndarray, " skipped"] = dataclasses.field(default_factory=_no_samples)
    """Indices of the samples that are not in any row, in ascending order."""
    separator_token_id: int | None = None
    """Token between two segments of a row. None if there are no separators."""
    separator_loss: bool = True
    """Count a separator toward the loss if the token before it counts."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def spans(self) -> Int32[np.ndarray, " segments"]:
        """Number of tokens that each segment occupies in its row, including its separator."""
        if self.separator_token_id is None:
            return self.lengths
        spans = self.lengths + np.int32(1)
        spans[self.offsets[1:] - 1] -= 1  # no separator after the last segment of a row
        return spans

    @property
    def segment_rows(self) -> Int64[np.ndarray, " segments"]:
        """For each segment, the index of its row."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @property
    def segment_positions(self) -> Int64[np.ndarray, " segments"]:
        """Column at which each segment starts in its row."""
        spans = self.spans
        before = np.cumsum(spans, dtype=np.int64) - spans
        rows = self.segment_rows
        return before - before[self.offsets[:-1][rows]]

    def row_sums(self, values: Integer[np.ndarray, " segments"]) -> Int64[np.ndarray, " rows"]:
        """Return the sum of `values` over the segments of each row."""
        return sum_groups(values, self.offsets)

    def slice_rows(self, first: int, last: int) -> "PackLayout":
        """Return the layout of the rows from `first` (inclusive) to `last` (exclusive)."""
        if not 0 <= first <= last <= len(self):
            raise ValueError(f"rows must be between 0 and {len(self)}, got {first} to {last}")
        begin, end = self.offsets[first], self.offsets[last]
        return dataclasses.replace(
            self,
            samples=self.samples[begin:end],
            lengths=self.lengths[begin:end],
            offsets=self.offsets[first : last + 1] - begin,
            starts=None if self.starts is None else self.starts[begin:end],
        )


def assign_packs(
    lengths: Integer[np.ndarray, " samples"] | Sequence[int],
    config: PackingConfig,
    *,
    sample_ids: Sequence[str] | None = None,
) -> PackLayout:
    """Assign samples to rows. `config.overlong` decides what happens to samples that are longer than a row.

    Args:
        lengths: Number of tokens in each sample.
        config: Packing settings.
        sample_ids: Ids for error messages. Without them, error messages refer to samples by index.

    >>> layout = assign_packs([3, 4, 1], PackingConfig(max_length=4))
    >>> layout.samples.tolist(), layout.offsets.tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    check_type(config, PackingConfig, "config")
    samples, starts, pieces, skipped = _split_overlong(check_lengths(lengths), config, sample_ids)
    # A row of n segments has n - 1 separators, which is like n separators in a row that is one token longer.
    extra = int(config.separator_token_id is not None)
    bins = pack_lengths(pieces + np.int32(extra), config.max_length + extra, config.mode)
    order = np.argsort(bins, kind="stable")
    layout = PackLayout(
        samples=samples[order],
        lengths=pieces[order],
        offsets=counts_to_offsets(np.bincount(bins)),
        width=config.max_length,
        starts=None if starts is None else starts[order],
        skipped=skipped,
        separator_token_id=config.separator_token_id,
        separator_loss=config.separator_loss,
    )
    if config.pad_to_max:
        return layout
    return dataclasses.replace(layout, width=int(layout.row_sums(layout.spans).max(initial=0)))


def _split_overlong(
    lengths: Int32[np.ndarray, " samples"], config: PackingConfig, sample_ids: Sequence[str] | None
) -> tuple[
    Int32[np.ndarray, " segments"],
    Int32[np.ndarray, " segments"] | None,
    Int32[np.ndarray, " segments"],
    Int32[np.ndarray, " skipped"],
]:
    """Skip, truncate or split overlong samples.

    Returns:
        The index of each segment's sample; the start of each segment within its sample, or None if no sample
        was split; the length of each segment; and the indices of the skipped samples.
    """
    limit = config.max_length
    overlong = np.flatnonzero(lengths > limit).astype(np.int32)
    samples = np.arange(len(lengths), dtype=np.int32)
    if len(overlong) == 0:
        return samples, None, lengths, _no_samples()
    match config.overlong:
        case OverlongPolicy.ERROR:
            first = int(overlong[0])
            name = f"sample {first}" if sample_ids is None else f"sample {first} ({sample_ids[first]!r})"
            others = f" ({len(overlong) - 1} more are too long)" if len(overlong) > 1 else ""
            raise ValueError(
                f"{name} has {lengths[first]} tokens, more than max_length {limit}{others}; "
                "choose overlong='skip', 'truncate' or 'split', or increase max_length"
            )
        case OverlongPolicy.SKIP:
            kept = np.flatnonzero(lengths <= limit).astype(np.int32)
            return kept, None, lengths[kept], overlong
        case OverlongPolicy.TRUNCATE:
            return samples, None, np.minimum(lengths, np.int32(limit)), _no_samples()
        case OverlongPolicy.SPLIT:
            pieces = -(-lengths // limit)
            first_piece = np.cumsum(pieces) - pieces
            owner = np.repeat(samples, pieces)
            starts = ((np.arange(len(owner)) - first_piece[owner]) * limit).astype(np.int32)
            return owner, starts, np.minimum(lengths[owner] - starts, np.int32(limit)), _no_samples()
