"""Functions that choose a batch size that fits into device memory."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax

_T = TypeVar("_T")

_MEMORY_FILE = Path("/proc/meminfo")
_FRACTION = 0.25
"""Fraction of the free memory that a batch may use. The rest is reserved for XLA's copies of arrays."""
_DEFAULT_BYTES = 1 << 30
"""Number of free bytes to assume if the device does not report its free memory."""


def available_memory() -> int:
    """Return the number of free bytes on the default device (in RAM if it is a CPU), or 1 GiB if unknown."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    if device.platform == "cpu" and _MEMORY_FILE.is_file():
        for line in _MEMORY_FILE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return _DEFAULT_BYTES


def batch_size_for_memory(
    bytes_per_example: int, available: int | None = None, *, max_batch_size: int = 1024
) -> int:
    """Return the largest power-of-two batch size for which a batch fits into a quarter of the free memory.

    The result is at most `max_batch_size`. It is 1 if not even one example fits.

    Args:
        bytes_per_example: Number of bytes that one example needs.
        available: Number of free bytes. If None, the free memory of the default device is used.
        max_batch_size: Upper limit for the result.

    >>> batch_size_for_memory(1000, available=300_000)
    64
    """
    if bytes_per_example < 1 or max_batch_size < 1:
        raise ValueError(
            f"bytes_per_example and max_batch_size must be positive, got {bytes_per_example} and "
            f"{max_batch_size}"
        )
    free = available_memory() if available is None else available
    fit = min(int(free * _FRACTION) // bytes_per_example, max_batch_size)
    return 1 << max(fit.bit_length() - 1, 0)


def retry_with_smaller_batches(run: Callable[[int], _T], batch_size: int) -> tuple[_T, int]:
    """Call `run(batch_size)`, halving the batch size whenever the device runs out of memory.

    If even a batch size of 1 does not fit, the out-of-memory error is raised.

    Returns:
        The result, and the batch size that worked.
    """
    while True:
        try:
            return run(batch_size), batch_size
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or batch_size == 1:
                raise
            batch_size //= 2
