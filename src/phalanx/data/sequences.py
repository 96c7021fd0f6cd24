"""Packs as objects: sequences with ids in, packed sequences out, and how well they are packed.

Bins are chosen in `layout`; whole sets of packs as arrays, and masks, are in `packed_batch`.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, PlainSerializer, model_validator

from phalanx.config import FrozenModel
from phalanx.data.lengths import SkippedSample, as_loss_mask
from phalanx.data.moved import HasMoved, refuse_moved
from phalanx.data.packed_batch import PackedBatch, pack_tokens
from phalanx.data.packing import PackLayout, assign_packs
from phalanx.data.packing_config import PackingConfig


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
"""A row of 32-bit integers; lists are taken too, and JSON has lists."""


class _Rows(FrozenModel, arbitrary_types_allowed=True):
    """A frozen model with arrays in it, equal to another when the arrays are."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in type(self).model_fields
        )

    __hash__ = None  # type: ignore[assignment]


class SequenceToPack(_Rows):
    """A tokenized sample."""

    sample_id: str
    """Its name."""
    input_ids: IntegerRow
    """Its tokens."""
    loss_mask: IntegerRow
    """1 where the token counts in the loss, 0 where not."""

    @property
    def length(self) -> int:
        """How many tokens there are."""
        return len(self.input_ids)

    @model_validator(mode="after")
    def _mask_fits(self) -> "SequenceToPack":
        if len(self.input_ids) == 0:
            raise ValueError(f"sample {self.sample_id!r} has no tokens; leave it out")
        if len(self.loss_mask) != len(self.input_ids):
            raise ValueError(
                f"sample {self.sample_id!r} has {len(self.input_ids)} input_ids but {len(self.loss_mask)} "
                "entries in loss_mask; it needs one for each"
            )
        as_loss_mask(self.loss_mask, f"sample {self.sample_id!r}")
        return self


class PackedSequence(_Rows):
    """One pack: segments numbered from 1, then padding with segment 0."""

    input_ids: IntegerRow
    """Tokens, separators and padding."""
    loss_mask: IntegerRow
    """1 where a token counts in the loss; 0 on padding."""
    segment_ids: IntegerRow
    """The segment of each token; a separator belongs to the segment that it ends."""
    position_ids: IntegerRow
    """The position of each token, counted from 0 in each segment."""
    cu_seqlens: IntegerRow
    """Where the segments begin, and where the last one ends, for kernels that take no mask."""
    sample_ids: tuple[str, ...]
    """The sample of each segment; a sample that was split can come more than once."""
    sample_lengths: tuple[int, ...]
    """The tokens of each segment, without separators."""
    sample_offsets: tuple[int, ...]
    """The first token of each segment within its sample: 0 but for later pieces of a split sample."""

    @model_validator(mode="after")
    def _rows_agree(self) -> "PackedSequence":
        rows = {len(self.input_ids), len(self.loss_mask), len(self.segment_ids), len(self.position_ids)}
        segments = {len(self.sample_ids), len(self.sample_lengths), len(self.sample_offsets)}
        if len(rows) > 1 or segments != {len(self.cu_seqlens) - 1}:
            raise ValueError(
                f"a pack's rows must be equally long, got {sorted(rows)} and segments {sorted(segments)}"
            )
        return self

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def length(self) -> int:
        """Tokens of the row, padding included."""
        return len(self.input_ids)

    @property
    def num_segments(self) -> int:
        """Segments in the pack."""
        return len(self.sample_ids)

    @property
    def total_tokens(self) -> int:
        """Tokens of samples: no separators, no padding."""
        return sum(self.sample_lengths)

    @property
    def padding_tokens(self) -> int:
        """Tokens behind the last segment."""
        return self.length - int(self.cu_seqlens[-1])

    @property
    def separator_tokens(self) -> int:
        """Tokens between segments."""
        return self.length - self.padding_tokens - self.total_tokens

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that count in the loss."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def efficiency(self) -> float:
        """Tokens of samples over all tokens of the row."""
        return self.total_tokens / self.length


class PackedSequences(list[PackedSequence]):
    """A list of packs that also says which samples are in none of them, and why."""

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
    """Pack sequences; within a pack they keep the order in which they were given.

    Samples that are left out (`overlong="skip"`) are listed in the result's `skipped`.
    """
    config = config or PackingConfig()
    ids = [sequence.sample_id for sequence in sequences]
    _refuse_duplicates(ids)
    lengths = np.fromiter((len(sequence.input_ids) for sequence in sequences), np.int32, len(ids))
    layout = assign_packs(lengths, config, sample_ids=ids)
    batch = pack_tokens(
        np.concatenate([np.empty(0, np.int32), *(sequence.input_ids for sequence in sequences)]),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        config,
        loss_mask=np.concatenate([np.empty(0, np.int32), *(sequence.loss_mask for sequence in sequences)]),
        pad_token_id=pad_token_id,
        layout=layout,
    )
    return PackedSequences(
        (_pack_at(batch, pack, ids) for pack in range(len(batch))), _report(layout, ids, lengths)
    )


def _pack_at(batch: PackedBatch, pack: int, ids: Sequence[str]) -> PackedSequence:
    segments = batch.layout.take(pack, pack + 1)
    boundaries = batch.cu_seqlens(pack)
    width = batch.input_ids.shape[1] if batch.layout.config.pad_to_max else int(boundaries[-1])
    return PackedSequence(
        input_ids=batch.input_ids[pack, :width],
        loss_mask=batch.loss_mask[pack, :width],
        segment_ids=batch.segment_ids[pack, :width],
        position_ids=batch.position_ids[pack, :width],
        cu_seqlens=boundaries,
        sample_ids=tuple(ids[sample] for sample in segments.samples.tolist()),
        sample_lengths=tuple(segments.lengths.tolist()),
        sample_offsets=tuple(segments.starts.tolist()),
    )


def _report(layout: PackLayout, ids: Sequence[str], lengths: np.ndarray) -> list[SkippedSample]:
    reason = f"longer than a pack's max_length {layout.config.max_length}"
    return [
        SkippedSample(sample_id=ids[sample], length=int(lengths[sample]), reason=reason)
        for sample in layout.skipped.tolist()
    ]


def _refuse_duplicates(ids: Sequence[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: dict[str, int] = {}
    for index, sample_id in enumerate(ids):
        if (first := seen.setdefault(sample_id, index)) != index:
            raise ValueError(
                f"sequences[{index}]: sample id {sample_id!r} is already that of sequences[{first}]"
            )


class PackingMetrics(HasMoved, FrozenModel):
    """How well sequences are packed."""

    moved: ClassVar = {
        "num_original_samples": "num_segments",
        "num_packed_sequences": "num_packs",
        "total_padded_length": "packed_tokens",
        "total_loss_tokens": "loss_tokens",
        "record_packed_sequence": "compute_packing_metrics(packs) counts all at once",
        "record_skip": "compute_packing_metrics(packs, num_skipped=...)",
    }

    num_packs: int
    """Packed rows."""
    num_segments: int
    """Segments in them: samples, and pieces of split samples."""
    total_tokens: int
    """Tokens of samples."""
    separator_tokens: int
    """Tokens between segments."""
    padding_tokens: int
    """Tokens behind the last segment of each pack."""
    loss_tokens: int
    """Tokens that count in the loss."""
    num_skipped: int = 0
    """Samples that are in no pack."""

    @model_validator(mode="before")
    @classmethod
    def _names_ours(cls, given: Any) -> Any:
        return refuse_moved(cls, given, cls.moved)

    @property
    def packed_tokens(self) -> int:
        """All tokens of the rows."""
        return self.total_tokens + self.separator_tokens + self.padding_tokens

    @property
    def packing_ratio(self) -> float:
        """Rows without packing over rows with it; 0 when there are none."""
        return self.num_segments / self.num_packs if self.num_packs else 0.0

    @property
    def efficiency(self) -> float:
        """Tokens of samples over all tokens of the rows."""
        return self.total_tokens / self.packed_tokens if self.num_packs else 0.0

    @property
    def loss_efficiency(self) -> float:
        """Tokens that count in the loss over all tokens of the rows."""
        return self.loss_tokens / self.packed_tokens if self.num_packs else 0.0

    def summary(self) -> dict[str, int | float]:
        """Every figure by its name, as numbers."""
        return {
            **self.model_dump(),
            "packed_tokens": self.packed_tokens,
            "packing_ratio": self.packing_ratio,
            "efficiency": self.efficiency,
            "loss_efficiency": self.loss_efficiency,
        }


def compute_packing_metrics(
    packed_sequences: Sequence[PackedSequence] | PackedBatch | PackLayout, num_skipped: int = 0
) -> PackingMetrics:
    """The figures of a set of packs; a layout knows no loss mask, so there every token counts in the loss.

    Layouts know how many samples were skipped; of a list of packs it can be told.
    """
    packed = packed_sequences
    if isinstance(packed, PackedBatch | PackLayout):
        layout = packed if isinstance(packed, PackLayout) else packed.layout
        tokens, spans = int(layout.lengths.sum(dtype=np.int64)), int(layout.spans.sum(dtype=np.int64))
        return PackingMetrics(
            num_packs=len(layout),
            num_segments=len(layout.samples),
            total_tokens=tokens,
            separator_tokens=spans - tokens,
            padding_tokens=len(layout) * layout.width - spans,
            loss_tokens=tokens if isinstance(packed, PackLayout) else int(np.count_nonzero(packed.loss_mask)),
            num_skipped=num_skipped or len(layout.skipped),
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
