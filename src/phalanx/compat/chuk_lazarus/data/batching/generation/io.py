"""Collated batches, and classes that write and read folders of batch files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int
from pydantic import Field

from phalanx.compat.chuk_lazarus.data.batching.planning.batch_plan import BatchPlan, MicrobatchSpec
from phalanx.compat.renamed import alias
from phalanx.config import FrozenModel
from phalanx.data import batch_files as _files
from phalanx.data.collation import TOKEN_ARRAYS, NamedArrays, SampleLike, as_sample
from phalanx.data.plans.batch_plan import BatchPlan as _BatchPlan
from phalanx.data.samples import Sample, as_loss_mask

CollateFunction = Callable[[Sequence[Mapping[str, Any]], int, int], dict[str, np.ndarray]]
"""Function that takes samples, the row length and the padding token, and returns arrays by name."""


class CollatedBatch(NamedArrays, FrozenModel, arbitrary_types_allowed=True):
    """The arrays of one batch, which can also be accessed by name: `batch["input_ids"]`."""

    input_ids: Int[np.ndarray, "rows width"]
    """Token ids, padded at the end of each row."""
    loss_mask: Int[np.ndarray, "rows width"]
    """1 where a token counts toward the loss, and 0 elsewhere."""
    segment_ids: Int[np.ndarray, "rows width"] | None = None
    """For each token, the number of its sample within the row, counted from 1, or 0 for padding. None if
    samples are not packed."""
    position_ids: Int[np.ndarray, "rows width"] | None = None
    """Position of each token in its sample. None if samples are not packed."""
    extras: dict[str, np.ndarray] = Field(default_factory=dict)
    """Additional arrays that a collate function returned."""
    spec: MicrobatchSpec
    """The batch's entry in the plan."""

    sample_ids: ClassVar = alias("spec.samples")
    lengths: ClassVar = alias("spec.lengths")
    bucket_id: ClassVar = alias("spec.bucket_id")
    max_len: ClassVar = alias("spec.max_len")
    index: ClassVar = alias("spec.index")

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        named = {name: getattr(self, name) for name in TOKEN_ARRAYS}
        return {name: array for name, array in named.items() if array is not None} | self.extras


def pad_sequences(
    sequences: Sequence[Sequence[int] | Int[np.ndarray, " _"]],
    pad_value: int,
    max_length: int | None = None,
    dtype: Any = np.int32,
) -> Int[np.ndarray, "rows width"]:
    """Pad sequences to the same length. `max_length` defaults to the length of the longest sequence.

    >>> pad_sequences([[1, 2], [3]], 0).tolist()
    [[1, 2], [3, 0]]
    """
    lengths = [len(sequence) for sequence in sequences]
    longest = max(lengths, default=0)
    width = longest if max_length is None else max_length
    if longest > width:
        row = lengths.index(longest)
        raise ValueError(f"sequence {row} has {longest} tokens, more than max_length {width}")
    padded = np.full((len(sequences), width), pad_value, dtype)
    for row, length in enumerate(lengths):
        padded[row, :length] = sequences[row]
    return padded


def default_collate(
    samples: Sequence[Mapping[str, Any]], max_len: int, pad_id: int = 0
) -> dict[str, np.ndarray]:
    """Pad samples to `max_len` tokens, and return the arrays `input_ids` and `loss_mask`.

    A sample is a mapping with `input_ids` and optionally `loss_mask`. In a sample without a loss mask, every
    token counts toward the loss.
    """
    masks = [
        as_loss_mask(sample["loss_mask"], f"row {row}")
        if sample.get("loss_mask") is not None
        else np.ones(len(sample["input_ids"]), np.int8)
        for row, sample in enumerate(samples)
    ]
    return {
        "input_ids": pad_sequences([sample["input_ids"] for sample in samples], pad_id, max_len),
        "loss_mask": pad_sequences(masks, 0, max_len, np.int8),
    }


class BatchWriter(_files.BatchWriter):
    """Subclass of `phalanx.data.BatchWriter` that also accepts plans built by hand."""

    def __init__(
        self,
        plan: BatchPlan | _BatchPlan,
        samples: Mapping[str, SampleLike],
        output_dir: str | os.PathLike[str],
        collate_fn: CollateFunction | None = None,
        pad_id: int = 0,
    ) -> None:
        def convert(batch: list[Sample], width: int, pad_id: int) -> dict[str, np.ndarray]:
            assert collate_fn is not None
            rows = [{"input_ids": sample.input_ids, "loss_mask": sample.loss_mask} for sample in batch]
            return collate_fn(rows, width, pad_id)

        arrays = plan.arrays if isinstance(plan, BatchPlan) else plan
        if isinstance(plan, BatchPlan) and not arrays.table.lengths.all():
            names = [name for name in arrays.table.ids if name in samples]
            arrays = plan.to_arrays({name: as_sample(name, samples[name]).length for name in names})
        super().__init__(arrays, samples, output_dir, None if collate_fn is None else convert, pad_id)


class BatchReader(_files.BatchReader):
    """Subclass of `phalanx.data.BatchReader` that returns `CollatedBatch` and `BatchPlan` objects."""

    @property
    def plan(self) -> BatchPlan:  # type: ignore[override]
        """Batch plan that is stored in the folder."""
        return BatchPlan.from_arrays(super().plan)

    def get_batch(self, epoch: int, index: int) -> CollatedBatch:  # type: ignore[override]
        """Read one batch."""
        batch = super().get_batch(epoch, index)
        spec = batch.spec
        assert spec is not None
        return CollatedBatch(
            input_ids=batch.input_ids,
            loss_mask=batch.loss_mask,
            segment_ids=batch.segment_ids if spec.packed else None,
            position_ids=batch.position_ids if spec.packed else None,
            extras=dict(batch.columns),
            spec=MicrobatchSpec.from_spec(spec),
        )

    def iter_epoch(self, epoch: int) -> Iterator[CollatedBatch]:  # type: ignore[override]
        """Iterate over the batches of one epoch."""
        return super().iter_epoch(epoch)  # type: ignore[return-value]

    def iter_epoch_specs(self, epoch: int) -> Iterator[tuple[MicrobatchSpec, CollatedBatch]]:
        """Iterate over one epoch, yielding each batch's entry in the plan together with the batch."""
        return ((batch.spec, batch) for batch in self.iter_epoch(epoch))


__all__ = ["BatchReader", "BatchWriter", "CollatedBatch", "default_collate", "pad_sequences"]
