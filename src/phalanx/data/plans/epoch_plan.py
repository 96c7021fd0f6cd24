"""The plan of one epoch: a sequence of batches over a table of lengths, from arrays or made by hand.

Plans of several epochs are in `plan`; how the arrays come about is in `ordering` and `sharding`.
"""

import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import overload

import numpy as np
from jaxtyping import Int32

from phalanx.config import check_type
from phalanx.data.lengths import LengthTable
from phalanx.data.plans.arrays import EpochBatches, MicrobatchSpec, batch_offsets


class EpochPlan:
    """The batches of one epoch: a sequence of `MicrobatchSpec`s, which are made when asked for.

    Made by hand from specs, whose lengths may be unknown. Plans are made from arrays, with `of`.
    """

    epoch: int
    """Its number."""
    seed: int
    """The number, drawn from the plan's seed and the epoch, that decided the order."""
    batches: EpochBatches
    """The batches as arrays."""
    table: LengthTable
    """What the rows are called, and how long they are; 0 where that is not known."""
    longest: int | None
    """Where packing truncates: to how much."""

    def __init__(
        self,
        epoch: int,
        microbatches: Iterable[MicrobatchSpec],
        seed: int = 0,
        total_samples: int | None = None,
        total_tokens: int | None = None,
    ) -> None:
        batches, table = _arrays_of(list(microbatches))
        self._set(epoch, seed, batches, table, None)
        if total_samples is not None and total_samples != self.total_samples:
            raise ValueError(
                f"epoch {epoch} has {self.total_samples} samples, not total_samples={total_samples}"
            )
        if total_tokens is not None and self.lengths.all() and total_tokens != self.total_tokens:
            raise ValueError(f"epoch {epoch} has {self.total_tokens} tokens, not total_tokens={total_tokens}")
        self._told_tokens = total_tokens or 0

    @classmethod
    def of(
        cls, epoch: int, seed: int, batches: EpochBatches, table: LengthTable, longest: int | None = None
    ) -> "EpochPlan":
        """An epoch whose batches are arrays already."""
        made = cls.__new__(cls)
        made._set(epoch, seed, batches, table, longest)
        return made

    def _set(
        self, epoch: int, seed: int, batches: EpochBatches, table: LengthTable, longest: int | None
    ) -> None:
        if epoch < 0:
            raise ValueError(f"epochs count from 0, got {epoch}")
        self.epoch, self.seed, self.batches, self.table, self.longest = epoch, seed, batches, table, longest
        self._told_tokens = 0

    def with_batches(self, batches: EpochBatches, table: LengthTable | None = None) -> "EpochPlan":
        """The same epoch with other batches, perhaps over another table."""
        made = EpochPlan.of(self.epoch, self.seed, batches, table or self.table, self.longest)
        made._told_tokens = self._told_tokens if table is not None else 0
        return made

    @property
    def microbatches(self) -> "EpochPlan":
        """The batches; the epoch itself is the sequence of them."""
        return self

    @property
    def num_microbatches(self) -> int:
        """How many batches there are."""
        return len(self.batches)

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " samples"]:
        """The samples' lengths as batched, in the batches' order; 0 where not known."""
        lengths = self.table.lengths[self.batches.order]
        return lengths if self.longest is None else np.minimum(lengths, np.int32(self.longest))

    @property
    def total_samples(self) -> int:
        """Samples in all batches."""
        return len(self.batches.order)

    @property
    def total_tokens(self) -> int:
        """Real tokens in all batches; where lengths are not known, what was told."""
        return self._told_tokens or int(self.lengths.sum(dtype=np.int64))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[MicrobatchSpec]:
        return (self._spec(index) for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> MicrobatchSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[MicrobatchSpec]: ...
    def __getitem__(self, index: int | slice) -> MicrobatchSpec | list[MicrobatchSpec]:
        places = range(len(self))[index]
        return self._spec(places) if isinstance(places, int) else [self._spec(place) for place in places]

    def _spec(self, index: int) -> MicrobatchSpec:
        batches = self.batches
        begin, end = int(batches.offsets[index]), int(batches.offsets[index + 1])
        ids = self.table.ids
        samples = tuple([str(ids[row]) for row in batches.order[begin:end].tolist()])
        packs = None
        if batches.pack_offsets is not None:
            first, last = np.searchsorted(batches.pack_offsets, (begin, end))
            cuts = (batches.pack_offsets[first : last + 1] - begin).tolist()
            packs = tuple(samples[a:b] for a, b in itertools.pairwise(cuts))
        lengths = tuple(self.lengths[begin:end].tolist())
        # Made of checked parts, so not checked again: a million samples would pay for it.
        return MicrobatchSpec.model_construct(
            samples=samples,
            packs=packs,
            bucket_id=int(batches.bucket_ids[index]),
            max_len=int(batches.max_lens[index]),
            index=index,
            lengths=lengths if 0 not in lengths else (),
        )


def _arrays_of(specs: list[MicrobatchSpec]) -> tuple[EpochBatches, LengthTable]:
    """Batches that were made by hand, and the table of their samples, in the order in which they come."""
    rows: dict[str, int] = {}
    lengths: list[int] = []
    order: list[int] = []
    for number, spec in enumerate(specs):
        check_type(spec, MicrobatchSpec, f"microbatches[{number}]")
        if not spec.samples:
            raise ValueError(f"microbatches[{number}] has no samples")
        for name, length in itertools.zip_longest(spec.samples, spec.lengths, fillvalue=0):
            row = rows.setdefault(str(name), len(lengths))
            if row == len(lengths):
                lengths.append(int(length))
            order.append(row)
    packed = [spec.packs is not None for spec in specs]
    if any(packed) != all(packed):
        raise ValueError("some microbatches have packs and some have none; a plan packs all or none")
    packs = [len(pack) for spec in specs for pack in spec.packs or ()]
    batches = EpochBatches(
        np.array(order, np.int32),
        batch_offsets(np.array([len(spec.samples) for spec in specs], np.int64)),
        np.array([spec.bucket_id for spec in specs], np.int16),
        np.array([spec.max_len for spec in specs], np.int32),
        batch_offsets(np.array(packs, np.int64)) if packs else None,
    )
    return batches, LengthTable(list(rows), np.array(lengths, np.int32)).trust()


def merge_tables(table: LengthTable, other: LengthTable) -> tuple[LengthTable, Int32[np.ndarray, " other"]]:
    """One table of both, and the row in it of each of the other's; known lengths must agree."""
    rows = {str(name): row for row, name in enumerate(table.ids)}
    lengths = table.lengths.tolist()
    moved = np.zeros(len(other), np.int32)
    for place, (name, length) in enumerate(zip(other.ids, other.lengths.tolist(), strict=True)):
        row = moved[place] = rows.setdefault(str(name), len(lengths))
        if row == len(lengths):
            lengths.append(length)
        elif lengths[row] and length and lengths[row] != length:
            raise ValueError(
                f"sample {name!r} has {lengths[row]} tokens in one epoch and {length} in another"
            )
        else:
            lengths[row] = lengths[row] or length
    return LengthTable(list(rows), np.array(lengths, np.int32)).trust(), moved
