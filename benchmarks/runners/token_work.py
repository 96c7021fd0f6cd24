"""What the token runners share: the options, and how a work is served with its facts and its memory.

The lengths that all contenders are given are in `token_facts.py`, in the folder above; how a runner talks to
the comparison is in `protocol.py`. NumPy and the standard library only.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import protocol
from measuring.memory import peak_mebibytes


def parse_arguments(description: str, works: tuple[str, ...]) -> argparse.Namespace:
    """Which work, on how many samples of which lengths."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", required=True, choices=works)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--distribution", default="lognormal", choices=["lognormal", "hard"])
    parser.add_argument("--seconds", type=float, default=0.2, help="about how long a repeat lasts, at least")
    parser.add_argument("--folder", default=".", help="where files may be written")
    return parser.parse_args()


def mapping_of(lengths: np.ndarray) -> dict[str, int]:
    """The lengths as {sample id: length}."""
    return {f"s{row}": length for row, length in enumerate(lengths.tolist())}


def serve(
    call: Callable[[], Any], facts: Callable[[Any], dict[str, Any]], amount: int, seconds: float, peer: str
) -> None:
    """Do the work once for its facts and its memory, then once or more for every repeat.

    `amount` is what one call gets done: samples, or tokens.
    """
    before = peak_mebibytes()
    result = call()
    memory = {"memory_before_mb": round(before, 1), "memory_peak_mb": round(peak_mebibytes(), 1)}
    known = facts(result)
    del result
    protocol.serve(call, amount, seconds, peer=peer, **memory, **known)
