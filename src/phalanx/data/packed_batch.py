"""Packs as arrays: tokens, loss mask, segments and positions in rows, and who may attend to whom.

Which sample stands where is decided in `layout`; packs as objects with ids are in `sequences`.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int8, Int32, Int64, Integer

from phalanx.data.lengths import as_loss_mask
from phalanx.data.packing import PackLayout, assign_packs
from phalanx.data.packing_config import PackingConfig
from phalanx.native import native_module


@dataclasses.dataclass(frozen=True, eq=False)
class PackedBatch:
    """Packs of one width. Segments are numbered from 1 in each row; padding has segment 0 and loss 0."""

    input_ids: Int32[np.ndarray, "packs width"]
    loss_mask: Int8[np.ndarray, "packs width"]
    segment_ids: Int32[np.ndarray, "packs width"]
    position_ids: Int32[np.ndarray, "packs width"]
    """Counted from 0 in each segment."""
    layout: PackLayout
    """Which samples stand where."""

    def __len__(self) -> int:
        return len(self.layout)

    def cu_seqlens(self, pack: int) -> Int32[np.ndarray, " boundaries"]:
        """Where the pack's segments begin, and where the last one ends; padding lies behind it."""
        spans = self.layout.take(pack, pack + 1).spans
        return np.concatenate([[0], np.cumsum(spans)]).astype(np.int32)

    def flat_cu_seqlens(self) -> Int32[np.ndarray, " boundaries"]:
        """Where sequences begin once the rows are laid end to end; each row's padding is one by itself."""
        packs, width = self.input_ids.shape
        if packs * width > np.iinfo(np.int32).max:
            raise ValueError(f"{packs} packs of {width} exceed 32 bits; take fewer packs at once")
        changes = np.diff(self.segment_ids, axis=1, prepend=-1) != 0
        return np.append(np.flatnonzero(changes), packs * width).astype(np.int32)


def pack_tokens(
    tokens: Integer[np.ndarray, " tokens"],
    offsets: Integer[np.ndarray, " samples_and_one"] | Sequence[int],
    config: PackingConfig,
    *,
    loss_mask: Integer[np.ndarray, " entries"] | Bool[np.ndarray, " entries"] | None = None,
    pad_token_id: int = 0,
    layout: PackLayout | None = None,
) -> PackedBatch:
    """Pack samples that lie end to end: sample `i` is `tokens[offsets[i]:offsets[i + 1]]`.

    Without a loss mask every token counts. A `layout` of these samples' lengths, or a part of one, saves the
    assignment. Rows are `max_length` wide, or with `pad_to_max=False` as wide as the fullest.

    >>> batch = pack_tokens(np.arange(1, 9), [0, 3, 7, 8], PackingConfig(max_length=4))
    >>> batch.input_ids.tolist(), batch.segment_ids.tolist()
    ([[4, 5, 6, 7], [1, 2, 3, 8]], [[1, 1, 1, 1], [1, 1, 1, 2]])
    """
    source = _check(tokens, offsets, config, loss_mask, layout)
    return _build(source, source.layout, pad_token_id)


def iter_packed_batches(
    tokens: Integer[np.ndarray, " tokens"],
    offsets: Integer[np.ndarray, " samples_and_one"] | Sequence[int],
    config: PackingConfig,
    packs_per_batch: int,
    *,
    loss_mask: Integer[np.ndarray, " entries"] | Bool[np.ndarray, " entries"] | None = None,
    pad_token_id: int = 0,
    layout: PackLayout | None = None,
) -> Iterator[PackedBatch]:
    """What `pack_tokens` gives, some packs at a time, so that only one batch need be in memory."""
    if packs_per_batch < 1:
        raise ValueError(f"packs_per_batch must be at least 1, got {packs_per_batch}")
    source = _check(tokens, offsets, config, loss_mask, layout)
    packs = len(source.layout)
    return (
        _build(source, source.layout.take(first, min(first + packs_per_batch, packs)), pad_token_id)
        for first in range(0, packs, packs_per_batch)
    )


def create_segment_attention_mask(
    segment_ids: Integer[Any, "*batch length"] | Sequence[Any],
    use_mlx: bool = False,
    *,
    causal: bool = True,
    padding_sees_itself: bool = False,
) -> Bool[Any, "*batch length length"]:
    """True where the row's token may attend to the column's: both are of one segment, and not padding.

    NumPy arrays and lists give a NumPy array; JAX arrays give a JAX array, also under `jit`.

    A token sees only itself and what stands before it, unless `causal` is False. Segments count from 1 and
    padding, segment 0, stands at the end of a row; segments that count from 0 are refused, except under
    `jit`, where values cannot be looked at. Padding sees nothing and is seen by nobody; `padding_sees_itself`
    lets each padding token see itself, for a softmax over minus infinity, where an empty row would give NaN.
    `use_mlx` is chuk-lazarus's: a mask of MLX is `mlx.core.array(mask)`.

    >>> create_segment_attention_mask([1, 1, 2, 0]).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    """
    if use_mlx:
        raise ValueError("masks are NumPy's or JAX's: leave use_mlx out, and make mlx.core.array(mask)")
    ids: Any = segment_ids if _is_jax(segment_ids) else np.asarray(segment_ids)
    if ids.ndim < 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"segment_ids must be integers, [..., length]; got shape {ids.shape} of {ids.dtype}")
    if not _is_traced(ids):
        _check_segments(np.asarray(ids))
    length = ids.shape[-1]
    mask = (ids[..., :, None] == ids[..., None, :]) & (ids != 0)[..., :, None]
    if causal:
        mask = mask & np.tri(length, dtype=bool)
    if padding_sees_itself:
        mask = mask | (ids == 0)[..., :, None] & np.eye(length, dtype=bool)
    return mask


def cu_seqlens(
    segment_ids: Integer[np.ndarray, " length"] | Sequence[int],
) -> Int32[np.ndarray, " boundaries"]:
    """Where the segments of one row begin, and where the last one ends; padding lies behind the last.

    This is what kernels for sequences of unequal length take instead of a mask.

    >>> cu_seqlens_of([1, 1, 2, 0]).tolist()
    [0, 2, 3]
    """
    ids = np.asarray(segment_ids)
    used = int(np.count_nonzero(ids))
    if ids.ndim != 1 or (ids[:used] == 0).any():
        raise ValueError("segment_ids must be one row whose padding (0) stands at its end")
    begins = np.flatnonzero(np.diff(ids[:used], prepend=0))
    return np.append(begins, used).astype(np.int32)


class _Source(NamedTuple):
    """Samples that have been checked."""

    tokens: Int32[np.ndarray, " tokens"]
    loss: Int8[np.ndarray, " tokens"] | None
    bounds: Int64[np.ndarray, " samples_and_one"]
    layout: PackLayout


def _check(
    tokens: Integer[np.ndarray, " tokens"],
    offsets: Integer[np.ndarray, " samples_and_one"] | Sequence[int],
    config: PackingConfig,
    loss_mask: Integer[np.ndarray, " entries"] | Bool[np.ndarray, " entries"] | None,
    layout: PackLayout | None,
) -> _Source:
    bounds = _check_offsets(offsets, len(tokens))
    if loss_mask is not None and len(loss_mask) != len(tokens):
        raise ValueError(
            f"loss_mask has {len(loss_mask)} entries for {len(tokens)} tokens; it needs one for each"
        )
    if layout is None:
        layout = assign_packs(np.diff(bounds), config)
    elif layout.config != config:
        raise ValueError("the layout was made with another packing config")
    elif len(layout.samples) and layout.samples.max() >= len(bounds) - 1:
        raise ValueError(f"the layout names sample {layout.samples.max()}, but there are {len(bounds) - 1}")
    elif np.any(bounds[layout.samples] + layout.starts + layout.lengths > bounds[layout.samples + 1]):
        raise ValueError("the layout was made for other lengths than these samples have")
    loss = None if loss_mask is None else as_loss_mask(loss_mask, "tokens")
    return _Source(_as_int32(tokens), loss, bounds, layout)


def _build(source: _Source, layout: PackLayout, pad_token_id: int) -> PackedBatch:
    config = layout.config
    shape = (len(layout), layout.width)
    batch = PackedBatch(
        input_ids=np.empty(shape, np.int32),
        loss_mask=np.empty(shape, np.int8),
        segment_ids=np.empty(shape, np.int32),
        position_ids=np.empty(shape, np.int32),
        layout=layout,
    )
    starts = source.bounds[layout.samples] + layout.starts
    compiled = native_module()
    if compiled is None:
        _fill(batch, source.tokens, source.loss, starts, pad_token_id)
    else:
        compiled.fill_packs(
            source.tokens,
            source.loss,
            starts,
            layout.lengths,
            layout.offsets,
            config.separator,
            pad_token_id,
            batch.input_ids,
            batch.loss_mask,
            batch.segment_ids,
            batch.position_ids,
        )
    if config.separator is not None and config.separator_loss:
        spans = layout.spans
        row, in_row = _places(layout, spans)
        # (A sample that was cut fills its row, so that no separator ends it.)
        separated = spans > layout.lengths
        last = (row * layout.width + in_row + layout.lengths - 1)[separated]
        batch.loss_mask.flat[last + 1] = batch.loss_mask.flat[last]
    return batch


def _places(
    layout: PackLayout, spans: Int32[np.ndarray, " segments"]
) -> tuple[Int64[np.ndarray, " segments"], Int64[np.ndarray, " segments"]]:
    """The row of each segment, and its first place in that row."""
    row = np.repeat(np.arange(len(layout)), np.diff(layout.offsets))
    before = np.cumsum(spans, dtype=np.int64) - spans
    return row, before - before[layout.offsets[:-1]][row]


def _fill(
    batch: PackedBatch,
    tokens: Int32[np.ndarray, " tokens"],
    loss: Int8[np.ndarray, " tokens"] | None,
    starts: Int64[np.ndarray, " segments"],
    pad_token_id: int,
) -> None:
    """What the compiled `fill_packs` does, in NumPy: one entry for each place that is not padding."""
    layout, width = batch.layout, batch.input_ids.shape[1]
    for array, padding in (
        (batch.input_ids, pad_token_id),
        (batch.loss_mask, 0),
        (batch.segment_ids, 0),
        (batch.position_ids, 0),
    ):
        array.fill(padding)
    spans = layout.spans
    row, in_row = _places(layout, spans)
    position = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans, dtype=np.int64) - spans, spans)
    place = np.repeat(row * width + in_row, spans) + position
    batch.position_ids.flat[place] = position
    batch.segment_ids.flat[place] = np.repeat(np.arange(len(spans)) - layout.offsets[row] + 1, spans)
    real = position < np.repeat(layout.lengths, spans)
    source = (np.repeat(starts, spans) + position)[real]
    batch.input_ids.flat[place[real]] = tokens[source]
    batch.loss_mask.flat[place[real]] = 1 if loss is None else loss[source]
    if layout.config.separator is not None:
        batch.input_ids.flat[place[~real]] = layout.config.separator


def _as_int32(values: Integer[np.ndarray, " tokens"]) -> Int32[np.ndarray, " tokens"]:
    if len(values) and not np.can_cast(values.dtype, np.int32):
        limits = np.iinfo(np.int32)
        outside = (values > limits.max) | ((values < limits.min) if values.dtype.kind == "i" else False)
        if outside.any():
            index = int(np.argmax(outside))
            raise ValueError(f"tokens[{index}] = {values[index]} does not fit into 32 bits")
    return np.ascontiguousarray(values, np.int32)


def _check_offsets(
    offsets: Integer[np.ndarray, " samples_and_one"] | Sequence[int], tokens: int
) -> Int64[np.ndarray, " samples_and_one"]:
    bounds = np.ascontiguousarray(offsets, np.int64)
    if len(bounds) == 0 or bounds[0] < 0 or bounds[-1] > tokens:
        raise ValueError(
            f"offsets must lie in 0..{tokens}, the number of tokens, one more than there are samples"
        )
    backward = np.diff(bounds) < 0
    if backward.any():
        index = int(np.argmax(backward))
        raise ValueError(f"offsets[{index + 1}] = {bounds[index + 1]} lies before offsets[{index}]")
    return bounds


def _check_segments(ids: Integer[np.ndarray, "*batch length"]) -> None:
    misplaced = (ids[..., :-1] == 0) & (ids[..., 1:] != 0)
    if misplaced.any():
        row = np.argwhere(misplaced)[0][:-1].tolist()
        raise ValueError(
            f"segment_ids{row or ''} has a 0 before another segment, but 0 is padding and stands at the end; "
            f"segments count from 1: if these count from 0, add 1"
        )


def _is_traced(value: object) -> bool:
    return _is_jax(value) and isinstance(value, sys.modules["jax"].core.Tracer)


def _is_jax(value: object) -> bool:
    # Whoever holds a JAX array has imported JAX, so there is no need to import it here.
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)
