"""Plans on disk: a folder with a JSON header and arrays that are mapped into memory, not read.

    plan.json        settings, fingerprint and the size of each epoch
    order.npy        the epochs one after another; beside it offsets, bucket_ids, max_lens, pack_offsets
    lengths.npy      of all samples, in as few bytes as they need
    ids.json.gz      a JSON list; absent where ids are the row numbers. Unpacked when an id is first asked for

A million samples named s0, s1, ... take about 9 MB: 4 for the order, 2 for lengths, 2 to 3 for ids. Random
ids (hashes, UUIDs) cannot be made smaller than their randomness, 16 bytes each for UUIDs. What a plan is in
memory is in `plan`.
"""

import asyncio
import gzip
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.config import FrozenModel, check_type, load_model, save_model
from phalanx.data.lengths import LazyIds, LengthTable, RangeIds
from phalanx.data.plans.arrays import EpochBatches
from phalanx.data.plans.batch_plan import PLAN_VERSION, BatchPlan, BatchPlanMeta
from phalanx.data.plans.epoch_plan import EpochPlan
from phalanx.io.atomic import atomic_directory, remove_stale_temporaries
from phalanx.io.checksum import (
    CorruptFileError,
    read_verified_json,
    read_with_sha256,
    sha256_of_files,
    verify_sha256,
)
from phalanx.io.untrusted import parse_json

HEADER = "plan.json"
IDS = "ids.json.gz"
_REMEDY = "build the plan again"
_ARRAYS = {"order": np.int32, "offsets": np.int64, "bucket_ids": np.int16, "max_lens": np.int32}


class EpochHeader(FrozenModel):
    """The sizes of one epoch, which tell where its arrays lie in the files."""

    epoch: int
    """Its number."""
    seed: int
    """What decided its order."""
    samples: int
    """Samples in it."""
    batches: int
    """Batches in it."""
    packs: int | None = None
    """Packs in it; None without packing."""
    longest: int | None = None
    """Where packing truncates: to how much."""


class PlanHeader(FrozenModel):
    """The contents of `plan.json`."""

    format: str = "phalanx batch plan"
    """Says what the folder is."""
    full_hash: str
    """The plan's SHA-256."""
    num_samples: int
    """Rows of the length table."""
    num_skipped: int
    """Rows that fit no batch."""
    named: bool
    """Whether samples have ids of their own, in `ids.json.gz`."""
    files: dict[str, str]
    """The SHA-256 of every other file."""
    epochs: tuple[EpochHeader, ...]
    """Every epoch."""
    meta: BatchPlanMeta
    """What the plan was made from."""


def _unpacked_ids(path: Path, count: int, packed: bytes) -> list[str]:
    ids = parse_json(gzip.decompress(packed), path)
    if not isinstance(ids, list) or len(ids) != count:
        raise ValueError(f"{path} does not hold {count} ids; build the plan again")
    return ids


def save_batch_plan(plan: BatchPlan, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a plan to a folder, whole or not at all.

    A folder that holds something is refused; with `overwrite` an older plan there is replaced, in one step
    for those who are just reading it.
    """
    check_type(plan, BatchPlan, "plan")
    target = Path(os.path.realpath(path))
    if target.parent.is_dir():
        remove_stale_temporaries(target.parent, target.name)
    with atomic_directory(target, replace=overwrite and (target / HEADER).is_file()) as folder:
        _write(plan, folder)


def load_batch_plan(
    path: str | os.PathLike[str],
    *,
    verify: bool = False,
    expected_tokenizer_hash: str | None = None,
    expected_dataset_hash: str | None = None,
) -> BatchPlan:
    """Open a plan. Its files are checked against their digests; then its arrays stay on disk until used.

    `verify` computes the fingerprint anew, too. A plan made from another tokenizer or dataset than expected
    is refused. One that is replaced by another in the middle is read from the beginning.
    """
    folder = Path(path)
    while True:
        place = _place(folder)
        try:
            header = _read_header(folder)
            plan = _read(folder, header, verify, expected_tokenizer_hash, expected_dataset_hash)
        except (ValueError, FileNotFoundError):
            if _place(folder) == place:
                raise
        else:
            if _place(folder) == place:
                return plan


def _place(folder: Path) -> tuple[int, int, int] | None:
    """Which header file is there: another one after a replacement, even by a plan of the same contents."""
    try:
        found = (folder / HEADER).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _read(
    folder: Path,
    header: PlanHeader,
    verify: bool,
    expected_tokenizer_hash: str | None,
    expected_dataset_hash: str | None,
) -> BatchPlan:
    for name, expected in (("tokenizer", expected_tokenizer_hash), ("dataset", expected_dataset_hash)):
        made = header.meta.tokenizer_hash if name == "tokenizer" else header.meta.dataset_hash
        if expected is not None and made != expected:
            raise ValueError(f"{folder} was made from the {name} {made!r}, not {expected!r}; build it again")
    lengths = _open(folder / "lengths.npy", header, header.num_samples, None).astype(np.int32)
    count = header.num_samples
    ids: LazyIds | RangeIds = RangeIds(count)
    if header.named:
        # Read now, so that a plan that is replaced later keeps its own; unpacked when an id is asked for.
        packed = read_with_sha256(folder / IDS, _digest(folder / IDS, header), _REMEDY)
        ids = LazyIds(count, partial(_unpacked_ids, folder / IDS, count, packed))
    table = LengthTable(ids, lengths).trust()
    plan = BatchPlan(header.meta, table, _read_epochs(folder, header, table))
    if verify and plan.full_hash != header.full_hash:
        raise ValueError(
            f"{folder} holds other batches than it says: its fingerprint is {plan.fingerprint}, "
            f"its header says {header.full_hash[:16]}; a file was changed or damaged, build the plan again"
        )
    # The header tells the hash, which saves reading everything to compute it.
    plan.__dict__["full_hash"] = header.full_hash
    return plan


async def save_batch_plan_async(
    plan: BatchPlan, path: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """`save_batch_plan` without blocking the event loop."""
    await asyncio.to_thread(save_batch_plan, plan, path, overwrite=overwrite)


async def load_batch_plan_async(
    path: str | os.PathLike[str],
    *,
    verify: bool = False,
    expected_tokenizer_hash: str | None = None,
    expected_dataset_hash: str | None = None,
) -> BatchPlan:
    """`load_batch_plan` without blocking the event loop."""
    return await asyncio.to_thread(
        load_batch_plan,
        path,
        verify=verify,
        expected_tokenizer_hash=expected_tokenizer_hash,
        expected_dataset_hash=expected_dataset_hash,
    )


def _write(plan: BatchPlan, folder: Path) -> None:
    named = not isinstance(plan.table.ids, RangeIds)
    lengths = plan.table.lengths
    wide = len(lengths) and int(lengths.max()) > np.iinfo(np.uint16).max
    np.save(folder / "lengths.npy", lengths if wide else lengths.astype(np.uint16))
    if named:
        text = json.dumps(list(plan.table.ids), separators=(",", ":")).encode()
        (folder / IDS).write_bytes(gzip.compress(text, compresslevel=6, mtime=0))
    batches = [epoch.batches for epoch in plan.epochs]
    for name, dtype in _ARRAYS.items():
        np.save(folder / f"{name}.npy", _joined([getattr(part, name) for part in batches], dtype))
    packs = [part.pack_offsets for part in batches if part.pack_offsets is not None]
    if packs:
        np.save(folder / "pack_offsets.npy", _joined(packs, np.int64))
    header = PlanHeader(
        full_hash=plan.full_hash,
        num_samples=len(plan.table),
        num_skipped=plan.num_skipped,
        named=named,
        files=sha256_of_files(folder),
        epochs=tuple(
            EpochHeader(
                epoch=epoch.epoch,
                seed=epoch.seed,
                samples=len(epoch.batches.order),
                batches=len(epoch),
                packs=None if epoch.batches.pack_offsets is None else len(epoch.batches.pack_offsets) - 1,
                longest=epoch.longest,
            )
            for epoch in plan.epochs
        ),
        meta=plan.meta,
    )
    save_model(header, folder / HEADER)


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def _read_header(folder: Path) -> PlanHeader:
    path = folder / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a batch plan: there is no {HEADER} in it")
    meta = read_verified_json(path, _REMEDY).get("meta")
    version = meta.get("version") if isinstance(meta, dict) else None
    if version != PLAN_VERSION:
        raise ValueError(f"{path} has version {version}, this reads version {PLAN_VERSION}; build it again")
    return load_model(PlanHeader, path, "a plan's header", _REMEDY)


def _read_epochs(folder: Path, header: PlanHeader, table: LengthTable) -> tuple[EpochPlan, ...]:
    sizes = {
        "order": [epoch.samples for epoch in header.epochs],
        "offsets": [epoch.batches + 1 for epoch in header.epochs],
        "bucket_ids": [epoch.batches for epoch in header.epochs],
        "max_lens": [epoch.batches for epoch in header.epochs],
    }
    dtypes: dict[str, Any] = dict(_ARRAYS)
    if any(epoch.packs is not None for epoch in header.epochs):
        sizes["pack_offsets"] = [(epoch.packs or 0) + 1 for epoch in header.epochs]
        dtypes["pack_offsets"] = np.int64
    parts = {
        name: np.split(
            _open(folder / f"{name}.npy", header, sum(counts), dtypes[name]), np.cumsum(counts)[:-1]
        )
        for name, counts in sizes.items()
    }
    epochs = []
    for number, epoch in enumerate(header.epochs):
        arrays = EpochBatches(**{name: part[number] for name, part in parts.items()})
        if arrays.offsets[0] != 0 or arrays.offsets[-1] != epoch.samples:
            raise ValueError(
                f"{folder / 'offsets.npy'} is corrupt in epoch {epoch.epoch}; build the plan again"
            )
        epochs.append(EpochPlan.of(epoch.epoch, epoch.seed, arrays, table, epoch.longest))
    return tuple(epochs)


def _digest(path: Path, header: PlanHeader) -> str:
    if path.name not in header.files:
        raise CorruptFileError(f"{path.parent / HEADER} tells no digest of {path.name}; {_REMEDY}")
    return header.files[path.name]


def _open(path: Path, header: PlanHeader, count: int, dtype: Any) -> np.ndarray:
    verify_sha256(path, _digest(path, header), _REMEDY)
    try:
        # A file without elements cannot be mapped.
        array: np.ndarray = np.load(path, mmap_mode="r" if count else None)
    except (ValueError, EOFError, OSError) as error:
        raise CorruptFileError(f"{path} is no array: {error}; {_REMEDY}") from error
    if array.shape != (count,) or (dtype is not None and array.dtype != dtype):
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}, not {count} numbers; build the plan again"
        )
    return array
