"""How much fits at once: by the memory that is free, and less when that was too much.

What is done with a batch is elsewhere: searches are in `phalanx.agents`, environments in `adapters`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax

_T = TypeVar("_T")

_MEMORY_FILE = Path("/proc/meminfo")
_SHARE = 0.25
"""Of the free memory that a batch may take: the compiler keeps copies, and others need some too."""
_UNKNOWN = 1 << 30
"""Bytes that are taken to be free where nobody says."""


def adaptive_batch_size(
    bytes_per_candidate: int, available: int | None = None, *, at_most: int = 1024
) -> int:
    """How many candidates a quarter of the available bytes hold: a power of two, from 1 to `at_most`.

    Without `available` the memory is that which the default device or, on a CPU, the system says is free.

    >>> adaptive_batch_size(1000, available=300_000)
    64
    """
    if bytes_per_candidate < 1 or at_most < 1:
        raise ValueError(f"need positive numbers, got {bytes_per_candidate} bytes and at most {at_most}")
    free = available_memory() if available is None else available
    fit = min(int(free * _SHARE) // bytes_per_candidate, at_most)
    return 1 << max(fit.bit_length() - 1, 0)


def available_memory() -> int:
    """Bytes that are free on the default device."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    if device.platform == "cpu" and _MEMORY_FILE.is_file():
        for line in _MEMORY_FILE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return _UNKNOWN


def with_smaller_batches(run: Callable[[int], _T], batch_size: int) -> tuple[_T, int]:
    """What `run` gives for a batch size, halved as often as memory runs out, and the size it ran with."""
    while True:
        try:
            return run(batch_size), batch_size
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or batch_size == 1:
                raise
            batch_size //= 2
