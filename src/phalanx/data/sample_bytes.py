"""A sample as bytes: its tokens and loss mask, its ids, and its numbers in one record.

`StreamSample` (in `types`) reads and writes them; replay buffers and files keep them as they are.
"""

import math
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

TOKEN_LIMIT = 2**31
"""Token ids lie below this: the top bit of a stored token is its loss mask."""

HAS_SEGMENTS, HAS_EPISODE = 1, 2

Integers: TypeAlias = Sequence[Any] | np.ndarray
"""Any sequence of integers. That they are such is checked on the values, and so not claimed by the type."""

RECORD = np.dtype(
    [
        ("timestamp", np.float64),
        ("reward", np.float64),
        ("difficulty", np.float64),
        ("priority", np.float64),
        ("length", np.int32),
        ("step_index", np.int32),
        ("total_steps", np.int32),
        ("replay_count", np.int32),
        ("source", np.uint8),
        ("status", np.int8),
        ("success", np.int8),
        ("flags", np.uint8),
    ]
)
"""A sample's numbers. What is not known is NaN or -1; the flags say whether there are segment ids (1) and an
episode id (2)."""

TIMESTAMP_BYTES = 8
_FORMAT = struct.Struct("=4d4iBbbB")
_HIGHEST_BYTE = 3 if sys.byteorder == "little" else 0


class PackedSample(NamedTuple):
    """A sample as bytes."""

    tokens: bytes
    """int32 each; segment ids, where there are any, behind them."""
    mask: bytes
    """A byte for each token; zeros for segment ids."""
    text: bytes
    """Sample id, dataset id and episode id, with NUL between them."""
    record: bytes
    """A `RECORD`."""


class Numbers(NamedTuple):
    """A `RECORD` as Python numbers."""

    timestamp: float
    reward: float
    difficulty: float
    priority: float
    length: int
    step_index: int
    total_steps: int
    replay_count: int
    source: int
    status: int
    success: int
    flags: int


def pack_numbers(
    timestamp: float,
    reward: float | None,
    difficulty: float | None,
    priority: float,
    length: int,
    step_index: int | None,
    total_steps: int | None,
    replay_count: int,
    source: int,
    status: int,
    success: bool | None,
    flags: int,
) -> bytes:
    """A `RECORD`; a ValueError says which number is out of bounds."""
    if difficulty is not None and not 0.0 <= difficulty <= 1.0:
        raise ValueError(f"difficulty must lie between 0 and 1, got {difficulty}")
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"reward must be a finite number, got {reward}")
    if not 0.0 <= priority < math.inf:
        raise ValueError(f"priority must be a finite number of at least 0, got {priority}")
    if (step_index or 0) < 0 or (total_steps or 0) < 0 or replay_count < 0:
        raise ValueError(
            f"step_index, total_steps and replay_count count from 0, "
            f"got {step_index}, {total_steps}, {replay_count}"
        )
    try:
        return _FORMAT.pack(
            timestamp,
            math.nan if reward is None else reward,
            math.nan if difficulty is None else difficulty,
            priority,
            length,
            -1 if step_index is None else step_index,
            -1 if total_steps is None else total_steps,
            replay_count,
            source,
            status,
            -1 if success is None else bool(success),
            flags,
        )
    except struct.error as error:
        raise ValueError(f"a number does not fit: {error}") from error


def unpack_numbers(record: bytes) -> Numbers:
    """The numbers that `pack_numbers` wrote."""
    return Numbers._make(_FORMAT.unpack(record))


def pack_tokens(values: Integers, what: str) -> bytes:
    """int32 each; a ValueError if one is no integer from 0 to 2**31 - 1."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1:
        if len(values) and not 0 <= values.min() <= values.max() < TOKEN_LIMIT:
            raise ValueError(f"{what} must be integers from 0 to {TOKEN_LIMIT - 1}, got {values.min()}")
        return values.astype(np.int32, copy=False).tobytes()
    try:
        packed = struct.pack(f"={len(values)}i", *values)
    except (TypeError, struct.error) as error:
        raise ValueError(f"{what} must be integers from 0 to {TOKEN_LIMIT - 1}: {error}") from error
    # The highest byte of a negative number is 128 or more, which is what isascii looks for.
    if not packed[_HIGHEST_BYTE::4].isascii():
        raise ValueError(f"{what} must not be negative, got {min(values)}")
    return packed


def pack_mask(values: Integers) -> bytes:
    """A byte each; a ValueError if one is neither 0 nor 1."""
    if isinstance(values, np.ndarray) and values.itemsize == 1 and values.ndim == 1:
        mask = values.tobytes()
    else:
        mask = _listed_mask(values)
    if wrong := mask.translate(None, b"\x00\x01"):
        raise ValueError(f"loss_mask must hold 0 and 1 only, got {wrong[0]}")
    return mask


def _listed_mask(values: Integers) -> bytes:
    try:
        # As a list, or the bytes of an array would be taken for its values.
        listed = values.tolist() if isinstance(values, np.ndarray) else values
        return bytes(listed)
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss_mask must hold 0 and 1 only: {error}") from error


def pack_text(sample_id: str, dataset_id: str, episode_id: str | None) -> bytes:
    """The three ids with NUL between them, which none of them may hold."""
    text = f"{sample_id}\0{dataset_id}\0{'' if episode_id is None else episode_id}"
    if text.count("\0") != 2:
        raise ValueError("ids must not hold a NUL character")
    return text.encode("utf-8", "surrogatepass")


def unpack_text(text: bytes) -> list[str]:
    """The three ids; the last is empty where there is none."""
    return text.decode("utf-8", "surrogatepass").split("\0")
