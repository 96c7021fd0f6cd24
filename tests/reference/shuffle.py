"""Reference implementations of shuffling and of gathering runs, in NumPy."""

import numpy as np


def random_order(count: int, bits: np.random.PCG64, values: np.ndarray | None = None) -> np.ndarray:
    """Return the permutation of `phalanx.data.plans.epoch.random_order`, and reorder `values` in place."""
    low = np.uint64((1 << max(count - 1, 0).bit_length()) - 1)
    keys = np.asarray(bits.random_raw(count), np.uint64) & ~low | np.arange(count, dtype=np.uint64)
    order = (np.sort(keys) & low).astype(np.int32)
    if values is not None:
        values[:] = values[order]
    return order


def gather_runs(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the runs `values[start:end]`, end to end."""
    return np.concatenate([values[:0], *(values[a:b] for a, b in zip(starts, ends, strict=True))])
