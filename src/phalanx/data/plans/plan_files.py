"""Plan files, which consist of a JSON header followed by arrays that are memory-mapped when a plan is loaded.

    8 bytes    magic number
    8 bytes    size of the header
    32 bytes   SHA-256 of the header
    header     JSON: settings, fingerprint, sizes of the epochs; offset and checksum of each array
    arrays     order, offsets, bucket_ids, max_lens and pack_offsets of all epochs; lengths; compressed ids

A plan for a million samples named s0, s1, ... takes about 9 MB: 4 MB for the order, 2 MB for the lengths, and
2 to 3 MB for the ids. Random ids such as UUIDs hardly compress and take 16 bytes each.
"""

import gzip
import hashlib
import json
import mmap
import os
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic import ValidationError

from phalanx.config import FrozenModel, check_type, format_validation_error
from phalanx.data.lengths import LazyFileIds, LengthTable, RangeIds
from phalanx.data.plans.batch_plan import PLAN_VERSION, BatchPlan, BatchPlanMeta, EpochPlan
from phalanx.data.plans.epoch import EpochBatches
from phalanx.io.atomic import atomic_write, remove_stale_temporaries
from phalanx.io.checksum import CorruptFileError
from phalanx.io.untrusted import parse_json

PLAN_SUFFIX = ".plan"
PLAN_FILE = "batch.plan"
"""File name that is used if the path of a plan is a folder."""

_MAGIC = b"PHXPLAN\n"
_PREFIX = len(_MAGIC) + 8 + 32
_ALIGNMENT = 64
_REMEDY = "build the plan again"
_EPOCH_ARRAYS = {
    "order": np.int32,
    "offsets": np.int64,
    "bucket_ids": np.int16,
    "max_lens": np.int32,
    "pack_offsets": np.int64,
}


class _EpochHeader(FrozenModel):
    epoch: int
    seed: int
    samples: int
    batches: int
    packs: int | None = None


class _ArrayHeader(FrozenModel):
    dtype: str
    count: int
    offset: int
    """Byte offset of the array, counted from the end of the header."""
    sha256: str


class _PlanHeader(FrozenModel):
    full_hash: str
    num_samples: int
    num_skipped: int
    arrays: dict[str, _ArrayHeader]
    epochs: tuple[_EpochHeader, ...]
    meta: BatchPlanMeta


def plan_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a plan file, given its path or the folder that contains it.

    A path that ends in `.plan` and is not a folder is returned unchanged. Any other path is treated as a
    folder that contains `batch.plan`.
    """
    path = Path(path)
    return path if path.suffix == PLAN_SUFFIX and not path.is_dir() else path / PLAN_FILE


def save_batch_plan(plan: BatchPlan, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a plan to a file atomically.

    Args:
        plan: Plan to save.
        path: File name that ends in `.plan`, or a folder, in which `batch.plan` is written.
        overwrite: Replace an existing plan. Processes that have already loaded the old plan can continue to
            use it. If `overwrite` is False and a plan exists, `FileExistsError` is raised.
    """
    check_type(plan, BatchPlan, "plan")
    target = plan_path(path)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} already exists; choose another path or pass overwrite=True")
    if target.name == PLAN_FILE and not target.parent.exists():
        if not target.parent.parent.is_dir():
            raise FileNotFoundError(f"cannot write {path}: the folder {target.parent.parent} does not exist")
        target.parent.mkdir()
    if target.parent.is_dir():
        remove_stale_temporaries(target.parent, target.name)
    with atomic_write(target) as file:
        _write(plan, file)


def load_batch_plan(
    path: str | os.PathLike[str],
    *,
    verify: bool = False,
    expected_tokenizer_hash: str | None = None,
    expected_dataset_hash: str | None = None,
) -> BatchPlan:
    """Load a plan. The checksums of all arrays are verified, and the arrays are memory-mapped.

    Args:
        path: File or folder that was passed to `save_batch_plan`.
        verify: Also recompute the fingerprint from the batches and compare it with the stored one.
        expected_tokenizer_hash: Raise `ValueError` if the plan was built with a different tokenizer. If None,
            the tokenizer is not checked.
        expected_dataset_hash: Raise `ValueError` if the plan was built from a different dataset. If None, the
            dataset is not checked.

    Raises:
        FileNotFoundError: If there is no plan.
        CorruptFileError: If the file is damaged.
        ValueError: If the plan was written in a different version of the format, or does not match an
            expected hash.
    """
    source = plan_path(path)
    if not source.is_file():
        if (Path(path) / "plan.json").is_file():
            raise ValueError(f"{path} was saved by an earlier version; {_REMEDY}")
        raise FileNotFoundError(f"there is no batch plan {source}")
    with source.open("rb") as file:
        # The mapping stays valid if another plan replaces the file.
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise CorruptFileError(f"{source} is empty; {_REMEDY}") from None
    header, start = _parse_header(source, data)
    for name, expected in (("tokenizer", expected_tokenizer_hash), ("dataset", expected_dataset_hash)):
        actual = getattr(header.meta, f"{name}_hash")
        if expected is not None and actual != expected:
            raise ValueError(
                f"{source} was built with the {name} {actual!r}, but {expected!r} is expected; {_REMEDY}"
            )
    plan = _parse_plan(source, data, header, start)
    if not verify:
        plan.adopt_fingerprint(header.full_hash)
    elif plan.full_hash != header.full_hash:
        raise CorruptFileError(
            f"{source} has the fingerprint {header.full_hash[:16]}, but its batches have {plan.fingerprint}; "
            f"{_REMEDY}"
        )
    return plan


def _write(plan: BatchPlan, file: IO[bytes]) -> None:
    arrays = {}
    for name, dtype in _EPOCH_ARRAYS.items():
        parts = [getattr(epoch.batches, name) for epoch in plan.epochs]
        if any(part is not None for part in parts) or name != "pack_offsets":
            arrays[name] = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])
    lengths = plan.table.lengths
    arrays["lengths"] = lengths.astype(np.min_scalar_type(int(lengths.max(initial=0))), copy=False)
    if not isinstance(plan.table.ids, RangeIds):
        text = json.dumps([str(name) for name in plan.table.ids], ensure_ascii=False, separators=(",", ":"))
        packed = gzip.compress(text.encode("utf-8", "surrogatepass"), compresslevel=4, mtime=0)
        arrays["ids"] = np.frombuffer(packed, np.uint8)
    headers, offset = {}, 0
    for name, array in arrays.items():
        arrays[name] = array = np.ascontiguousarray(array)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        headers[name] = _ArrayHeader(dtype=array.dtype.str, count=len(array), offset=offset, sha256=digest)
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    header = _PlanHeader(
        full_hash=plan.full_hash,
        num_samples=len(plan.table),
        num_skipped=plan.num_skipped,
        arrays=headers,
        epochs=tuple(
            _EpochHeader(
                epoch=epoch.epoch,
                seed=epoch.seed,
                samples=epoch.num_samples,
                batches=len(epoch),
                packs=None if epoch.batches.pack_offsets is None else len(epoch.batches.pack_offsets) - 1,
            )
            for epoch in plan.epochs
        ),
        meta=plan.meta,
    )
    encoded = header.model_dump_json().encode()
    # Padded with spaces, so that the first array is aligned.
    encoded += b" " * (-(_PREFIX + len(encoded)) % _ALIGNMENT)
    file.write(_MAGIC + len(encoded).to_bytes(8, "little") + hashlib.sha256(encoded).digest() + encoded)
    for array in arrays.values():
        file.write(memoryview(array).cast("B") if array.size else b"")  # type: ignore[arg-type, unused-ignore]
        file.write(bytes(-array.nbytes % _ALIGNMENT))


def _parse_header(path: Path, data: mmap.mmap) -> tuple[_PlanHeader, int]:
    if data[: len(_MAGIC)] != _MAGIC:
        raise CorruptFileError(f"{path} is not a batch plan")
    size = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 8], "little")
    text = data[_PREFIX : _PREFIX + size]
    if len(text) != size or hashlib.sha256(text).digest() != data[_PREFIX - 32 : _PREFIX]:
        raise CorruptFileError(f"{path} is corrupt: its header does not match its checksum; {_REMEDY}")
    fields = parse_json(text, path)
    version = fields.get("meta", {}).get("version") if isinstance(fields, dict) else None
    if version != PLAN_VERSION:
        raise ValueError(f"{path} has version {version}, but this release reads {PLAN_VERSION}; {_REMEDY}")
    try:
        return _PlanHeader.model_validate_json(text), _PREFIX + size
    except ValidationError as error:
        reason = format_validation_error(error, _PlanHeader)
        raise ValueError(f"{path} is not a valid batch plan: {reason}; {_REMEDY}") from error


def _parse_plan(path: Path, data: mmap.mmap, header: _PlanHeader, start: int) -> BatchPlan:
    def array_of(name: str, count: int | None, dtype: Any = None) -> np.ndarray:
        """Read an array, and raise an error unless it has `count` elements of type `dtype`. If `count` or
        `dtype` is None, it is not checked."""
        if name not in header.arrays:
            raise CorruptFileError(f"{path} is corrupt: it has no array {name}; {_REMEDY}")
        entry = header.arrays[name]
        kind, begin = np.dtype(entry.dtype), start + entry.offset
        if (count is not None and entry.count != count) or (dtype is not None and kind != dtype):
            raise CorruptFileError(
                f"{path} is corrupt: {name} has {entry.count} values instead of {count}; {_REMEDY}"
            )
        if begin + entry.count * kind.itemsize > len(data):
            raise CorruptFileError(f"{path} is truncated; {_REMEDY}")
        array = np.frombuffer(data, kind, entry.count, begin)
        if hashlib.sha256(memoryview(data)[begin : begin + array.nbytes]).hexdigest() != entry.sha256:
            raise CorruptFileError(f"{path} is corrupt: {name} does not match its checksum; {_REMEDY}")
        return array

    count = header.num_samples
    ids: LazyFileIds | RangeIds = RangeIds(count)
    if "ids" in header.arrays:
        ids = LazyFileIds(count, partial(_unpack_ids, path, count, array_of("ids", None, np.uint8)))
    table = LengthTable(ids, array_of("lengths", count).astype(np.int32)).trust()
    sizes = {
        "order": [epoch.samples for epoch in header.epochs],
        "offsets": [epoch.batches + 1 for epoch in header.epochs],
        "bucket_ids": [epoch.batches for epoch in header.epochs],
        "max_lens": [epoch.batches for epoch in header.epochs],
    }
    if any(epoch.packs is not None for epoch in header.epochs):
        sizes["pack_offsets"] = [(epoch.packs or 0) + 1 for epoch in header.epochs]
    parts = {
        name: np.split(array_of(name, sum(counts), _EPOCH_ARRAYS[name]), np.cumsum(counts)[:-1])
        for name, counts in sizes.items()
    }
    epochs = []
    for number, epoch in enumerate(header.epochs):
        batches = EpochBatches(**{name: part[number] for name, part in parts.items()})
        if batches.offsets[0] != 0 or batches.offsets[-1] != epoch.samples:
            raise CorruptFileError(
                f"{path} is corrupt: the offsets of epoch {epoch.epoch} are invalid; {_REMEDY}"
            )
        epochs.append(EpochPlan(epoch.epoch, epoch.seed, batches, table, header.meta.packing))
    return BatchPlan(header.meta, table, tuple(epochs))


def _unpack_ids(path: Path, count: int, packed: np.ndarray) -> list[str]:
    ids = parse_json(gzip.decompress(packed.tobytes()), path)
    if not isinstance(ids, list) or len(ids) != count:
        raise CorruptFileError(f"{path} is corrupt: it does not have {count} ids; {_REMEDY}")
    return ids
