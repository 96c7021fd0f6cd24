"""Plain references: best-fit decreasing in C, and fairseq's batches (shuffle, sort by length, fill).

Runs in the interpreter that runs the comparison; see `token_work.py` for the options.
"""

import ctypes
import pathlib
import subprocess
import tempfile
from typing import Any

import numpy as np
import token_facts
import token_work

SOURCE = pathlib.Path(__file__).resolve().with_name("plain_reference.c")
_INT32 = np.ctypeslib.ndpointer(np.int32, 1, flags="C")
_INT64 = np.ctypeslib.ndpointer(np.int64, 1, flags="C")


def library() -> ctypes.CDLL:
    """The C file, compiled."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder, "plain_reference.so")
        subprocess.run(
            ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True
        )
        loaded = ctypes.CDLL(str(target))
    loaded.best_fit_decreasing.argtypes = [_INT32, ctypes.c_int64, ctypes.c_int32, _INT32]
    loaded.best_fit_decreasing.restype = ctypes.c_int64
    loaded.fill_by_budget.argtypes = [_INT32, ctypes.c_int64, ctypes.c_int64, _INT64]
    loaded.fill_by_budget.restype = ctypes.c_int64
    return loaded


def best_fit_decreasing(loaded: ctypes.CDLL, lengths: np.ndarray, capacity: int) -> np.ndarray:
    """The bin of each sample."""
    bins = np.empty(len(lengths), np.int32)
    if loaded.best_fit_decreasing(lengths, len(lengths), capacity, bins) < 0:
        raise MemoryError("best_fit_decreasing ran out of memory")
    return bins


def fairseq_batches(
    loaded: ctypes.CDLL, lengths: np.ndarray, budget: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows in order of length, equal ones by lot, and the end of each batch."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(lengths)).astype(np.int32)
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    ends = np.empty(len(lengths), np.int64)
    count = loaded.fill_by_budget(lengths[rows], len(rows), budget, ends)
    ends = ends[:count]
    return rows, ends


def padded_facts(lengths: np.ndarray, rows: np.ndarray, ends: np.ndarray) -> dict[str, Any]:
    """How many batches, and how much of them is real."""
    starts = np.concatenate([[0], ends[:-1]])
    longest = np.maximum.reduceat(lengths[rows], starts)
    padded = int((longest.astype(np.int64) * (ends - starts)).sum())
    return {"batches": len(ends), "efficiency": round(int(lengths.sum(dtype=np.int64)) / padded, 6)}


def main() -> None:
    arguments = token_work.parse_arguments("Plain references", ("plan", "assign"))
    lengths = token_facts.draw_lengths(arguments.distribution, arguments.samples)
    loaded = library()
    if arguments.work == "assign":
        token_work.serve(
            lambda: best_fit_decreasing(loaded, lengths, token_facts.CAPACITY),
            lambda bins: token_facts.bin_facts(bins, lengths),
            len(lengths),
            arguments.seconds,
            "plain C",
        )
    else:
        token_work.serve(
            lambda: fairseq_batches(loaded, lengths, token_facts.BUDGET, token_facts.SEED),
            lambda batches: padded_facts(lengths, *batches),
            len(lengths),
            arguments.seconds,
            "fairseq-style",
        )


if __name__ == "__main__":
    main()
