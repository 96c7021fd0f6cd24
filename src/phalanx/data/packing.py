"""Which sample stands in which pack, decided from lengths alone, so that a plan can pack without tokens.

Compiled code finds the bins where there is some; `bin_packing` finds the same without. The tokens themselves
are copied in `packed_batch`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer

from phalanx.config import check_type
from phalanx.data import bin_packing
from phalanx.data.packing_config import OverlongPolicy, PackingConfig, PackingMode
from phalanx.native import native_module

MAX_CAPACITY = 1 << 24
"""The largest bin: open bins are looked up in a table by the room they have left."""


def pack_lengths(
    lengths: Integer[np.ndarray, " samples"] | Sequence[Any],
    capacity: int,
    mode: PackingMode | str = PackingMode.BEST_FIT_DECREASING,
) -> Int32[np.ndarray, " samples"]:
    """The bin of each sample, so that the samples of a bin are together at most `capacity` long.

    Bins are numbered from 0 without gaps, in the order in which they are opened (in hybrid mode: by pattern).

    >>> pack_lengths([3, 4, 1], 4).tolist()
    [1, 0, 1]
    """
    chosen = PackingMode(mode)
    checked = check_lengths(lengths, capacity)
    compiled = native_module()
    if compiled is None:
        return bin_packing.pack(checked, capacity, chosen)
    bins = np.empty(len(checked), np.int32)
    compiled.pack_lengths(checked, capacity, str(chosen), bins)
    return bins


def check_lengths(
    lengths: Integer[np.ndarray, " samples"] | Sequence[Any], capacity: int | None = None
) -> Int32[np.ndarray, " samples"]:
    """The lengths as an array; an error names the first that is not positive or does not fit."""
    if capacity is not None and not 1 <= capacity <= MAX_CAPACITY:
        raise ValueError(f"capacity must be in 1..{MAX_CAPACITY}, got {capacity}")
    given = np.asarray(lengths)
    if given.size == 0:
        return np.empty(0, np.int32)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"lengths must be one row of integers, got shape {given.shape} of {given.dtype}")
    if given.min() < 1:
        index = int(np.argmax(given < 1))
        raise ValueError(f"lengths[{index}]: length must be a positive integer, got {given[index]}")
    limit = np.iinfo(np.int32).max if capacity is None else capacity
    if given.max() > limit:
        index = int(np.argmax(given > limit))
        raise ValueError(
            f"lengths[{index}]: {given[index]} does not fit into a bin of {limit}; "
            "leave the sample out, cut it, or raise the capacity"
        )
    return np.ascontiguousarray(given, np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class PackLayout:
    """Pack `p` holds the segments `offsets[p]:offsets[p + 1]`; their samples keep the order they came in."""

    config: PackingConfig
    samples: Int32[np.ndarray, " segments"]
    """The sample that each segment is taken from."""
    starts: Int32[np.ndarray, " segments"]
    """The segment's first token within its sample: 0 but for the later pieces of a split sample."""
    lengths: Int32[np.ndarray, " segments"]
    """The segment's tokens, without a separator."""
    offsets: Int64[np.ndarray, " packs_and_one"]
    """Where each pack begins among the segments, and the end."""
    skipped: Int32[np.ndarray, " skipped"]
    """Samples that are in no pack, ascending."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def spans(self) -> Int32[np.ndarray, " segments"]:
        """The tokens that each segment takes of its row, with the separator that ends it."""
        spans = self.lengths.copy()
        if self.config.add_separator:
            spans += 1
            spans[self.offsets[1:] - 1] -= 1  # nothing follows the last segment of a pack
        return spans

    @property
    def width(self) -> int:
        """How wide the rows are: `max_length`, or with `pad_to_max=False` as wide as the fullest pack."""
        if self.config.pad_to_max:
            return self.config.max_length
        return int(self.sums(self.spans).max(initial=0))

    def sums(self, values: Integer[np.ndarray, " segments"]) -> Int64[np.ndarray, " packs"]:
        """The sum of a value of the segments, for each pack."""
        running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.diff(running[self.offsets])

    def take(self, first: int, last: int) -> "PackLayout":
        """The packs from `first` up to `last`, for working through a large layout in parts."""
        if not 0 <= first <= last <= len(self):
            raise ValueError(f"there are packs 0..{len(self) - 1}, asked for {first} up to {last}")
        begin, end = self.offsets[first], self.offsets[last]
        return PackLayout(
            self.config,
            self.samples[begin:end],
            self.starts[begin:end],
            self.lengths[begin:end],
            self.offsets[first : last + 1] - begin,
            self.skipped,
        )


def assign_packs(
    lengths: Integer[np.ndarray, " samples"] | Sequence[int],
    config: PackingConfig,
    *,
    sample_ids: Sequence[str] | None = None,
) -> PackLayout:
    """Cut overlong samples as the config says and deal all of them to packs.

    Errors call a sample by its id where ids are given, and by its place otherwise.

    >>> layout = lay_out_packs([3, 4, 1], PackingConfig(max_length=4))
    >>> layout.samples.tolist(), layout.offsets.tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    check_type(config, PackingConfig, "config")
    checked = check_lengths(lengths)
    samples, starts, cut, skipped = _cut(checked, config, sample_ids)
    # A pack of n segments has n - 1 separators: as if each segment had one, and the pack room for one more.
    extra = int(config.add_separator)
    bins = pack_lengths(cut + np.int32(extra), config.max_length + extra, config.mode)
    order = np.argsort(bins, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(bins), dtype=np.int64)])
    return PackLayout(config, samples[order], starts[order], cut[order], offsets, skipped)


def _cut(
    lengths: Int32[np.ndarray, " samples"], config: PackingConfig, sample_ids: Sequence[str] | None
) -> tuple[
    Int32[np.ndarray, " segments"],
    Int32[np.ndarray, " segments"],
    Int32[np.ndarray, " segments"],
    Int32[np.ndarray, " skipped"],
]:
    """Sample, start and length of each piece to pack, and the samples of which no piece is."""
    limit = config.max_length
    overlong = np.flatnonzero(lengths > limit).astype(np.int32)
    samples = np.arange(len(lengths), dtype=np.int32)
    none = np.empty(0, np.int32)
    if len(overlong) == 0:
        return samples, np.zeros_like(samples), lengths, none
    match config.overlong:
        case OverlongPolicy.ERROR:
            first = int(overlong[0])
            name = f"sample {first}" if sample_ids is None else f"sample {first} ({sample_ids[first]!r})"
            others = f" ({len(overlong) - 1} more are too long)" if len(overlong) > 1 else ""
            raise ValueError(
                f"{name} has {lengths[first]} tokens, more than a pack's max_length {limit}{others}; "
                "choose overlong='skip', 'truncate' or 'split', or raise max_length"
            )
        case OverlongPolicy.SKIP:
            kept = np.flatnonzero(lengths <= limit).astype(np.int32)
            return kept, np.zeros_like(kept), lengths[kept], overlong
        case OverlongPolicy.TRUNCATE:
            return samples, np.zeros_like(samples), np.minimum(lengths, np.int32(limit)), none
        case OverlongPolicy.SPLIT:
            pieces = -(-lengths // limit)
            first_piece = np.cumsum(pieces) - pieces
            owner = np.repeat(samples, pieces)
            starts = ((np.arange(len(owner)) - first_piece[owner]) * limit).astype(np.int32)
            return owner, starts, np.minimum(lengths[owner] - starts, np.int32(limit)), none
