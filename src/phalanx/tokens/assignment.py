"""Bins for samples from their lengths alone, so that a plan can pack without touching tokens.

Compiled code does it where there is some; `bin_packing` gives the same bins without. What a pack holds is
decided in `pack_layout`.
"""

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Int32, Integer

from phalanx.tokens import bin_packing
from phalanx.tokens.packing_config import PackingMode

MAX_CAPACITY = 1 << 24
"""The largest bin: open bins are looked up in a table by the room they have left."""


def native() -> ModuleType | None:
    """The compiled packing, or None if it is not installed or switched off by `PHALANX_NATIVE=0`."""
    # Not through `phalanx.core.native`, which imports JAX: packing needs none, and must start at once.
    if os.environ.get("PHALANX_NATIVE", "1") == "0":
        return None
    try:
        from phalanx import _native
    except ImportError:
        return None
    return _native


def pack_lengths(
    lengths: Integer[np.ndarray, " samples"] | Sequence[Any],
    capacity: int,
    mode: PackingMode | str = PackingMode.BEST_FIT_DECREASING,
) -> Int32[np.ndarray, " samples"]:
    """The bin of each sample, so that the samples of a bin are together at most `capacity` long.

    Bins are numbered from 0 without gaps, in the order in which they are opened (in hybrid mode: by pattern).

    >>> pack_lengths([3, 4, 1], 4).tolist()
    [1, 0, 1]
    """
    chosen = PackingMode(mode)
    checked = check_lengths(lengths, capacity)
    compiled = native()
    if compiled is None:
        return bin_packing.pack(checked, capacity, chosen)
    bins = np.empty(len(checked), np.int32)
    compiled.pack_lengths(checked, capacity, str(chosen), bins)
    return bins


def check_lengths(
    lengths: Integer[np.ndarray, " samples"] | Sequence[Any], capacity: int | None = None
) -> Int32[np.ndarray, " samples"]:
    """The lengths as an array; an error names the first that is not positive or does not fit."""
    if capacity is not None and not 1 <= capacity <= MAX_CAPACITY:
        raise ValueError(f"capacity must be in 1..{MAX_CAPACITY}, got {capacity}")
    given = np.asarray(lengths)
    if given.size == 0:
        return np.empty(0, np.int32)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"lengths must be one row of integers, got shape {given.shape} of {given.dtype}")
    if given.min() < 1:
        index = int(np.argmax(given < 1))
        raise ValueError(f"lengths[{index}]: length must be a positive integer, got {given[index]}")
    limit = np.iinfo(np.int32).max if capacity is None else capacity
    if given.max() > limit:
        index = int(np.argmax(given > limit))
        raise ValueError(
            f"lengths[{index}]: {given[index]} does not fit into a bin of {limit}; "
            "leave the sample out, cut it, or raise the capacity"
        )
    return np.ascontiguousarray(given, np.int32)
