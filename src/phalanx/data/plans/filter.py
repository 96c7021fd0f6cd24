"""The filter before planning: which samples a config keeps, and why it skips the others.

The batches that are cut from the kept ones are in `ordering`.
"""

import dataclasses
from functools import cached_property

import numpy as np
from jaxtyping import Int8, Int16, Int32

from phalanx.config import check_type
from phalanx.data.lengths import LengthTable, SkippedSample
from phalanx.data.packing_config import OverlongPolicy, PackingConfig
from phalanx.data.plans.arrays import EpochBatches
from phalanx.data.plans.batching_config import BatchingConfig

_BLOCK = 1 << 16
"""Lengths that are looked at together, in the cache."""


@dataclasses.dataclass(frozen=True, eq=False)
class SelectedSamples:
    """The rows of a table that a config keeps, with the length that each has in a batch."""

    table: LengthTable
    config: BatchingConfig
    packing: PackingConfig | None
    some: Int32[np.ndarray, " kept"] | None
    """Kept rows, ascending; None: all."""
    lengths: Int32[np.ndarray, " kept"]
    """Their lengths, after truncation where packing truncates."""

    @cached_property
    def rows(self) -> Int32[np.ndarray, " kept"]:
        """Kept rows, ascending."""
        return np.arange(len(self.table), dtype=np.int32) if self.some is None else self.some

    @property
    def num_kept(self) -> int:
        """How many samples are kept."""
        return len(self.lengths)

    @cached_property
    def _small(self) -> np.ndarray:
        # Lengths in random order are read from all over: in half the memory more of them are in the cache.
        return self.lengths.astype(np.int16) if self.config.overflow_max < 2**15 else self.lengths

    def lengths_at(self, kept: Int32[np.ndarray, " any"]) -> Int32[np.ndarray, " any"]:
        """The lengths of kept samples, by their places among the kept."""
        return self._small[kept].astype(np.int32)

    @cached_property
    def bucket_ids(self) -> Int8[np.ndarray, " kept"] | Int16[np.ndarray, " kept"]:
        """Each kept sample's bucket, in as few bytes as they need."""
        spec = self.config.bucket_spec
        found = np.empty(len(self.lengths), np.int8 if spec.num_buckets < 128 else np.int16)
        for start in range(0, len(found), _BLOCK):
            found[start : start + _BLOCK] = spec.get_bucket_ids(self.lengths[start : start + _BLOCK])
        return found

    def rows_at(self, kept: Int32[np.ndarray, " any"]) -> Int32[np.ndarray, " any"]:
        """The rows of kept samples, by their places among the kept: the places themselves if all are."""
        return kept if self.some is None else self.some[kept]

    @property
    def num_skipped(self) -> int:
        """How many samples are skipped."""
        return len(self.table) - self.num_kept

    @cached_property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Every skipped sample, in row order."""
        left = np.ones(len(self.table), bool)
        left[self.rows] = False
        return tuple(self._report(row) for row in np.flatnonzero(left).tolist())

    def dropped(self, batches: EpochBatches) -> tuple[SkippedSample, ...]:
        """Every kept sample that is in none of an epoch's batches, in row order."""
        left = np.zeros(len(self.table), bool)
        left[self.rows] = True
        left[batches.order] = False
        return tuple(
            self._report(row, "in a batch that was not full, with drop_last")
            for row in np.flatnonzero(left).tolist()
        )

    def _report(self, row: int, reason: str | None = None) -> SkippedSample:
        length = int(self.table.lengths[row])
        return SkippedSample(
            sample_id=str(self.table.ids[row]), length=length, reason=reason or self._reason(length)
        )

    def _reason(self, length: int) -> str:
        if length < self.config.min_length:
            return f"shorter than min_length {self.config.min_length}"
        if length > self.config.overflow_max:
            return f"longer than overflow_max {self.config.overflow_max}"
        if self.packing is not None:
            return f"longer than a pack's max_length {self.packing.max_length}"
        return f"longer than token_budget {self.config.token_budget}"


def select_samples(
    table: LengthTable, config: BatchingConfig, packing: PackingConfig | None = None
) -> SelectedSamples:
    """Sort out the samples that fit no batch.

    With packing a sample that is longer than a pack is skipped, truncated or refused as the packing config
    says; a plan holds whole samples, so it cannot split them.
    """
    check_type(config, BatchingConfig, "batching_config")
    if packing is not None:
        check_type(packing, PackingConfig, "packing")
    lengths = table.lengths
    longest = config.longest
    cut: int | None = None
    if packing is not None:
        _check_packing(packing, config)
        if packing.overlong is OverlongPolicy.TRUNCATE:
            cut, longest = packing.max_length, config.overflow_max
        else:
            longest = min(config.overflow_max, packing.max_length)
            if packing.overlong is not OverlongPolicy.SKIP:
                _refuse_overlong(table, packing, config)
    # In a plan made by hand a length of 0 stands for one that is not known.
    rows, kept = None, lengths
    if not _all_within(lengths, config.min_length, longest):
        fits = (lengths >= config.min_length) & (lengths <= longest) | (lengths == 0)
        rows = np.flatnonzero(fits).astype(np.int32)
        rows = None if len(rows) == len(lengths) else rows
        kept = lengths if rows is None else lengths[rows]
    if cut is not None:
        kept = np.minimum(kept, np.int32(cut))
    return SelectedSamples(table, config, packing, rows, kept)


def _all_within(lengths: Int32[np.ndarray, " samples"], shortest: int, longest: int) -> bool:
    """A block at a time, which is then read once from memory and once from the cache."""
    blocks = (lengths[start : start + _BLOCK] for start in range(0, len(lengths), _BLOCK))
    return all(block.min() >= shortest and block.max() <= longest for block in blocks)


def _check_packing(packing: PackingConfig, config: BatchingConfig) -> None:
    if packing.max_length > config.token_budget:
        raise ValueError(
            f"a pack of {packing.max_length} tokens exceeds token_budget {config.token_budget}; "
            f"raise token_budget or lower the packing's max_length"
        )


def _refuse_overlong(table: LengthTable, packing: PackingConfig, config: BatchingConfig) -> None:
    overlong = (table.lengths > packing.max_length) & (table.lengths <= config.overflow_max)
    if not overlong.any():
        return
    row = int(np.argmax(overlong))
    why = (
        "a plan holds whole samples and cannot split them"
        if packing.overlong is OverlongPolicy.SPLIT
        else "the packing config says overlong='error'"
    )
    raise ValueError(
        f"sample {row} ({table.ids[row]!r}) has {table.lengths[row]} tokens, more than a pack's max_length "
        f"{packing.max_length}, and {why}; choose overlong='skip' or 'truncate', or raise max_length"
    )
