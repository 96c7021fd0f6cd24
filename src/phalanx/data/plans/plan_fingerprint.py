"""Fingerprints: a short name for batches that changes when, and only when, the batches do.

What differs between two plans is told by `builder.compare_plans`.
"""

import asyncio
import hashlib
import itertools
import json
import os
import weakref
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from phalanx.config import FrozenModel, load_model, save_model
from phalanx.data.lengths import LengthTable, RangeIds
from phalanx.data.plans.arrays import EpochBatches, MicrobatchSpec
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.token_budget_sampler import BatchSpec
from phalanx.native import native_module

FINGERPRINT_VERSION = 1
DIGEST_VERSION = 1
SHORT = 16
"""Characters of the short form."""
_ROWS_AT_ONCE = 1 << 15
_BEGUN: "weakref.WeakKeyDictionary[LengthTable, dict[bytes, Any]]" = weakref.WeakKeyDictionary()
"""Of every table that was hashed: by the settings, the hash before the first epoch."""


class BatchFingerprint(FrozenModel):
    """What a sequence of batches is, in hashes, so that a later run can say whether and how it differs."""

    fingerprint: str
    """The first 16 characters of `full_hash`, for eyes."""
    full_hash: str
    """SHA-256 of all below."""
    num_batches: int
    """Batches."""
    total_samples: int
    """Samples in them."""
    total_tokens: int
    """Real tokens in them."""
    config_hash: str
    """The settings that made the batches; empty if none were given."""
    membership_hash: str
    """Which samples there are, in whatever order."""
    order_hash: str
    """Which sample is in which row of which pack of which batch."""
    lengths_hash: str
    """How long the samples and the padded rows are."""
    version: int = FINGERPRINT_VERSION
    """Changes when the same batches would get other hashes."""

    def matches(self, other: "BatchFingerprint") -> bool:
        """Whether both are of the same batches, made by the same settings."""
        return self.full_hash == other.full_hash

    def matches_config(self, other: "BatchingConfig | BatchFingerprint") -> bool:
        """Whether these settings, or those of another fingerprint, made the batches."""
        wanted = other.config_hash if isinstance(other, BatchFingerprint) else other.digest()
        return self.config_hash == wanted

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file."""
        save_fingerprint(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "BatchFingerprint":
        """Read a JSON file."""
        return load_fingerprint(path)


def compute_batch_fingerprint(
    batches: Iterable[BatchSpec | MicrobatchSpec],
    config: BatchingConfig | None = None,
    n_batches: int | None = None,
) -> BatchFingerprint:
    """The fingerprint of batches in their order, or of the first `n_batches` of them.

    The settings that made them count too, where given.
    """
    found = itertools.islice(batches, n_batches)
    return _fingerprint(found, "" if config is None else config.digest())


async def compute_batch_fingerprint_async(
    batches: AsyncIterable[BatchSpec | MicrobatchSpec],
    config: BatchingConfig | None = None,
    n_batches: int | None = None,
) -> BatchFingerprint:
    """`compute_batch_fingerprint` of what an asynchronous iterator gives, read no further than needed."""
    found: list[BatchSpec | MicrobatchSpec] = []
    if n_batches != 0:
        async for batch in batches:
            found.append(batch)
            if len(found) == n_batches:
                break
    return compute_batch_fingerprint(found, config)


def verify_batch_fingerprint(
    batches: Iterable[BatchSpec | MicrobatchSpec],
    expected: BatchFingerprint | str,
    config: BatchingConfig | None = None,
    n_batches: int | None = None,
) -> tuple[bool, str | None]:
    """(True, None), or (False, what changed), the first cause named first.

    Asked in this order: the config (if given), the membership (other samples), the order (same samples,
    arranged otherwise), the lengths (same arrangement, other lengths). `n_batches` is what the fingerprint
    was computed with. Of a fingerprint given as text, the short form or the whole hash, only whether it is
    the same can be told, and the config must be given if it was then.
    """
    if isinstance(expected, str):
        short = compute_batch_fingerprint(batches, config, n_batches)
        if expected in (short.fingerprint, short.full_hash):
            return True, None
        return False, f"the fingerprint is {short.fingerprint}, not {expected}"
    batches = itertools.islice(batches, n_batches)
    if expected.version != FINGERPRINT_VERSION:
        return False, (
            f"the fingerprint has version {expected.version}, this is version {FINGERPRINT_VERSION}; "
            f"compute it again"
        )
    if config is not None and not expected.matches_config(config):
        return False, "config changed: the batches were made with other settings than the ones given"
    found = _fingerprint(batches, expected.config_hash)
    if found.membership_hash != expected.membership_hash:
        return False, (
            f"membership changed: expected {expected.total_samples} samples, found {found.total_samples}"
            + ("; the ids differ" if found.total_samples == expected.total_samples else "")
        )
    if found.order_hash != expected.order_hash:
        return False, (
            f"order changed: the same {found.total_samples} samples, arranged otherwise "
            f"(expected {expected.num_batches} batches, found {found.num_batches})"
        )
    if found.lengths_hash != expected.lengths_hash:
        return False, (
            f"lengths changed: the same samples in the same batches, but expected {expected.total_tokens} "
            f"tokens and found {found.total_tokens}, or rows padded otherwise"
        )
    if found.full_hash != expected.full_hash:
        return False, "the expected fingerprint does not agree with itself; it was changed by hand or damaged"
    return True, None


def save_fingerprint(fingerprint: BatchFingerprint, path: str | os.PathLike[str]) -> None:
    """Write a JSON file, whole or not at all."""
    save_model(fingerprint, path)


def load_fingerprint(path: str | os.PathLike[str]) -> BatchFingerprint:
    """Read a JSON file that `save_fingerprint` wrote."""
    return load_model(BatchFingerprint, path, "a batch fingerprint")


async def save_fingerprint_async(fingerprint: BatchFingerprint, path: str | os.PathLike[str]) -> None:
    """`save_fingerprint` without blocking the event loop."""
    await asyncio.to_thread(save_fingerprint, fingerprint, path)


async def load_fingerprint_async(path: str | os.PathLike[str]) -> BatchFingerprint:
    """`load_fingerprint` without blocking the event loop."""
    return await asyncio.to_thread(load_fingerprint, path)


def digest_plan(
    settings: Any, table: LengthTable, epochs: Iterable[tuple[int, EpochBatches]], used: np.ndarray
) -> str:
    """SHA-256 of the settings and of every batch of every epoch: its samples, their lengths, its width.

    Samples that are in no batch do not count, nor does how the arrays are stored.
    """
    begun = json.dumps([DIGEST_VERSION, settings], sort_keys=True).encode()
    everything = bool(used.all())
    # What comes before the epochs is the same for every plan of a table by the same settings: kept with it.
    known = _BEGUN.setdefault(table, {}).get(begun) if everything else None
    sha = hashlib.sha256(begun) if known is None else known.copy()
    if known is None:
        rows = np.flatnonzero(used)
        _texts(sha, table.ids if everything else [table.ids[row] for row in rows.tolist()])
        _numbers(sha, table.lengths if everything else table.lengths[rows], "<i4")
        if everything:
            _BEGUN[table][begun] = sha.copy()
    renumbered = None if everything else np.cumsum(used) - 1
    for epoch, batches in epochs:
        sha.update(json.dumps(["epoch", epoch]).encode())
        _numbers(sha, batches.order if renumbered is None else renumbered[batches.order], "<i4")
        _numbers(sha, batches.offsets, "<i8")
        _numbers(sha, batches.bucket_ids, "<i4")
        _numbers(sha, batches.max_lens, "<i4")
        if batches.pack_offsets is not None:
            _numbers(sha, batches.pack_offsets, "<i8")
    return sha.hexdigest()


def _fingerprint(batches: Iterable[BatchSpec | MicrobatchSpec], config_hash: str) -> BatchFingerprint:
    order, lengths = hashlib.sha256(), hashlib.sha256()
    members: list[str] = []
    num_batches = total_tokens = 0
    for batch in batches:
        if isinstance(batch, BatchSpec):
            ids, width, rows = batch.sample_ids, batch.max_length, None
        else:
            ids, width = batch.samples, batch.max_len
            rows = None if batch.packs is None else [len(pack) for pack in batch.packs]
        # JSON lists cannot be mistaken for one another, whatever commas and quotes the ids hold.
        order.update(_line([list(ids), rows]))
        lengths.update(_line([width, batch.token_count, list(batch.lengths)]))
        members.extend(ids)
        num_batches += 1
        total_tokens += batch.token_count
    hashes = {
        "config_hash": config_hash,
        "membership_hash": hashlib.sha256(_line(sorted(members))).hexdigest(),
        "order_hash": order.hexdigest(),
        "lengths_hash": lengths.hexdigest(),
    }
    full = hashlib.sha256(_line([FINGERPRINT_VERSION, hashes])).hexdigest()
    return BatchFingerprint(
        fingerprint=full[:SHORT],
        full_hash=full,
        num_batches=num_batches,
        total_samples=len(members),
        total_tokens=total_tokens,
        **hashes,
    )


def _line(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"


def _numbers(sha: Any, array: np.ndarray, form: str) -> None:
    # Told by their count and written in one form, so that neither storage nor neighbors can matter.
    sha.update(len(array).to_bytes(8, "little"))
    sha.update(np.ascontiguousarray(array, form))


def _texts(sha: Any, texts: Sequence[str]) -> None:
    if isinstance(texts, RangeIds):
        _row_numbers(sha, len(texts))
        return
    lengths, joined = _joined(texts)
    _numbers(sha, lengths, "<i4")
    sha.update(joined)


def _joined(texts: Sequence[str]) -> tuple[Int32[np.ndarray, " texts"], bytes]:
    """The length of each text, and all of them end to end."""
    if (compiled := native_module()) is not None:
        lengths = np.empty(len(texts), np.int32)
        names = texts if isinstance(texts, list) else list(texts)
        if (joined := compiled.concat_strings(names, lengths)) is not None:
            return lengths, joined
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    return lengths, "".join(texts).encode("utf-8", "surrogatepass")


def _row_numbers(sha: Any, count: int) -> None:
    """`_texts` of "0", "1", "2", ..., without making millions of texts."""
    bounds = [0, *itertools.takewhile(lambda power: power < count, (10**n for n in range(1, 20))), count]
    spans = [(low, high) for low, high in itertools.pairwise(bounds) if low < high]
    sha.update(count.to_bytes(8, "little"))
    for digits, (low, high) in enumerate(spans, 1):
        sha.update(np.full(high - low, digits, "<i4"))
    for digits, (low, high) in enumerate(spans, 1):
        for start in range(low, high, _ROWS_AT_ONCE):
            left = np.arange(start, min(start + _ROWS_AT_ONCE, high), dtype=np.int32)
            letters = np.empty((len(left), digits), np.uint8)
            for place in range(digits - 1, -1, -1):
                left, letters[:, place] = np.divmod(left, np.int32(10))
            letters += ord("0")
            sha.update(letters)
