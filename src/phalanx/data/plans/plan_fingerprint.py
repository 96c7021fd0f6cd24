"""Fingerprint of a plan, which changes if and only if its settings or batches change."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from phalanx.data.lengths import LengthTable, RangeIds
from phalanx.data.plans.epoch import EpochBatches
from phalanx.native import require_native

DIGEST_VERSION = 2
_BLOCK = 1 << 15


def digest_plan(
    settings: Any, table: LengthTable, epochs: Iterable[tuple[int, EpochBatches]], used: np.ndarray
) -> str:
    """Return one SHA-256 digest of the settings and all batches (sample ids, sample lengths, row lengths).

    The digest does not depend on how the arrays are stored, or on samples that are not in any batch.

    Args:
        settings: JSON-compatible settings that determine the batches.
        table: Ids and lengths of all samples.
        epochs: Pairs of an epoch number and the batches of the epoch.
        used: Boolean mask of the samples in the table that are in a batch.
    """
    sha = hashlib.sha256(json.dumps([DIGEST_VERSION, settings], sort_keys=True).encode())
    renumbered = None
    if not used.all():
        rows, renumbered = np.flatnonzero(used), np.cumsum(used) - 1
        table = LengthTable([table.ids[row] for row in rows.tolist()], table.lengths[rows])
    _update_texts(sha, table.ids)
    _update_array(sha, table.lengths, "<i4")
    for epoch, batches in epochs:
        sha.update(json.dumps(["epoch", epoch]).encode())
        _update_array(sha, batches.order if renumbered is None else renumbered[batches.order], "<i4")
        _update_array(sha, batches.offsets, "<i8")
        _update_array(sha, batches.bucket_ids, "<i4")
        _update_array(sha, batches.max_lens, "<i4")
        if batches.pack_offsets is not None:
            _update_array(sha, batches.pack_offsets, "<i8")
    return sha.hexdigest()


def _update_array(sha: Any, array: np.ndarray, dtype: str) -> None:
    # The byte order is fixed, so that the digest does not depend on how the array is stored. The size is
    # included, so that dividing the same elements differently between two arrays gives a different digest.
    sha.update(len(array).to_bytes(8, "little"))
    sha.update(np.ascontiguousarray(array, dtype))


def _update_texts(sha: Any, texts: Sequence[str]) -> None:
    if isinstance(texts, RangeIds):
        _update_numbers(sha, len(texts))
        return
    lengths = np.empty(len(texts), np.int32)
    names = texts if isinstance(texts, list) else list(texts)
    joined = require_native("plan fingerprints").concat_strings(names, lengths)
    if joined is None:  # not all of them are plain `str` objects
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        joined = "".join(texts).encode("utf-8", "surrogatepass")
    _update_array(sha, lengths, "<i4")
    sha.update(joined)


def _update_numbers(sha: Any, count: int) -> None:
    """Update the hash with the strings "0", "1", ... up to `count - 1`, without creating `count` strings."""
    bounds = [0, *itertools.takewhile(lambda power: power < count, (10**n for n in range(1, 20))), count]
    ranges = [(low, high) for low, high in itertools.pairwise(bounds) if low < high]
    sha.update(count.to_bytes(8, "little"))
    for digits, (low, high) in enumerate(ranges, 1):
        sha.update(np.full(high - low, digits, "<i4"))
    for digits, (low, high) in enumerate(ranges, 1):
        for start in range(low, high, _BLOCK):
            rest = np.arange(start, min(start + _BLOCK, high), dtype=np.int32)
            characters = np.empty((len(rest), digits), np.uint8)
            for column in range(digits - 1, -1, -1):
                rest, characters[:, column] = np.divmod(rest, np.int32(10))
            characters += ord("0")
            sha.update(characters)
