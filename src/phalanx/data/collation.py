"""Collation of samples into padded or packed NumPy arrays."""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Int8, Int32, Int64, Integer

from phalanx.data.attention_masks import cu_seqlens
from phalanx.data.packing import PackingConfig, PackLayout, assign_packs
from phalanx.data.plans.batch_plan import BatchSpec
from phalanx.data.samples import (
    IGNORE_INDEX,
    Sample,
    TokenDataset,
    as_loss_mask,
    as_token_ids,
    concatenate_samples,
    token_arrays,
)
from phalanx.native import require_native
from phalanx.ragged import counts_to_offsets, expand_ranges

SampleLike: TypeAlias = Sample | Mapping[str, Any]
"""A `Sample`, or a mapping with `input_ids` and optionally `loss_mask` or `labels`. Other lists of numbers in
a mapping are columns and must have one entry per token; values of other types are ignored."""

CollateFn: TypeAlias = Callable[[list[Sample], int, int], Mapping[str, np.ndarray]]
"""Function that creates arrays for a batch that is not packed. Its arguments are the samples, the row length
and the padding token. It returns arrays by name, with one row per sample. They are added to the columns of
the batch, except that `input_ids` and `loss_mask` replace the default arrays."""

TOKEN_ARRAYS = ("input_ids", "loss_mask", "segment_ids", "position_ids")


class NamedArrays(abc.ABC):
    """Base class for batches whose arrays can be accessed by name, such as `batch["input_ids"]`."""

    @abc.abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""

    def __getitem__(self, name: str) -> np.ndarray:
        arrays = self.arrays()
        if name not in arrays:
            raise KeyError(f"the batch has no array {name!r}; it has {', '.join(arrays)}")
        return arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays()

    def keys(self) -> list[str]:
        """Return the names of the arrays."""
        return list(self.arrays())


@dataclasses.dataclass(frozen=True, eq=False)
class TokenBatch(NamedArrays):
    """A batch of tokens as NumPy arrays. Rows are packed or have one sample each.

    `batch["input_ids"]` returns an array by name, and `model(**batch)` passes all arrays to a model.
    """

    input_ids: Int32[np.ndarray, "rows width"]
    """Token ids, including padding."""
    loss_mask: Int8[np.ndarray, "rows width"]
    """1 for tokens that count toward the loss, and 0 for all other tokens."""
    segment_ids: Int32[np.ndarray, "rows width"]
    """For each token, the number of its segment within the row, counted from 1, or 0 for padding. A segment
    is a sample or a part of a split sample."""
    position_ids: Int32[np.ndarray, "rows width"]
    """Position of each token within its segment, counted from 0. Padding also has position 0."""
    layout: PackLayout
    """Assignment of samples to rows."""
    columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Additional arrays [rows, ...] by name."""
    spec: BatchSpec | None = None
    """`BatchSpec` from which these arrays were created. None if they were created without a plan."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in TOKEN_ARRAYS} | dict(self.columns)

    @property
    def real_tokens(self) -> int:
        """Number of tokens, excluding padding."""
        return int(np.count_nonzero(self.segment_ids))

    @property
    def padded_tokens(self) -> int:
        """Number of tokens, including padding."""
        return self.input_ids.size

    @property
    def sample_rows(self) -> tuple[int, ...]:
        """Row index of each segment. A segment is a sample or a part of a split sample."""
        return tuple(self.layout.segment_rows.tolist())

    def pad_rows(self, num_rows: int) -> "TokenBatch":
        """Return the batch with padding rows added, so that it has `num_rows` rows.

        Token 0 is used as padding. To pad with a different token, use the `num_rows` argument of `collate`
        instead.
        """
        if num_rows < len(self):
            raise ValueError(f"the batch has {len(self)} rows, more than num_rows={num_rows}")
        padded = {name: _add_rows(array, num_rows - len(self)) for name, array in self.arrays().items()}
        tokens: dict[str, Any] = {name: padded.pop(name) for name in TOKEN_ARRAYS}
        return dataclasses.replace(self, columns=padded, **tokens)

    def labels(self) -> Int64[np.ndarray, "rows width"]:
        """Return the labels for next-token prediction, with -100 for tokens that are excluded from the loss.

        Labels are not shifted: the label at a position is compared with the model's prediction at the
        previous position. The label of the first token of a segment is -100, because the segment has no
        earlier position that could predict the token.
        """
        counted = (self.loss_mask != 0) & (self.position_ids != 0)
        return np.where(counted, self.input_ids, IGNORE_INDEX).astype(np.int64)

    def cu_seqlens(self, row: int) -> Int32[np.ndarray, " boundaries"]:
        """Return the start of each segment in a row, followed by the end of the last segment."""
        return cu_seqlens(self.segment_ids[row])

    def varlen(self, *, align: int = 1, pad_id: int = 0) -> dict[str, Any]:
        """Concatenate all segments without row padding, for variable-length attention kernels.

        Args:
            align: Pad every segment to a multiple of this length. For context parallelism over n devices, set
                it to 2 * n.
            pad_id: Padding token for the alignment.

        Returns:
            Dictionary with `input_ids`, `labels` and `position_ids` [tokens]; the columns with one entry per
            token [tokens, ...], which are 0 in the alignment padding; `cu_seqlens`, the cumulative lengths of
            the segments, starting with 0 and without alignment padding; and `max_seqlen`, the length of the
            longest segment, including alignment padding. If `align` is not 1, the dictionary also contains
            `cu_seqlens_padded`, the cumulative lengths including alignment padding.
        """
        real = self.segment_ids > 0
        positions = self.position_ids[real]
        starts = np.flatnonzero(positions == 0)
        lengths = np.diff(np.append(starts, len(positions)))
        padded = -(-lengths // align) * align
        offsets, padded_offsets = map(counts_to_offsets, (lengths, padded))
        _, targets = expand_ranges(padded_offsets[:-1], lengths)
        # Positions continue in the padding, so that no new sample seems to begin there.
        arrays: dict[str, Any] = {
            "position_ids": np.arange(padded_offsets[-1]) - np.repeat(padded_offsets[:-1], padded)
        }
        columns = [item for item in self.columns.items() if item[1].shape[:2] == real.shape]
        for name, values, filler in (
            ("input_ids", self.input_ids.astype(np.int64), pad_id),
            ("labels", self.labels(), IGNORE_INDEX),
            *((name, values, 0) for name, values in columns),
        ):
            shape = (int(padded_offsets[-1]), *values.shape[2:])
            arrays[name] = np.full(shape, filler, values.dtype)
            arrays[name][targets] = values[real]
        arrays |= {"cu_seqlens": offsets.astype(np.int32), "max_seqlen": int(padded.max(initial=0))}
        return arrays if align == 1 else arrays | {"cu_seqlens_padded": padded_offsets.astype(np.int32)}


def collate(
    spec: BatchSpec,
    samples: Mapping[str, SampleLike] | None = None,
    *,
    pad_id: int = 0,
    num_rows: int | None = None,
    collate_fn: CollateFn | None = None,
) -> TokenBatch:
    """Create the arrays of a batch.

    Args:
        spec: Batch, as yielded by the iterator of a plan.
        samples: Mapping from ids to samples. A `TokenDataset` is fastest, because it needs no loop over
            samples. If the mapping has a `take` method, it is called with the ids of the batch and must
            return a mapping with these samples. May be None for a streaming plan whose batches contain their
            samples.
        pad_id: Padding token.
        num_rows: Number of rows in the result. Missing rows are filled with padding, so that all batches with
            the same row length have the same shape. If None, no rows are added.
        collate_fn: Function that creates additional arrays for batches that are not packed.

    Raises:
        ValueError: If a sample is missing or does not have the planned length.
    """
    if collate_fn is not None and spec.packed:
        raise ValueError("collate_fn cannot be used with packing")
    if isinstance(samples, TokenDataset) and spec.samples is None and collate_fn is None:
        return fill_rows(_dataset_tokens(spec, samples), spec.layout, pad_id, num_rows, spec)
    found = _find_samples(spec, samples)
    tokens, loss_mask, offsets, columns = concatenate_samples(found)
    _check_planned_lengths(spec, np.diff(offsets))
    source = ConcatenatedTokens(tokens, loss_mask, offsets[:-1], columns)
    batch = fill_rows(source, spec.layout, pad_id, num_rows, spec)
    if collate_fn is None:
        return batch
    arrays: dict[str, Any] = dict(collate_fn(found, spec.max_length, pad_id))
    for name, array in arrays.items():
        if len(array) != len(found):
            raise ValueError(
                f"batch {spec.index}: collate_fn returned {len(array)} rows of {name} for {len(found)} "
                f"samples"
            )
        if len(array) < len(batch):
            arrays[name] = _add_rows(array, len(batch) - len(array))
    replaced = {name: arrays.pop(name) for name in ("input_ids", "loss_mask") if name in arrays}
    return dataclasses.replace(batch, columns={**batch.columns, **arrays}, **replaced)


def _add_rows(array: np.ndarray, count: int) -> np.ndarray:
    """Return an array with `count` rows of zeros added at the end."""
    return np.concatenate([array, np.zeros((count, *array.shape[1:]), array.dtype)])


class ConcatenatedTokens(NamedTuple):
    """Tokens of several samples in one array, with the position of each segment."""

    tokens: Int32[np.ndarray, " tokens"]
    loss_mask: Int8[np.ndarray, " tokens"] | None
    """Loss mask of the tokens. None if every token counts toward the loss."""
    starts: Int64[np.ndarray, " segments"]
    """Position in `tokens` at which each segment of a `PackLayout` starts, in the order of the layout."""
    columns: Mapping[str, np.ndarray]
    """Additional arrays [tokens, ...] by name, with one entry per token."""


def fill_rows(
    source: ConcatenatedTokens,
    layout: PackLayout,
    pad_id: int,
    num_rows: int | None = None,
    spec: BatchSpec | None = None,
) -> TokenBatch:
    """Copy tokens into rows according to a layout.

    Args:
        source: Tokens to copy.
        layout: Assignment of segments to rows.
        pad_id: Padding token.
        num_rows: Number of rows in the result, including padding rows. Defaults to the number of rows in the
            layout.
        spec: `BatchSpec` of the batch, which is stored in the result. None if there is no plan.
    """
    used = len(layout)
    rows = used if num_rows is None else num_rows
    if rows < used:
        raise ValueError(f"the batch has {used} rows, more than num_rows={rows}")
    shape = (rows, layout.width)
    dtypes = {"input_ids": np.int32, "loss_mask": np.int8, "segment_ids": np.int32, "position_ids": np.int32}
    arrays: dict[str, Any] = {name: np.empty(shape, dtype) for name, dtype in dtypes.items()}
    for name, array in arrays.items():
        array[used:] = pad_id if name == "input_ids" else 0
    require_native("sequence packing").fill_packs(
        source.tokens,
        source.loss_mask,
        source.starts,
        layout.lengths,
        layout.offsets,
        layout.separator_token_id,
        pad_id,
        *(array[:used] for array in arrays.values()),
    )
    copies_loss = layout.separator_token_id is not None and layout.separator_loss
    if copies_loss or source.columns:
        first = layout.segment_rows * layout.width + layout.segment_positions
    if copies_loss:
        # A truncated sample fills its row, so no separator follows it.
        last = (first + layout.lengths - 1)[layout.spans > layout.lengths]
        arrays["loss_mask"].flat[last + 1] = arrays["loss_mask"].flat[last]
    columns: dict[str, np.ndarray] = {}
    if source.columns:
        targets, sources = (expand_ranges(starts, layout.lengths)[1] for starts in (first, source.starts))
        for name, values in source.columns.items():
            column = np.zeros((rows * layout.width, *values.shape[1:]), values.dtype)
            column[targets] = values[sources]
            columns[name] = column.reshape(*shape, *values.shape[1:])
    return TokenBatch(**arrays, layout=layout, columns=columns, spec=spec)


def pack_tokens(
    tokens: Integer[np.ndarray, " tokens"],
    offsets: Integer[np.ndarray, " samples_and_one"] | Sequence[int],
    config: PackingConfig,
    *,
    loss_mask: Integer[np.ndarray, " entries"] | Bool[np.ndarray, " entries"] | None = None,
    columns: Mapping[str, np.ndarray] | None = None,
    pad_id: int = 0,
    layout: PackLayout | None = None,
) -> TokenBatch:
    """Pack samples that are stored as one concatenated array.

    Args:
        tokens: Concatenated token ids of all samples.
        offsets: Position in `tokens` at which each sample starts, followed by the end of the last one.
        config: Packing settings.
        loss_mask: 1 for tokens that count toward the loss. If None, every token counts.
        columns: Additional arrays [tokens, ...] by name, which are packed in the same way.
        pad_id: Padding token.
        layout: Assignment of samples to rows. If it covers only some of the samples, only its rows are
            created. If None, a layout for all samples is computed.

    >>> batch = pack_tokens(np.arange(1, 9), [0, 3, 7, 8], PackingConfig(max_length=4))
    >>> batch.input_ids.tolist(), batch.segment_ids.tolist()
    ([[4, 5, 6, 7], [1, 2, 3, 8]], [[1, 1, 1, 1], [1, 1, 1, 2]])
    """
    source, layout = _check_tokens(tokens, offsets, config, loss_mask, columns, layout)
    return fill_rows(source, layout, pad_id)


def iter_packed_batches(
    tokens: Integer[np.ndarray, " tokens"],
    offsets: Integer[np.ndarray, " samples_and_one"] | Sequence[int],
    config: PackingConfig,
    packs_per_batch: int,
    *,
    loss_mask: Integer[np.ndarray, " entries"] | Bool[np.ndarray, " entries"] | None = None,
    columns: Mapping[str, np.ndarray] | None = None,
    pad_id: int = 0,
    layout: PackLayout | None = None,
) -> Iterator[TokenBatch]:
    """Pack samples like `pack_tokens`, but yield batches of `packs_per_batch` rows to limit memory use."""
    if packs_per_batch < 1:
        raise ValueError(f"packs_per_batch must be at least 1, got {packs_per_batch}")
    source, layout = _check_tokens(tokens, offsets, config, loss_mask, columns, layout)

    def batches() -> Iterator[TokenBatch]:
        for first in range(0, len(layout), packs_per_batch):
            part = layout.slice_rows(first, min(first + packs_per_batch, len(layout)))
            begin = int(layout.offsets[first])
            starts = source.starts[begin : begin + len(part.samples)]
            yield fill_rows(source._replace(starts=starts), part, pad_id)

    return batches()


def _check_tokens(
    tokens: Integer[np.ndarray, " tokens"],
    offsets: Integer[np.ndarray, " samples_and_one"] | Sequence[int],
    config: PackingConfig,
    loss_mask: Integer[np.ndarray, " entries"] | Bool[np.ndarray, " entries"] | None,
    columns: Mapping[str, np.ndarray] | None,
    layout: PackLayout | None,
) -> tuple[ConcatenatedTokens, PackLayout]:
    """Validate the arguments of `pack_tokens`, and compute the layout if it is None."""
    bounds = np.ascontiguousarray(offsets, np.int64)
    lengths = np.diff(bounds)
    if not len(bounds) or bounds[0] < 0 or bounds[-1] > len(tokens) or lengths.min(initial=0) < 0:
        raise ValueError(
            f"offsets must ascend between 0 and {len(tokens)}, the number of tokens, with one entry more "
            f"than there are samples"
        )
    columns = columns or {}
    for name, values in {**columns, "loss_mask": loss_mask}.items():
        if values is not None and len(values) != len(tokens):
            raise ValueError(f"{name} must have {len(tokens)} entries, one per token, got {len(values)}")
    fits = np.can_cast(tokens.dtype, np.int32)
    ids = np.ascontiguousarray(tokens, np.int32) if fits else as_token_ids(tokens, "tokens")
    if layout is None:
        layout = assign_packs(lengths, config)
    if layout.samples.max(initial=-1) >= len(lengths):
        raise ValueError(
            f"the layout has sample {layout.samples.max()}, but there are only {len(lengths)} samples"
        )
    starts = bounds[layout.samples] + (0 if layout.starts is None else layout.starts)
    if np.any(starts + layout.lengths > bounds[layout.samples + 1]):
        raise ValueError("the layout was computed for samples of other lengths")
    mask = None if loss_mask is None else as_loss_mask(loss_mask, "tokens")
    return ConcatenatedTokens(ids, mask, starts, columns), layout


def _dataset_tokens(spec: BatchSpec, dataset: TokenDataset) -> ConcatenatedTokens:
    assert spec.table is not None
    indices = dataset.index_map(spec.table)[spec.layout.samples]
    if (indices < 0).any():
        raise _missing_sample(spec.sample_ids[int(np.argmax(indices < 0))])
    _check_planned_lengths(spec, np.diff(dataset.offsets)[indices])
    starts = dataset.offsets[indices]
    if spec.layout.starts is not None:
        starts = starts + spec.layout.starts
    return ConcatenatedTokens(dataset.tokens, dataset.loss_mask, starts, dataset.columns)


def _find_samples(spec: BatchSpec, samples: Mapping[str, SampleLike] | None) -> list[Sample]:
    if spec.samples is not None:
        return [spec.samples[index] for index in spec.layout.samples.tolist()]
    if samples is None:
        raise TypeError("collate needs the samples of a batch plan: collate(spec, samples)")
    if hasattr(samples, "take"):
        samples = samples.take(spec.sample_ids)
    found = []
    for name in spec.sample_ids:
        if name not in samples:
            raise _missing_sample(name)
        found.append(as_sample(name, samples[name]))
    return found


def _check_planned_lengths(spec: BatchSpec, lengths: Int64[np.ndarray, " segments"]) -> None:
    """Raise `ValueError` if a sample of a batch does not have its planned length.

    In a streaming plan, planned lengths are after truncation, so samples may be longer.
    """
    if spec.table is None:
        planned = spec.layout.lengths
        matches = lengths >= planned
    else:
        planned = spec.table.lengths[spec.layout.samples]
        matches = lengths == planned
    if not matches.all():
        wrong = int(np.argmin(matches))
        raise ValueError(
            f"sample {spec.sample_ids[wrong]!r} has {lengths[wrong]} tokens, but {planned[wrong]} were "
            f"planned: the dataset, the tokenizer or a setting such as add_eos differs from the one that the "
            f"lengths were counted with; use the same ones, or count the lengths and build the plan again"
        )


def as_sample(sample_id: str, value: SampleLike) -> Sample:
    """Return a `Sample` unchanged, or create one from the `input_ids` and the columns of a mapping."""
    if isinstance(value, Sample):
        return value
    if not isinstance(value, Mapping):
        return Sample(sample_id, value.input_ids, value.loss_mask)
    if "input_ids" not in value:
        raise ValueError(f"sample {sample_id!r} has no input_ids; it has {', '.join(value)}")
    try:
        ids, mask, columns = token_arrays(value)
    except ValueError as error:
        raise ValueError(f"sample {sample_id!r}: {error}") from error
    return Sample(sample_id, ids, mask, columns)


def _missing_sample(sample_id: str) -> ValueError:
    return ValueError(f"the plan has sample {sample_id!r}, but the dataset does not")
