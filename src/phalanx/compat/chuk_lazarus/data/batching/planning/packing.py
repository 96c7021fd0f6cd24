"""Sequence packing of objects, and its metrics."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, PlainSerializer, model_validator

from phalanx.compat.renamed import RenamedAttributes, reject_renamed
from phalanx.config import FrozenModel
from phalanx.data.attention_masks import create_segment_attention_mask as _create_segment_attention_mask
from phalanx.data.collation import TokenBatch, pack_tokens
from phalanx.data.lengths import SkippedSample
from phalanx.data.metrics import compute_packing_metrics as _compute_packing_metrics
from phalanx.data.packing import PackingConfig as _PackingConfig, PackingMode, PackLayout, assign_packs
from phalanx.data.samples import as_loss_mask

_MODES = {"greedy": "next_fit", "hybrid": "subset_sum"}


class PackingConfig(_PackingConfig):
    """`phalanx.data.PackingConfig` with the field `add_separator` and the mode `greedy`."""

    add_separator: bool = False
    """Whether `separator_token_id` is put between two segments."""

    @model_validator(mode="before")
    @classmethod
    def _reject_old_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        if values.get("mode") in _MODES:
            values["mode"] = _MODES[str(values["mode"])]
        has_token = values.get("separator_token_id") is not None
        if values.get("add_separator") and not has_token:
            raise ValueError("add_separator needs separator_token_id")
        if not values.get("add_separator") and "add_separator" in values:
            values["separator_token_id"] = None
        values["add_separator"] = values.get("separator_token_id") is not None
        return values


def create_segment_attention_mask(segment_ids: Any, use_mlx: bool = False, **options: Any) -> Any:
    """Return the attention mask of packed segments; a row with only zeros is rejected."""
    if use_mlx:
        raise ValueError("masks are NumPy or JAX arrays: remove use_mlx, and use mlx.core.array(mask)")
    return _create_segment_attention_mask(segment_ids, **options)


def _integers(value: Any) -> Any:
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(f"must be one row of integers, got shape {array.shape} of {array.dtype}")
    if array.size and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31:
        raise ValueError("an entry does not fit into 32 bits")
    return array.astype(np.int32, copy=False)


IntegerRow = Annotated[np.ndarray, BeforeValidator(_integers), PlainSerializer(np.ndarray.tolist)]
"""A one-dimensional array of 32-bit integers; lists are converted."""


class _ArrayModel(FrozenModel, arbitrary_types_allowed=True):
    """A frozen model with arrays, compared by their contents."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in type(self).model_fields
        )

    __hash__ = None  # type: ignore[assignment]


class SequenceToPack(_ArrayModel):
    """A tokenized sample."""

    sample_id: str
    input_ids: IntegerRow
    loss_mask: IntegerRow
    """1 where the token counts in the loss."""

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @model_validator(mode="after")
    def _check_mask(self) -> "SequenceToPack":
        if len(self.input_ids) == 0:
            raise ValueError(f"sample {self.sample_id!r} has no tokens; remove it")
        if len(self.loss_mask) != len(self.input_ids):
            raise ValueError(
                f"sample {self.sample_id!r} has {len(self.input_ids)} input_ids but {len(self.loss_mask)} "
                "entries in loss_mask"
            )
        as_loss_mask(self.loss_mask, f"sample {self.sample_id!r}")
        return self


class PackedSequence(_ArrayModel):
    """One packed row: segments numbered from 1, then padding with segment 0."""

    input_ids: IntegerRow
    """Tokens, separators and padding."""
    loss_mask: IntegerRow
    """1 where a token counts in the loss; 0 for padding."""
    segment_ids: IntegerRow
    """Segment of each token; a separator belongs to the segment before it."""
    position_ids: IntegerRow
    """Position of each token in its segment."""
    cu_seqlens: IntegerRow
    """Where the segments begin and where the last one ends."""
    sample_ids: tuple[str, ...]
    """Sample of each segment; a split sample can occur more than once."""
    sample_lengths: tuple[int, ...]
    """Tokens of each segment, without separators."""
    sample_offsets: tuple[int, ...]
    """First token of each segment within its sample; 0 unless the sample was split."""

    @model_validator(mode="after")
    def _check_lengths(self) -> "PackedSequence":
        rows = {len(self.input_ids), len(self.loss_mask), len(self.segment_ids), len(self.position_ids)}
        segments = {len(self.sample_ids), len(self.sample_lengths), len(self.sample_offsets)}
        if len(rows) > 1 or segments != {len(self.cu_seqlens) - 1}:
            raise ValueError(
                f"the arrays of a row must have equal lengths, got {sorted(rows)} tokens and "
                f"{sorted(segments)} segments"
            )
        return self

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def length(self) -> int:
        """Tokens including padding."""
        return len(self.input_ids)

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return len(self.sample_ids)

    @property
    def total_tokens(self) -> int:
        """Tokens without separators and padding."""
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
        """Number of tokens that count in the loss."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def efficiency(self) -> float:
        """Fraction of the tokens that belong to samples."""
        return self.total_tokens / self.length


class PackedSequences(list[PackedSequence]):
    """A list of rows, with the samples that are in none of them."""

    def __init__(
        self,
        packs: Iterable[PackedSequence] = (),
        skipped: Sequence[SkippedSample] = (),
    ) -> None:
        super().__init__(packs)
        self.skipped = tuple(skipped)


def pack_sequences(
    sequences: Sequence[SequenceToPack], config: PackingConfig | None = None, pad_token_id: int = 0
) -> PackedSequences:
    """Pack sequences; within a row they keep their order.

    With `overlong="skip"`, the attribute `skipped` of the result lists the samples that were left out.
    """
    config = config or PackingConfig()
    ids = [sequence.sample_id for sequence in sequences]
    _reject_duplicates(ids)
    lengths = np.fromiter((len(sequence.input_ids) for sequence in sequences), np.int32, len(ids))
    layout = assign_packs(lengths, config, sample_ids=ids)
    batch = pack_tokens(
        np.concatenate([np.empty(0, np.int32), *(sequence.input_ids for sequence in sequences)]),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        config,
        loss_mask=np.concatenate([np.empty(0, np.int32), *(sequence.loss_mask for sequence in sequences)]),
        pad_id=pad_token_id,
        layout=layout,
    )
    return PackedSequences(
        (_create_sequence(batch, pack, ids, config.pad_to_max) for pack in range(len(batch))),
        _list_skipped(layout, ids, lengths, config.max_length),
    )


def _create_sequence(batch: TokenBatch, pack: int, ids: Sequence[str], pad_to_max: bool) -> PackedSequence:
    segments = batch.layout.slice_rows(pack, pack + 1)
    boundaries = batch.cu_seqlens(pack)
    width = batch.input_ids.shape[1] if pad_to_max else int(boundaries[-1])
    return PackedSequence(
        input_ids=batch.input_ids[pack, :width],
        loss_mask=batch.loss_mask[pack, :width],
        segment_ids=batch.segment_ids[pack, :width],
        position_ids=batch.position_ids[pack, :width],
        cu_seqlens=boundaries,
        sample_ids=tuple(ids[sample] for sample in segments.samples.tolist()),
        sample_lengths=tuple(segments.lengths.tolist()),
        sample_offsets=(0,) * len(segments.samples)
        if segments.starts is None
        else tuple(segments.starts.tolist()),
    )


def _list_skipped(
    layout: PackLayout, ids: Sequence[str], lengths: np.ndarray, max_length: int
) -> list[SkippedSample]:
    reason = f"longer than max_length {max_length}"
    return [
        SkippedSample(sample_id=ids[sample], length=int(lengths[sample]), reason=reason)
        for sample in layout.skipped.tolist()
    ]


def _reject_duplicates(ids: Sequence[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: dict[str, int] = {}
    for index, sample_id in enumerate(ids):
        if (first := seen.setdefault(sample_id, index)) != index:
            raise ValueError(
                f"sequences[{index}]: sample id {sample_id!r} is already used by sequences[{first}]"
            )


class PackingMetrics(RenamedAttributes, FrozenModel):
    """Metrics of packed rows."""

    renamed: ClassVar = {
        "num_original_samples": "num_segments",
        "num_packed_sequences": "num_packs",
        "total_padded_length": "packed_tokens",
        "total_loss_tokens": "loss_tokens",
        "record_packed_sequence": "compute_packing_metrics(packs) counts all at once",
        "record_skip": "compute_packing_metrics(packs, num_skipped=...)",
    }

    num_packs: int
    """Number of rows."""
    num_segments: int
    """Number of segments: samples, or pieces of split samples."""
    total_tokens: int
    """Tokens without separators and padding."""
    separator_tokens: int
    """Number of separators."""
    padding_tokens: int
    """Number of padding tokens."""
    loss_tokens: int
    """Tokens that count in the loss."""
    num_skipped: int = 0
    """Number of samples in no row."""

    @model_validator(mode="before")
    @classmethod
    def _reject_renamed(cls, given: Any) -> Any:
        return reject_renamed(cls, given, cls.renamed)

    @property
    def packed_tokens(self) -> int:
        """Tokens including separators and padding."""
        return self.total_tokens + self.separator_tokens + self.padding_tokens

    @property
    def packing_ratio(self) -> float:
        """Mean number of segments per row; 0 without rows."""
        return self.num_segments / self.num_packs if self.num_packs else 0.0

    @property
    def efficiency(self) -> float:
        """Fraction of the tokens that belong to samples."""
        return self.total_tokens / self.packed_tokens if self.num_packs else 0.0

    @property
    def loss_efficiency(self) -> float:
        """Fraction of the tokens that count in the loss."""
        return self.loss_tokens / self.packed_tokens if self.num_packs else 0.0

    def summary(self) -> dict[str, int | float]:
        """Return all values by name."""
        return {
            **self.model_dump(),
            "packed_tokens": self.packed_tokens,
            "packing_ratio": self.packing_ratio,
            "efficiency": self.efficiency,
            "loss_efficiency": self.loss_efficiency,
        }


def compute_packing_metrics(
    packed_sequences: Sequence[PackedSequence] | TokenBatch | PackLayout, num_skipped: int = 0
) -> PackingMetrics:
    """Compute the metrics of packed rows. For a layout, every token counts in the loss."""
    packed = packed_sequences
    if isinstance(packed, TokenBatch | PackLayout):
        layout, mask = (packed, None) if isinstance(packed, PackLayout) else (packed.layout, packed.loss_mask)
        metrics = _compute_packing_metrics(layout, mask)
        return PackingMetrics(
            num_packs=metrics.num_rows,
            num_segments=metrics.num_samples,
            total_tokens=metrics.total_tokens,
            separator_tokens=metrics.separator_tokens,
            padding_tokens=metrics.padding_tokens,
            loss_tokens=metrics.loss_tokens,
            num_skipped=num_skipped or metrics.num_skipped,
        )
    return PackingMetrics(
        num_packs=len(packed),
        num_segments=sum(pack.num_segments for pack in packed),
        total_tokens=sum(pack.total_tokens for pack in packed),
        separator_tokens=sum(pack.separator_tokens for pack in packed),
        padding_tokens=sum(pack.padding_tokens for pack in packed),
        loss_tokens=sum(pack.num_loss_tokens for pack in packed),
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
