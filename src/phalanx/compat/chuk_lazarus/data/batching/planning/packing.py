"""Packing of `SequenceToPack` objects into `PackedSequence` objects, and packing metrics."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, PlainSerializer, model_validator

from phalanx.compat.renamed import RenamedFields, alias
from phalanx.config import FrozenModel
from phalanx.data.attention_masks import create_segment_attention_mask as _create_segment_attention_mask
from phalanx.data.collation import TOKEN_ARRAYS, pack_tokens
from phalanx.data.lengths import SkippedSample, check_unique
from phalanx.data.metrics import BatchMetrics
from phalanx.data.packing import PackingConfig as _PackingConfig, PackingMode, assign_packs
from phalanx.data.samples import Sample, as_loss_mask, as_token_ids
from phalanx.ragged import counts_to_offsets

_MODES = {"greedy": "next_fit", "hybrid": "subset_sum"}


class PackingConfig(_PackingConfig):
    """`phalanx.data.PackingConfig` with an `add_separator` field and chuk-lazarus's names for modes."""

    add_separator: bool = False
    """Insert `separator_token_id` between the segments of a row."""

    @model_validator(mode="before")
    @classmethod
    def _reject_old_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        if values.get("mode") in _MODES:
            values["mode"] = _MODES[str(values["mode"])]
        if not values.get("add_separator", True):
            values["separator_token_id"] = None
        has_token = values.get("separator_token_id") is not None
        if values.get("add_separator") and not has_token:
            raise ValueError("add_separator needs separator_token_id")
        return {**values, "add_separator": has_token}


def create_segment_attention_mask(segment_ids: Any, use_mlx: bool = False, **options: Any) -> Any:
    """Return a boolean mask [..., length, length] that restricts attention to tokens of the same segment.

    The options are those of `phalanx.data.create_segment_attention_mask`. Setting `use_mlx` raises an error.
    """
    if use_mlx:
        raise ValueError("masks are NumPy or JAX arrays: remove use_mlx, and use mlx.core.array(mask)")
    return _create_segment_attention_mask(segment_ids, **options)


_AsList = PlainSerializer(np.ndarray.tolist)
TokenIds = Annotated[np.ndarray, BeforeValidator(partial(as_token_ids, name="input_ids")), _AsList]
"""A one-dimensional array of token ids. Lists are converted."""
LossMask = Annotated[np.ndarray, BeforeValidator(partial(as_loss_mask, where="")), _AsList]
"""A one-dimensional array of zeros and ones. Lists are converted."""
IntegerRow = Annotated[np.ndarray, BeforeValidator(partial(np.asarray, dtype=np.int32)), _AsList]
"""A one-dimensional array of 32-bit integers. Lists are converted."""


class _ArrayModel(FrozenModel, arbitrary_types_allowed=True):
    """Base class for immutable models with array fields. Instances are equal if their arrays are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in type(self).model_fields
        )

    __hash__ = None  # type: ignore[assignment]


class SequenceToPack(_ArrayModel):
    """A tokenized sample, as input for `pack_sequences`."""

    sample_id: str
    input_ids: TokenIds
    """Token ids."""
    loss_mask: LossMask
    """1 where a token counts toward the loss, and 0 elsewhere."""

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @model_validator(mode="after")
    def _check_sample(self) -> "SequenceToPack":
        Sample(self.sample_id, self.input_ids, self.loss_mask)
        return self


class PackedSequence(_ArrayModel):
    """One packed row: segments numbered from 1, followed by padding with segment number 0."""

    input_ids: IntegerRow
    """Tokens, separators and padding."""
    loss_mask: IntegerRow
    """1 where a token counts toward the loss, and 0 elsewhere."""
    segment_ids: IntegerRow
    """Segment of each token. A separator belongs to the segment before it."""
    position_ids: IntegerRow
    """Position of each token in its segment."""
    cu_seqlens: IntegerRow
    """Positions at which the segments begin, followed by the end of the last one."""
    sample_ids: tuple[str, ...]
    """Sample id of each segment. The id of a sample that was split occurs more than once."""
    sample_lengths: tuple[int, ...]
    """Number of tokens in each segment, without separators."""
    sample_offsets: tuple[int, ...]
    """Index of the first token of each segment within its sample. It is 0 unless the sample was split."""

    @model_validator(mode="after")
    def _check_lengths(self) -> "PackedSequence":
        rows = {len(getattr(self, name)) for name in TOKEN_ARRAYS}
        segments = {len(self.sample_ids), len(self.sample_lengths), len(self.sample_offsets)}
        if len(rows) > 1 or segments != {len(self.cu_seqlens) - 1}:
            raise ValueError(
                f"the arrays of a row must have equal lengths, got {sorted(rows)} tokens and "
                f"{sorted(segments)} segments"
            )
        return self

    @property
    def length(self) -> int:
        """Number of tokens including padding."""
        return len(self.input_ids)

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return len(self.sample_ids)

    @property
    def total_tokens(self) -> int:
        """Number of tokens without separators and padding."""
        return sum(self.sample_lengths)

    @property
    def padding_tokens(self) -> int:
        """Number of padding tokens."""
        return self.length - int(self.cu_seqlens[-1])

    @property
    def separator_tokens(self) -> int:
        """Number of separators."""
        return self.length - self.padding_tokens - self.total_tokens

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that count toward the loss."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def efficiency(self) -> float:
        """Fraction of the row that is neither separators nor padding."""
        return self.total_tokens / self.length


class PackedSequences(list[PackedSequence]):
    """List of packed rows, with the samples that were skipped."""

    skipped: tuple[SkippedSample, ...] = ()
    """The samples that are not in any row."""


def pack_sequences(
    sequences: Sequence[SequenceToPack], config: PackingConfig | None = None, pad_token_id: int = 0
) -> PackedSequences:
    """Pack sequences into rows. Within a row, sequences are in input order.

    With `overlong="skip"`, the result's `skipped` attribute lists the samples that were left out.
    """
    config = config or PackingConfig()
    ids = [sequence.sample_id for sequence in sequences]
    check_unique(ids)
    lengths = np.array([sequence.length for sequence in sequences], np.int32)
    layout = assign_packs(lengths, config, sample_ids=ids)
    batch = pack_tokens(
        np.concatenate([np.empty(0, np.int32), *(sequence.input_ids for sequence in sequences)]),
        counts_to_offsets(lengths),
        config,
        loss_mask=np.concatenate([np.empty(0, np.int32), *(sequence.loss_mask for sequence in sequences)]),
        pad_id=pad_token_id,
        layout=layout,
    )
    packs = PackedSequences()
    for row in range(len(batch)):
        segments, boundaries = layout.slice_rows(row, row + 1), batch.cu_seqlens(row)
        width = batch.input_ids.shape[1] if config.pad_to_max else int(boundaries[-1])
        starts = np.zeros_like(segments.samples) if segments.starts is None else segments.starts
        packs.append(
            PackedSequence(
                **{name: getattr(batch, name)[row, :width] for name in TOKEN_ARRAYS},
                cu_seqlens=boundaries,
                sample_ids=tuple(ids[sample] for sample in segments.samples.tolist()),
                sample_lengths=tuple(segments.lengths.tolist()),
                sample_offsets=tuple(starts.tolist()),
            )
        )
    reason = f"longer than max_length {config.max_length}"
    packs.skipped = tuple(
        SkippedSample(sample_id=ids[sample], length=int(lengths[sample]), reason=reason)
        for sample in layout.skipped.tolist()
    )
    return packs


class PackingMetrics(RenamedFields, BatchMetrics):
    """Metrics of packed rows."""

    renamed: ClassVar = {
        "num_original_samples": "num_segments",
        "num_packed_sequences": "num_packs",
        "total_padded_length": "packed_tokens",
        "total_loss_tokens": "loss_tokens",
        "record_packed_sequence": "compute_packing_metrics(packs) counts all at once",
        "record_skip": "compute_packing_metrics(packs, num_skipped=...)",
    }
    num_packs: ClassVar = alias("num_rows")
    num_segments: ClassVar = alias("num_samples")
    packed_tokens: ClassVar = alias("padded_tokens")


def compute_packing_metrics(
    packed_sequences: Sequence[PackedSequence], num_skipped: int = 0
) -> PackingMetrics:
    """Compute the metrics of packed rows. `num_skipped` is the number of samples that are not in any row."""
    packs = packed_sequences
    return PackingMetrics(
        num_rows=len(packs),
        num_samples=sum(pack.num_segments for pack in packs),
        total_tokens=sum(pack.total_tokens for pack in packs),
        padded_tokens=sum(pack.length for pack in packs),
        loss_tokens=sum(pack.num_loss_tokens for pack in packs),
        separator_tokens=sum(pack.separator_tokens for pack in packs),
        num_skipped=num_skipped,
    )


__all__ = [
    "PackedSequence",
    "PackedSequences",
    "PackingConfig",
    "PackingMetrics",
    "PackingMode",
    "SequenceToPack",
    "compute_packing_metrics",
    "create_segment_attention_mask",
    "pack_sequences",
]
