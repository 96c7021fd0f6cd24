"""The digest of a whole plan, computed on its arrays.

Fingerprints of single sequences of batches, which say what changed, live in `fingerprint`.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from phalanx.tokens.arrays import BatchArrays
from phalanx.tokens.lengths import LengthTable

DIGEST_VERSION = 1


def digest_plan(
    settings: Any, table: LengthTable, epochs: Iterable[tuple[int, BatchArrays]], used: np.ndarray
) -> str:
    """SHA-256 of the settings and of every batch of every epoch: its samples, their lengths, its width.

    Samples that are in no batch do not count, nor does how the arrays are stored.
    """
    sha = hashlib.sha256(json.dumps([DIGEST_VERSION, settings], sort_keys=True).encode())
    rows = np.flatnonzero(used)
    everything = len(rows) == len(table)
    _texts(sha, table.ids if everything else [table.ids[row] for row in rows.tolist()])
    _numbers(sha, table.lengths[rows], "<i4")
    renumbered = np.cumsum(used) - 1
    for epoch, batches in epochs:
        sha.update(json.dumps(["epoch", epoch]).encode())
        _numbers(sha, batches.order if everything else renumbered[batches.order], "<i4")
        _numbers(sha, batches.offsets, "<i8")
        _numbers(sha, batches.bucket_ids, "<i4")
        _numbers(sha, batches.max_lens, "<i4")
        if batches.pack_offsets is not None:
            _numbers(sha, batches.pack_offsets, "<i8")
    return sha.hexdigest()


def _numbers(sha: Any, array: np.ndarray, form: str) -> None:
    # Told by their count and written in one form, so that neither storage nor neighbours can matter.
    sha.update(len(array).to_bytes(8, "little"))
    sha.update(np.ascontiguousarray(array, form))


def _texts(sha: Any, texts: Sequence[str]) -> None:
    _numbers(sha, np.fromiter(map(len, texts), np.int32, len(texts)), "<i4")
    sha.update("".join(texts).encode("utf-8", "surrogatepass"))
