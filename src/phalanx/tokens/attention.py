"""Who may attend to whom in a packed row: masks by segment, and boundaries for kernels that need no mask.

NumPy arrays give NumPy arrays; JAX arrays give JAX arrays, also under `jit`. How rows are packed is in
`packing`.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Integer


def create_segment_attention_mask(
    segment_ids: Integer[Any, "*batch length"] | Sequence[Any],
    causal: bool = False,
    *,
    padding_sees_itself: bool = False,
) -> Bool[Any, "*batch length length"]:
    """True where the row's token may attend to the column's: both are of one segment, and not padding.

    With `causal` a token sees only itself and what stands before it. Padding (segment 0) sees nothing and is
    seen by nobody; `padding_sees_itself` lets each padding token see itself, for a softmax over minus
    infinity, where an empty row would give NaN.

    >>> create_segment_attention_mask([1, 1, 2, 0], causal=True).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    """
    ids: Any = segment_ids if _is_jax(segment_ids) else np.asarray(segment_ids)
    if ids.ndim < 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"segment_ids must be integers, [..., length]; got shape {ids.shape} of {ids.dtype}")
    length = ids.shape[-1]
    mask = (ids[..., :, None] == ids[..., None, :]) & (ids != 0)[..., :, None]
    if causal:
        mask = mask & np.tri(length, dtype=bool)
    if padding_sees_itself:
        mask = mask | (ids == 0)[..., :, None] & np.eye(length, dtype=bool)
    return mask


def cu_seqlens_of(
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


def _is_jax(value: object) -> bool:
    # Whoever holds a JAX array has imported JAX, so there is no need to import it here.
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)
