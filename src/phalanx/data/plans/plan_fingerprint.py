"""Fingerprint of a plan, which changes if and only if its settings or batches change."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from phalanx.data.lengths import LengthTable
from phalanx.data.plans.epoch import EpochBatches
from phalanx.native import require_native

DIGEST_VERSION = 2


def digest_plan(
    settings: Any, table: LengthTable, epochs: Iterable[tuple[int, EpochBatches]], used: np.ndarray
) -> str:
    """Return the SHA-256 of the settings and of every batch (sample ids, sample lengths and row length).

    Samples that are not in any batch do not affect the digest, nor does the way the arrays are stored.

    Args:
        settings: JSON-compatible settings that determine the batches.
        table: Ids and lengths of all samples.
        epochs: Pairs of an epoch number and the batches of the epoch.
        used: Boolean array that says for each sample of the table whether it is in a batch.
    """
    sha = hashlib.sha256(json.dumps([DIGEST_VERSION, settings], sort_keys=True).encode())
    indices = np.flatnonzero(used)
    _update_texts(sha, [table.ids[index] for index in indices.tolist()])
    _update_array(sha, table.lengths[indices], "<i4")
    renumbered = np.cumsum(used) - 1
    for epoch, batches in epochs:
        sha.update(json.dumps(["epoch", epoch]).encode())
        _update_array(sha, renumbered[batches.order], "<i4")
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


def _update_texts(sha: Any, texts: list[str]) -> None:
    lengths = np.empty(len(texts), np.int32)
    joined = require_native("plan fingerprints").concat_strings(texts, lengths)
    if joined is None:  # a string is not ASCII
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        joined = "".join(texts).encode("utf-8", "surrogatepass")
    _update_array(sha, lengths, "<i4")
    sha.update(joined)
