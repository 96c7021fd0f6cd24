"""Batching settings, and fingerprints of batches."""

import asyncio
import hashlib
import itertools
import json
import os
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from phalanx.compat.chuk_lazarus.data.batching.core.buckets import BucketId, OverflowMax
from phalanx.config import FrozenModel, load_model, save_model
from phalanx.data.plans.batch_plan import BatchSpec
from phalanx.data.plans.batching_config import BatchingConfig as _BatchingConfig, BatchingMode, PadPolicy

if TYPE_CHECKING:
    from phalanx.compat.chuk_lazarus.data.batching.planning.batch_plan import MicrobatchSpec

FINGERPRINT_VERSION = 1
_AnyBatch: TypeAlias = "BatchSpec | MicrobatchSpec"


class BatchingConfig(OverflowMax, _BatchingConfig):
    """`phalanx.data.BatchingConfig` with chuk-lazarus's `overflow_max` and `get_pad_length`."""

    def get_pad_length(self, bucket_id: BucketId, max_in_batch: int | None = None) -> int:
        """Return the number of tokens to which the samples of a batch are padded.

        Args:
            bucket_id: Index of the batch's bucket.
            max_in_batch: Length of the longest sample in the batch. Required if `pad_policy` is
                `pad_to_max_in_batch`, and otherwise not used.
        """
        if self.pad_policy is PadPolicy.PAD_TO_BUCKET:
            return self.bucket_widths[bucket_id]
        if max_in_batch is None:
            raise ValueError("pad_policy 'pad_to_max_in_batch' needs max_in_batch")
        return max_in_batch


class BatchFingerprint(FrozenModel):
    """Hashes of a sequence of batches, for checking that a later run has the same batches."""

    fingerprint: str
    """First 16 characters of `full_hash`."""
    full_hash: str
    """SHA-256 of `version`, `config_hash`, `membership_hash`, `order_hash` and `lengths_hash`."""
    num_batches: int
    """Number of batches."""
    total_samples: int
    """Number of samples in all batches. A sample that is in two batches counts twice."""
    total_tokens: int
    """Number of tokens without padding."""
    config_hash: str
    """Hash of the batching settings. Empty if none were given."""
    membership_hash: str
    """Hash of the ids of all samples in the batches, regardless of their order."""
    order_hash: str
    """Hash of the order of the samples and their division into batches and rows."""
    lengths_hash: str
    """Hash of the lengths of samples and rows."""
    version: int = FINGERPRINT_VERSION
    """Version of the algorithm that computes the hashes."""

    def matches(self, other: "BatchFingerprint") -> bool:
        """Return whether `other` was computed from the same settings and batches as this fingerprint."""
        return self.full_hash == other.full_hash

    def matches_config(self, other: "_BatchingConfig | BatchFingerprint") -> bool:
        """Return whether `other` has the same batching settings as this fingerprint."""
        config_hash = other.config_hash if isinstance(other, BatchFingerprint) else other.digest()
        return self.config_hash == config_hash

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fingerprint to a JSON file."""
        save_model(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "BatchFingerprint":
        """Read a fingerprint from a JSON file."""
        return load_model(cls, path, "a batch fingerprint")


def compute_batch_fingerprint(
    batches: Iterable[_AnyBatch], config: _BatchingConfig | None = None, n_batches: int | None = None
) -> BatchFingerprint:
    """Compute the fingerprint of the first `n_batches` batches. By default, all batches are included."""
    found = itertools.islice(batches, n_batches)
    return _compute_fingerprint(found, "" if config is None else config.digest())


async def compute_batch_fingerprint_async(
    batches: AsyncIterable[_AnyBatch], config: _BatchingConfig | None = None, n_batches: int | None = None
) -> BatchFingerprint:
    """Compute the fingerprint of an asynchronous iterable of batches."""
    return compute_batch_fingerprint(await _collect(batches, n_batches), config)


def verify_batch_fingerprint(
    batches: Iterable[_AnyBatch],
    expected: BatchFingerprint | str,
    config: _BatchingConfig | None = None,
    n_batches: int | None = None,
) -> tuple[bool, str | None]:
    """Compare batches with a fingerprint.

    If `expected` is a `BatchFingerprint`, the config (if given), the set of samples, the order of the samples
    and the lengths are compared one after another. If `expected` is a string, only the fingerprints are
    compared. In this case, pass the config with which the expected fingerprint was computed.

    Returns:
        (True, None) if the batches have the expected fingerprint; otherwise False and the first difference.
    """
    if isinstance(expected, str):
        short = compute_batch_fingerprint(batches, config, n_batches)
        if expected in (short.fingerprint, short.full_hash):
            return True, None
        return False, f"the fingerprint is {short.fingerprint}, not {expected}"
    if expected.version != FINGERPRINT_VERSION:
        return False, (
            f"the fingerprint has version {expected.version}, this is version {FINGERPRINT_VERSION}; "
            f"compute it again"
        )
    if config is not None and not expected.matches_config(config):
        return False, "config changed: the batches were built with other settings"
    found = _compute_fingerprint(itertools.islice(batches, n_batches), expected.config_hash)
    same_count = found.total_samples == expected.total_samples
    messages = {
        "membership_hash": f"membership changed: expected {expected.total_samples} samples, found "
        f"{found.total_samples}{'; the ids differ' if same_count else ''}",
        "order_hash": f"order changed: the same {found.total_samples} samples in a different order "
        f"(expected {expected.num_batches} batches, found {found.num_batches})",
        "lengths_hash": "lengths changed: the same samples in the same batches, but expected "
        f"{expected.total_tokens} tokens and found {found.total_tokens}, or other row lengths",
        "full_hash": "the expected fingerprint is inconsistent: it was edited or damaged",
    }
    differences = (text for name, text in messages.items() if getattr(found, name) != getattr(expected, name))
    difference = next(differences, None)
    return difference is None, difference


async def verify_batch_fingerprint_async(
    batches: AsyncIterable[_AnyBatch],
    expected: BatchFingerprint | str,
    config: _BatchingConfig | None = None,
    n_batches: int | None = None,
) -> tuple[bool, str | None]:
    """Compare batches from an asynchronous iterable with a fingerprint."""
    return verify_batch_fingerprint(await _collect(batches, n_batches), expected, config)


async def _collect(batches: AsyncIterable[_AnyBatch], n_batches: int | None) -> list[_AnyBatch]:
    found: list[_AnyBatch] = []
    if n_batches != 0:
        async for batch in batches:
            found.append(batch)
            if len(found) == n_batches:
                break
    return found


save_fingerprint = BatchFingerprint.save
load_fingerprint = BatchFingerprint.load


async def save_fingerprint_async(fingerprint: BatchFingerprint, path: str | os.PathLike[str]) -> None:
    """Write a fingerprint without blocking the event loop."""
    await asyncio.to_thread(save_fingerprint, fingerprint, path)


async def load_fingerprint_async(path: str | os.PathLike[str]) -> BatchFingerprint:
    """Read a fingerprint without blocking the event loop."""
    return await asyncio.to_thread(load_fingerprint, path)


def _compute_fingerprint(batches: Iterable[_AnyBatch], config_hash: str) -> BatchFingerprint:
    order, lengths = hashlib.sha256(), hashlib.sha256()
    members: list[str] = []
    num_batches = total_tokens = 0
    for batch in batches:
        ids = batch.sample_ids
        rows = None if batch.packs is None else [len(pack) for pack in batch.packs]
        # As JSON, because ids may contain any separator.
        order.update(_line([list(ids), rows]))
        lengths.update(_line([batch.max_length, batch.token_count, list(batch.lengths)]))
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
        fingerprint=full[:16],
        full_hash=full,
        num_batches=num_batches,
        total_samples=len(members),
        total_tokens=total_tokens,
        **hashes,
    )


def _line(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"


__all__ = [
    "BatchFingerprint",
    "BatchingConfig",
    "BatchingMode",
    "PadPolicy",
    "compute_batch_fingerprint",
    "compute_batch_fingerprint_async",
    "load_fingerprint",
    "load_fingerprint_async",
    "save_fingerprint",
    "save_fingerprint_async",
    "verify_batch_fingerprint",
    "verify_batch_fingerprint_async",
]
