"""Attention masks and sequence boundaries for packed rows."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Integer


def create_segment_attention_mask(
    segment_ids: Integer[Any, "*batch length"] | Sequence[Any],
    *,
    causal: bool = True,
    padding_sees_itself: bool = False,
) -> Any:
    """Return a boolean mask [..., length, length] that restricts attention to tokens of the same segment.

    For NumPy arrays and lists, the result is a NumPy array. For JAX arrays, which may be traced by `jit`, it
    is a JAX array.

    Args:
        segment_ids: For each token, the number of its segment within the row, counted from 1, or 0 for
            padding. Padding must be at the end of the row. Invalid rows raise `ValueError`, except under
            `jit`, where values are unknown.
        causal: Let a token attend only to itself and to earlier tokens.
        padding_sees_itself: Let each padding token attend to itself. By default, padding tokens attend to
            nothing, so the softmax of their attention logits is NaN if masked logits are set to minus
            infinity.

    >>> create_segment_attention_mask([1, 1, 2, 0]).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    """
    # A caller that has a JAX array has imported JAX, so this module does not need to.
    jax = sys.modules.get("jax")
    is_jax = jax is not None and isinstance(segment_ids, jax.Array)
    ids: Any = segment_ids if is_jax else np.asarray(segment_ids)
    if ids.ndim < 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"segment_ids must be integers of shape [..., length], got {ids.dtype} of shape {ids.shape}"
        )
    if jax is None or not isinstance(ids, jax.core.Tracer):
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
    """Return the position at which each segment of a row starts, followed by the end of the last segment.

    Variable-length attention kernels take these boundaries instead of a mask. Padding (segment id 0) is
    excluded.

    >>> cu_seqlens([1, 1, 2, 0]).tolist()
    [0, 2, 3]
    """
    ids = np.asarray(segment_ids)
    used = int(np.count_nonzero(ids))
    if ids.ndim != 1 or (ids[:used] == 0).any():
        raise ValueError("segment_ids must be one row with padding (0) at its end only")
    begins = np.flatnonzero(np.diff(ids[:used], prepend=0))
    return np.append(begins, used).astype(np.int32)


def _check_segments(ids: Integer[np.ndarray, "*batch length"]) -> None:
    if ids.ndim == 1 and ids.size and not ids.any():
        raise ValueError(
            "segment_ids has only zeros, which are padding, so nothing could attend to anything; "
            "segments count from 1: if yours count from 0, add 1"
        )
    misplaced = (ids[..., :-1] == 0) & (ids[..., 1:] != 0)
    if misplaced.any():
        row = np.argwhere(misplaced)[0][:-1].tolist()
        raise ValueError(
            f"segment_ids{row or ''} has a 0 before another segment, but 0 is padding and belongs at the "
            f"end; segments count from 1: if yours count from 0, add 1"
        )
