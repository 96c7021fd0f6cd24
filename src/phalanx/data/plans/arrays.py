"""The batches of one epoch as arrays: rows in order, where each batch begins, its bucket and its width.

How they come about is in `ordering` and `sharding`; what the rows are called is in the length table.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int, Int16, Int32, Int64
from pydantic import Field, model_validator

from phalanx.config import FrozenModel
from phalanx.data.plans.buckets import BucketId
from phalanx.native import native_module

_BATCHES_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class EpochBatches:
    """Batch b holds the rows `order[offsets[b]:offsets[b + 1]]`, each padded to `max_lens[b]`."""

    order: Int32[np.ndarray, " samples"]
    """Rows of the length table."""
    offsets: Int64[np.ndarray, " batches_and_one"]
    """Where each batch begins in `order`, and the end."""
    bucket_ids: Int16[np.ndarray, " batches"]
    """The bucket of each batch's longest row."""
    max_lens: Int32[np.ndarray, " batches"]
    """How long each batch's rows are once padded."""
    pack_offsets: Int64[np.ndarray, " packs_and_one"] | None = None
    """Where each pack begins in `order`, and the end; a pack lies in one batch. None without packing."""

    def __len__(self) -> int:
        return len(self.bucket_ids)

    @property
    def counts(self) -> Int64[np.ndarray, " batches"]:
        """Samples in each batch."""
        return np.diff(self.offsets)

    @property
    def pack_starts(self) -> Int64[np.ndarray, " batches_and_one"]:
        """Where each batch begins among the packs (without packing: among the samples), and the end."""
        if self.pack_offsets is None:
            return self.offsets
        return np.searchsorted(self.pack_offsets, self.offsets).astype(np.int64)

    @property
    def row_counts(self) -> Int64[np.ndarray, " batches"]:
        """Rows of each padded batch: its packs, or its samples."""
        return np.diff(self.pack_starts)

    @property
    def padded_tokens(self) -> Int64[np.ndarray, " batches"]:
        """Tokens of each batch, padding included."""
        return self.row_counts * self.max_lens

    def take(self, batches: Int[np.ndarray, " chosen"]) -> "EpochBatches":
        """These batches, in this order; one may be named more than once."""
        offsets = batch_offsets(self.counts[batches])
        order = np.empty(int(offsets[-1]), self.order.dtype)
        if (compiled := native_module()) is not None:
            starts, ends = self.offsets[batches], self.offsets[1:][batches]
            compiled.gather_runs(np.ascontiguousarray(self.order), starts, ends, order)
            return self._taken(batches, order, offsets)
        # Some batches at a time, so that the samples' places need no memory of their size.
        for start in range(0, len(batches), _BATCHES_AT_ONCE):
            places, starts = ragged_take(self.offsets, batches[start : start + _BATCHES_AT_ONCE])
            order[offsets[start] : offsets[start] + starts[-1]] = self.order[places]
        return self._taken(batches, order, offsets)

    def _taken(
        self,
        batches: Int[np.ndarray, " chosen"],
        order: Int32[np.ndarray, " rows"],
        offsets: Int64[np.ndarray, " chosen_and_one"],
    ) -> "EpochBatches":
        pack_offsets = None
        if self.pack_offsets is not None:
            packs, _ = ragged_take(self.pack_starts, batches)
            pack_offsets = batch_offsets(np.diff(self.pack_offsets)[packs])
        return EpochBatches(order, offsets, self.bucket_ids[batches], self.max_lens[batches], pack_offsets)

    def where(self, kept: Bool[np.ndarray, " batches"]) -> "EpochBatches":
        """The batches that the mask names; itself when it names all."""
        return self if kept.all() else self.take(np.flatnonzero(kept))

    def sums(self, values: Int64[np.ndarray, " samples"]) -> Int64[np.ndarray, " batches"]:
        """The sum over each batch of a value for each sample in `order`."""
        running = np.zeros(len(values) + 1, np.int64)
        np.cumsum(values, out=running[1:])
        return np.diff(running[self.offsets])


def ragged_take(
    offsets: Int64[np.ndarray, " groups_and_one"], groups: Int[np.ndarray, " chosen"]
) -> tuple[Int64[np.ndarray, " places"], Int64[np.ndarray, " chosen_and_one"]]:
    """The places of the chosen groups' members, group after group, and where each group begins among them."""
    counts = offsets[groups + 1] - offsets[groups]
    starts = batch_offsets(counts)
    places = np.repeat(offsets[groups] - starts[:-1], counts)
    places += np.arange(starts[-1])
    return places, starts


def batches_of(
    order: Int32[np.ndarray, " samples"],
    counts: Int64[np.ndarray, " batches"],
    bucket_ids: Int16[np.ndarray, " batches"],
    max_lens: Int32[np.ndarray, " batches"],
) -> EpochBatches:
    """Batches from how many samples each takes of the order."""
    return EpochBatches(order, batch_offsets(counts), bucket_ids, max_lens)


def batch_offsets(counts: Int64[np.ndarray, " groups"]) -> Int64[np.ndarray, " groups_and_one"]:
    """Where each group begins, and the end, from how many each holds."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


class MicrobatchSpec(FrozenModel):
    """Which samples, how they are packed, and how long the rows are."""

    samples: tuple[str, ...]
    """Ids, in the order of the rows."""
    packs: tuple[tuple[str, ...], ...] | None = None
    """With packing: the ids of each row, which together are `samples`. None: one sample a row."""
    bucket_id: BucketId
    """The bucket of its longest row."""
    max_len: int = Field(ge=1)
    """How long each row is once padded."""
    index: int = Field(ge=0)
    """Its place in the epoch of the plan that it came from."""
    lengths: tuple[int, ...] = ()
    """Length of each sample as batched; empty in a plan made by hand, where they are not known."""

    @model_validator(mode="after")
    def _parts_agree(self) -> "MicrobatchSpec":
        if self.packs is not None and sum(self.packs, ()) != self.samples:
            raise ValueError("packs must hold the same samples as `samples`, in the same order")
        if self.lengths and len(self.lengths) != len(self.samples):
            raise ValueError(f"{len(self.samples)} samples but {len(self.lengths)} lengths")
        return self

    @property
    def batch_size(self) -> int:
        """Samples in the batch."""
        return len(self.samples)

    @property
    def num_packs(self) -> int:
        """Rows of the padded batch: packs, or samples."""
        return len(self.samples) if self.packs is None else len(self.packs)

    @property
    def token_count(self) -> int:
        """Real tokens."""
        return sum(self.lengths)

    @property
    def padded_token_count(self) -> int:
        """Real tokens and padding."""
        return self.num_packs * self.max_len
