"""What Gymnasium's `reset` is asked: seeds as keys, and which environments start anew.

Starting them is in `gymnasium`.
"""

import numbers
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt32, UInt64

_LARGEST = 2**64 - 1


def chance_seeds(count: int) -> UInt64[np.ndarray, " batch"]:
    """Seeds that no one chose."""
    # As Gymnasium's own seeds, of which each environment has its own.
    return np.random.default_rng(secrets.randbits(128)).integers(_LARGEST, size=count, dtype=np.uint64)


def seeds_of(seed: Any, count: int) -> tuple[UInt64[np.ndarray, " batch"], Bool[np.ndarray, " batch"]]:
    """A seed for each environment, and which of them were given: a number counts up, None gives none."""
    if seed is None:
        return np.zeros(count, np.uint64), np.zeros(count, bool)
    if isinstance(seed, numbers.Integral):
        seed = [int(seed) + index for index in range(count)]
    if not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str):
        raise TypeError(f"seed must be None, a whole number or a list of them, got {seed!r}")
    if len(seed) != count:
        raise ValueError(f"there are {count} environments and {len(seed)} seeds; give one for each")
    given = np.array([one is not None for one in seed])
    return np.array([0 if one is None else _checked(one) for one in seed], np.uint64), given


def keys_of(seeds: UInt64[np.ndarray, " batch"]) -> UInt32[np.ndarray, "batch 2"]:
    """The keys that `jax.random.PRNGKey` makes of seeds."""
    words = np.stack([seeds >> np.uint64(32), seeds & np.uint64(2**32 - 1)], axis=1)
    return words.astype(np.uint32)


def reset_mask(options: Mapping[str, Any] | None, count: int) -> Bool[np.ndarray, " batch"]:
    """Which environments a reset's options name; all without a mask."""
    options = {} if options is None else options
    if unknown := [name for name in options if name != "reset_mask"]:
        raise ValueError(f"unknown option {unknown[0]!r}; reset takes 'reset_mask' only")
    if "reset_mask" not in options:
        return np.ones(count, bool)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        kind = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
        raise TypeError(f"options['reset_mask'] must be a NumPy array of bool, got {kind}")
    if mask.shape != (count,):
        raise ValueError(f"options['reset_mask'] must have the shape {(count,)}, got {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] must name at least one environment")
    return mask.copy()


def _checked(seed: Any) -> int:
    if not isinstance(seed, numbers.Integral):
        raise TypeError(f"a seed must be a whole number or None, got {seed!r}")
    if not 0 <= int(seed) <= _LARGEST:
        raise ValueError(f"a seed must be from 0 to 2**64 - 1, got {seed}")
    return int(seed)
