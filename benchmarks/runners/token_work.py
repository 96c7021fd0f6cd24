"""What the token runners share: the lengths that all contenders are given, the options, and memory use.

Needs NumPy and the standard library only: every peer has its own virtual environment. How a runner talks to
the comparison is in `protocol.py`.
"""

import argparse
import math
import pathlib
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import protocol

EDGES = (128, 256, 512, 1024)
OVERFLOW = 2048
BUDGET = 16_384
CAPACITY = 2048
SEED = 0


def parse_arguments(description: str, works: tuple[str, ...]) -> argparse.Namespace:
    """Which work, on how many samples of which lengths."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", required=True, choices=works)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--distribution", default="lognormal", choices=["lognormal", "hard"])
    parser.add_argument("--seconds", type=float, default=0.2, help="about how long a repeat lasts, at least")
    parser.add_argument("--folder", default=".", help="where files may be written")
    return parser.parse_args()


def lengths_of(distribution: str, samples: int) -> np.ndarray:
    """Log-normal with mean about 300, clipped to 1..2048; or hard to pack: uniform from 300 to 1300."""
    rng = np.random.default_rng(SEED)
    if distribution == "hard":
        return rng.integers(300, 1301, samples).astype(np.int32)
    drawn = rng.lognormal(math.log(300) - 0.5, 1.0, samples)
    return np.clip(np.rint(drawn), 1, OVERFLOW).astype(np.int32)


def mapping_of(lengths: np.ndarray) -> dict[str, int]:
    """The lengths as {sample id: length}."""
    return {f"s{row}": length for row, length in enumerate(lengths.tolist())}


def peak_memory_mb() -> float:
    """The most memory that this process has held so far."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux a process inherits that peak from the one that started it.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / (1 << 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def packing_facts(bins: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """How many bins, beside the fewest that could do; every bin is checked."""
    fill = np.bincount(bins, weights=lengths)
    if fill.max() > CAPACITY or fill.min() < 1 or len(bins) != len(lengths):
        raise AssertionError(f"a bin holds {fill.max():g} or {fill.min():g} of {CAPACITY}")
    bound = -(-int(lengths.sum(dtype=np.int64)) // CAPACITY)
    return {
        "bins": len(fill),
        "lower_bound": bound,
        "fill": round(int(lengths.sum(dtype=np.int64)) / (len(fill) * CAPACITY), 6),
    }


def serve(
    call: Callable[[], Any], facts: Callable[[Any], dict[str, Any]], amount: int, seconds: float, peer: str
) -> None:
    """Do the work once for its facts and its memory, then once or more for every repeat.

    `amount` is what one call gets done: samples, or tokens.
    """
    before = peak_memory_mb()
    result = call()
    memory = {"memory_before_mb": round(before, 1), "memory_peak_mb": round(peak_memory_mb(), 1)}
    known = facts(result)
    del result
    protocol.serve(call, amount, seconds, peer=peer, **memory, **known)
