"""Batches as files: an NPZ for each, a folder for each epoch, a manifest with the plan's fingerprint.

How a batch is made from its samples is in `collation`.
"""

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from phalanx.config import FrozenModel, load_model, save_model
from phalanx.data.collation import CollatedBatch, CollateFunction, Sample, collate_microbatch, default_collate
from phalanx.data.plans.arrays import MicrobatchSpec
from phalanx.data.plans.batch_plan import BatchPlan
from phalanx.io.atomic import atomic_write, remove_stale_temporaries
from phalanx.io.checksum import CorruptFileError, open_verified

_FORMAT = "phalanx.batches"
_VERSION = 1
_MANIFEST = "manifest.json"
_REMEDY = "remove it and run BatchWriter again"
_FACTS = ("sample_ids", "sample_rows", "lengths", "bucket_id", "max_len", "index", "epoch", "plan")
"""What a file says of its batch beside the arrays."""


class EpochFiles(FrozenModel):
    """One epoch's folder."""

    epoch: int
    """Its number."""
    batches: int
    """How many files it has once it is whole."""
    complete: bool = False
    """Whether it is."""
    largest_token: int | None = None
    """The largest id in it, so that a model too small for it can be refused; None until it is whole."""


class BatchManifest(FrozenModel):
    """What a folder of batches holds."""

    format: str = _FORMAT
    """Tells these folders from others."""
    version: int = _VERSION
    """Of the format."""
    fingerprint: str
    """Of the plan that was written."""
    dataset_hash: str = ""
    """The plan's."""
    tokenizer_hash: str = ""
    """The plan's."""
    pad_id: int
    """The token that fills rows up."""
    num_epochs: int
    """Epochs in the plan."""
    epochs: tuple[EpochFiles, ...]
    """One entry for each."""


class BatchWriter:
    """Writes the batches of a plan; writing that was interrupted goes on where it stopped.

    Files appear whole or not at all. Those that are there already are compared with what would be written,
    and kept; one that cannot be read is written again.
    """

    def __init__(
        self,
        plan: BatchPlan,
        samples: Mapping[str, Sample],
        output_dir: str | os.PathLike[str],
        collate_fn: CollateFunction | None = None,
        pad_id: int = 0,
    ) -> None:
        self._plan = plan
        self._samples = samples
        self._folder = Path(output_dir)
        self._collate_fn = collate_fn or default_collate
        self._pad_id = pad_id

    def write_all(self, on_batch: Callable[[Path], None] | None = None) -> list[Path]:
        """Write every epoch; `on_batch` is told of each file. Returns the files."""
        return [path for epoch in self._plan.epochs for path in self.write_epoch(epoch.epoch, on_batch)]

    def write_epoch(self, epoch: int, on_batch: Callable[[Path], None] | None = None) -> list[Path]:
        """Write one epoch. Returns its files."""
        batches = self._plan.get_epoch(epoch)
        manifest = self._begin()
        folder = _epoch_folder(self._folder, epoch)
        folder.mkdir(exist_ok=True)
        remove_stale_temporaries(self._folder)
        remove_stale_temporaries(folder)
        paths, largest = [], 0
        for index, spec in enumerate(batches):
            path = _batch_path(self._folder, epoch, index)
            largest = max(largest, self._write(path, spec, epoch))
            paths.append(path)
            if on_batch is not None:
                on_batch(path)
        facts = {"complete": True, "largest_token": largest}
        done = (e.model_copy(update=facts) if e.epoch == epoch else e for e in manifest.epochs)
        save_model(manifest.model_copy(update={"epochs": tuple(done)}), self._folder / _MANIFEST)
        return paths

    def _begin(self) -> BatchManifest:
        """The folder's manifest: the one that is there, if it is this plan's, or a new one."""
        wanted = BatchManifest(
            fingerprint=self._plan.fingerprint,
            dataset_hash=self._plan.meta.dataset_hash,
            tokenizer_hash=self._plan.meta.tokenizer_hash,
            pad_id=self._pad_id,
            num_epochs=self._plan.num_epochs,
            epochs=tuple(EpochFiles(epoch=e.epoch, batches=len(e)) for e in self._plan.epochs),
        )
        if (self._folder / _MANIFEST).exists():
            found = _load_manifest(self._folder)
            if found.fingerprint != wanted.fingerprint:
                raise ValueError(
                    f"{self._folder} holds batches of plan {found.fingerprint}, not of this plan "
                    f"{wanted.fingerprint}; choose another folder or remove it"
                )
            if found.pad_id != wanted.pad_id:
                raise ValueError(
                    f"{self._folder} was begun with pad_id {found.pad_id}, not {wanted.pad_id}; go on with "
                    f"that, or choose another folder"
                )
            return found
        if self._folder.is_dir():
            remove_stale_temporaries(self._folder)
        if self._folder.exists() and any(self._folder.iterdir()):
            raise FileExistsError(f"{self._folder} is not empty but has no {_MANIFEST}; choose another")
        self._folder.mkdir(parents=True, exist_ok=True)
        save_model(wanted, self._folder / _MANIFEST)
        return wanted

    def _write(self, path: Path, spec: MicrobatchSpec, epoch: int) -> int:
        """Write one file, unless it is there already. Returns the batch's largest token."""
        batch = collate_microbatch(
            spec,
            self._samples,
            collate_fn=self._collate_fn,
            pad_id=self._pad_id,
            packing=self._plan.meta.pack_config,
        )
        facts = {name: getattr(batch, name) for name in _FACTS if name not in ("epoch", "plan")}
        facts |= {"epoch": epoch, "plan": self._plan.fingerprint}
        arrays = batch.arrays()
        largest = int(batch.input_ids.max(initial=0))
        if clash := sorted(arrays.keys() & facts.keys()):
            raise ValueError(f"{path}: a collate_fn may not return arrays named {', '.join(clash)}")
        kinds = {"sample_ids": np.str_, "sample_rows": np.int32, "lengths": np.int32}
        members = arrays | {name: np.array(value, kinds.get(name)) for name, value in facts.items()}
        if path.exists():
            found = _read_members(path, damaged_is_none=True)
            if found is not None:
                same = found.keys() == members.keys()
                if same and all(np.array_equal(found[name], members[name]) for name in members):
                    return largest
                raise ValueError(
                    f"{path} differs from what the plan and the samples give; the samples have changed, or "
                    f"the file has: remove it, or choose another folder"
                )
        with atomic_write(path, checksum=True) as file:
            np.savez(file, allow_pickle=False, **members)
        return largest


class BatchReader:
    """Reads batches back. Every file is checked: that it is there, whole, and this batch of this plan."""

    def __init__(self, batch_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(batch_dir)
        if not (self._folder / _MANIFEST).is_file():
            raise FileNotFoundError(f"{self._folder} has no {_MANIFEST}: it is not a folder of batches")
        self._manifest = _load_manifest(self._folder)

    @property
    def manifest(self) -> BatchManifest:
        """What the folder says of itself."""
        return self._manifest

    @property
    def num_epochs(self) -> int:
        """Epochs in the plan."""
        return self._manifest.num_epochs

    @property
    def fingerprint(self) -> str:
        """Of the plan that was written."""
        return self._manifest.fingerprint

    def num_batches(self, epoch: int) -> int:
        """Batches in one epoch."""
        return self._epoch(epoch).batches

    def iter_epoch(self, epoch: int) -> Iterator[CollatedBatch]:
        """The batches of one epoch, in order; a missing file is reported before the first is read."""
        self._require_files(self._epoch(epoch))
        return (self.get_batch(epoch, index) for index in range(self.num_batches(epoch)))

    def iter_epoch_specs(self, epoch: int) -> Iterator[tuple[MicrobatchSpec, CollatedBatch]]:
        """Each batch with the plan's description of it."""
        return ((batch.spec, batch) for batch in self.iter_epoch(epoch))

    def get_batch(self, epoch: int, index: int) -> CollatedBatch:
        """One batch."""
        count = self.num_batches(epoch)
        if not 0 <= index < count:
            raise ValueError(f"epoch {epoch} has batches 0 to {count - 1}; there is no batch {index}")
        path = _batch_path(self._folder, epoch, index)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; {self._remedy()}")
        members = _read_members(path)
        assert members is not None
        if absent := [name for name in (*_FACTS, "input_ids", "loss_mask") if name not in members]:
            raise ValueError(f"{path}: not a batch file: it lacks {', '.join(absent)}")
        found = (str(members["plan"]), int(members["epoch"]), int(members["index"]))
        wanted = (self.fingerprint, epoch, index)
        if found != wanted:
            raise ValueError(
                f"{path} holds batch {found[2]} of epoch {found[1]} of plan {found[0]}, not batch {index} of "
                f"epoch {epoch} of plan {self.fingerprint}; {self._remedy()}"
            )
        return _batch_from(members)

    def largest_token(self) -> int:
        """The largest id in any batch, as the writer noted it; epochs that are not whole are read."""
        noted = [
            epoch.largest_token
            if epoch.largest_token is not None
            else max((int(b.input_ids.max(initial=0)) for b in self.iter_epoch(epoch.epoch)), default=0)
            for epoch in self._manifest.epochs
        ]
        return max(noted, default=0)

    def verify_fingerprint(self, expected: str) -> bool:
        """Whether the batches are of the plan with this fingerprint."""
        return self.fingerprint == expected

    def verify(self, on_batch: Callable[[Path], None] | None = None) -> int:
        """Read every file; the first that is missing or wrong raises. Returns how many there are."""
        for epoch in self._manifest.epochs:
            self._require_files(epoch)
            for index in range(epoch.batches):
                self.get_batch(epoch.epoch, index)
                if on_batch is not None:
                    on_batch(_batch_path(self._folder, epoch.epoch, index))
        return sum(epoch.batches for epoch in self._manifest.epochs)

    def _epoch(self, epoch: int) -> EpochFiles:
        for files in self._manifest.epochs:
            if files.epoch == epoch:
                return files
        raise ValueError(
            f"{self._folder} has no epoch {epoch}; it has {[files.epoch for files in self._manifest.epochs]}"
        )

    def _require_files(self, files: EpochFiles) -> None:
        folder = _epoch_folder(self._folder, files.epoch)
        there = {entry.name for entry in os.scandir(folder)} if folder.is_dir() else set()
        for index in range(files.batches):
            path = _batch_path(self._folder, files.epoch, index)
            if path.name not in there:
                state = "" if files.complete else " (writing it was not finished)"
                raise FileNotFoundError(f"{path} is missing{state}; {self._remedy()}")

    def _remedy(self) -> str:
        return f"run BatchWriter again with plan {self.fingerprint} to write it"


def _epoch_folder(folder: Path, epoch: int) -> Path:
    return folder / f"epoch_{epoch}"


def _batch_path(folder: Path, epoch: int, index: int) -> Path:
    return _epoch_folder(folder, epoch) / f"batch_{index:06d}.npz"


def _read_members(path: Path, *, damaged_is_none: bool = False) -> dict[str, np.ndarray] | None:
    """Every array of a file that matches its seal."""
    try:
        # Opened here, because np.load leaves a file open that it cannot read.
        with open_verified(path, _REMEDY) as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    # np.load takes what is no archive for a pickle, and refuses it with a ValueError.
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        if damaged_is_none:
            return None
        if isinstance(error, CorruptFileError):
            raise
        raise CorruptFileError(f"{path} is corrupt ({error}); {_REMEDY}") from error


def _batch_from(members: dict[str, np.ndarray]) -> CollatedBatch:
    known = (*_FACTS, "input_ids", "loss_mask", "segment_ids", "position_ids")
    return CollatedBatch(
        input_ids=members["input_ids"],
        loss_mask=members["loss_mask"],
        segment_ids=members.get("segment_ids"),
        position_ids=members.get("position_ids"),
        extras={name: array for name, array in members.items() if name not in known},
        sample_ids=tuple(members["sample_ids"].tolist()),
        sample_rows=tuple(members["sample_rows"].tolist()),
        lengths=tuple(members["lengths"].tolist()),
        bucket_id=int(members["bucket_id"]),
        max_len=int(members["max_len"]),
        index=int(members["index"]),
    )


def _load_manifest(folder: Path) -> BatchManifest:
    path = folder / _MANIFEST
    manifest = load_model(BatchManifest, path, "a manifest of batches", "write the batches again")
    if manifest.format != _FORMAT or manifest.version != _VERSION:
        raise ValueError(f"{path}: {manifest.format} version {manifest.version}; this reads {_VERSION}")
    return manifest
