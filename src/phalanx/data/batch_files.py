"""Folders of collated batches.

A batch folder contains the plan, a manifest, and one subfolder per epoch with one NPZ file per batch.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from phalanx.config import FrozenModel, load_model, save_model
from phalanx.data.collation import CollateFn, SampleLike, TokenBatch, collate
from phalanx.data.lengths import LengthTable
from phalanx.data.npz_files import open_npz, write_npz
from phalanx.data.packing import PackLayout
from phalanx.data.plans.batch_plan import BatchPlan, BatchSpec
from phalanx.data.plans.plan_files import PLAN_FILE, load_batch_plan, save_batch_plan
from phalanx.io.atomic import remove_stale_temporaries
from phalanx.io.checksum import CorruptFileError

_FORMAT = "phalanx.batches"
_VERSION = 1
_MANIFEST = "manifest.json"
_REMEDY = "delete it and run BatchWriter again"
# Names of the arrays in a batch file that contain metadata.
_METADATA = ("sample_ids", "sample_rows", "lengths", "bucket_id", "max_len", "index", "epoch", "plan")


class EpochStatus(FrozenModel):
    """Status of one epoch in a batch folder."""

    epoch: int
    """Epoch number, counted from 0."""
    batches: int
    """Number of batch files that the epoch has when it is complete."""
    complete: bool = False
    """True if all batch files of the epoch have been written."""
    largest_token: int | None = None
    """Largest token id in the epoch. To train on the epoch, a model needs a larger vocabulary size. None if
    the epoch is incomplete."""


class BatchManifest(FrozenModel):
    """Contents of a batch folder, as stored in `manifest.json`."""

    format: str = _FORMAT
    version: int = _VERSION
    fingerprint: str
    """Fingerprint of the batch plan."""
    dataset_hash: str = ""
    """String that identifies the dataset. Empty if it is unknown."""
    tokenizer_hash: str = ""
    """String that identifies the tokenizer and its settings, such as the result of
    `TokenizeConfig.tokenizer_hash`. Empty if it is unknown."""
    pad_id: int
    """Padding token."""
    num_epochs: int
    """Number of epochs in the plan."""
    epochs: tuple[EpochStatus, ...]
    """Status of each epoch."""


@dataclasses.dataclass(eq=False, repr=False)
class BatchWriter:
    """Writes the batches of a plan and the plan itself to a folder.

    If writing was interrupted, write to the same folder again: intact files are kept, and missing or damaged
    files are written. If an intact file does not contain the expected batch, `ValueError` is raised. Files
    are written atomically.
    """

    plan: BatchPlan
    """Plan whose batches are written."""
    samples: Mapping[str, SampleLike]
    """Mapping from ids to samples."""
    output_dir: str | os.PathLike[str]
    """Folder to which the files are written. It must be empty, or contain batches of the same plan."""
    collate_fn: CollateFn | None = None
    """Function that creates additional arrays for batches that are not packed (see `CollateFn`)."""
    pad_id: int = 0
    """Padding token."""

    def __post_init__(self) -> None:
        self._folder = Path(self.output_dir)

    def write_all(self, on_batch: Callable[[Path], None] | None = None) -> list[Path]:
        """Write all epochs and return the paths of the files.

        `on_batch` is called with the path of each file after the file is written or found to be intact.
        """
        return [path for epoch in self.plan.epochs for path in self.write_epoch(epoch.epoch, on_batch)]

    def write_epoch(self, epoch: int, on_batch: Callable[[Path], None] | None = None) -> list[Path]:
        """Write one epoch and return the paths of its files.

        `on_batch` is called with the path of each file after the file is written or found to be intact.
        """
        batches = self.plan.get_epoch(epoch)
        manifest = self._open_manifest()
        if not (self._folder / PLAN_FILE).exists():
            save_batch_plan(self.plan, self._folder)
        folder = _epoch_folder(self._folder, epoch)
        folder.mkdir(exist_ok=True)
        remove_stale_temporaries(folder)
        paths = [_batch_path(self._folder, epoch, index) for index in range(len(batches))]
        largest = 0
        for path, spec in zip(paths, batches, strict=True):
            largest = max(largest, self._write(path, spec))
            if on_batch is not None:
                on_batch(path)
        changes = {"complete": True, "largest_token": largest}
        epochs = (e.model_copy(update=changes) if e.epoch == epoch else e for e in manifest.epochs)
        save_model(manifest.model_copy(update={"epochs": tuple(epochs)}), self._folder / _MANIFEST)
        return paths

    def _open_manifest(self) -> BatchManifest:
        """Read the manifest of the folder, and check that it belongs to the plan.

        If the folder is empty or missing, create the manifest.
        """
        expected = BatchManifest(
            fingerprint=self.plan.fingerprint,
            dataset_hash=self.plan.meta.dataset_hash,
            tokenizer_hash=self.plan.meta.tokenizer_hash,
            pad_id=self.pad_id,
            num_epochs=self.plan.num_epochs,
            epochs=tuple(EpochStatus(epoch=e.epoch, batches=len(e)) for e in self.plan.epochs),
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_stale_temporaries(self._folder)
        if (self._folder / _MANIFEST).exists():
            manifest = _load_manifest(self._folder)
            if manifest.fingerprint != expected.fingerprint:
                raise ValueError(
                    f"{self._folder} has batches of plan {manifest.fingerprint}, not of this plan "
                    f"{expected.fingerprint}; choose another folder or delete it"
                )
            if manifest.pad_id != expected.pad_id:
                raise ValueError(
                    f"{self._folder} was written with pad_id {manifest.pad_id}, not {expected.pad_id}; use "
                    f"the same value, or choose another folder"
                )
            return manifest
        if any(self._folder.iterdir()):
            raise FileExistsError(
                f"{self._folder} is not empty and has no {_MANIFEST}; choose another folder"
            )
        save_model(expected, self._folder / _MANIFEST)
        return expected

    def _write(self, path: Path, spec: BatchSpec) -> int:
        """Write one batch file unless an intact one exists. Return the largest token id of the batch."""
        batch = collate(spec, self.samples, pad_id=self.pad_id, collate_fn=self.collate_fn)
        arrays = {"input_ids": batch.input_ids, "loss_mask": batch.loss_mask, **batch.columns}
        if spec.packed:
            arrays |= {"segment_ids": batch.segment_ids, "position_ids": batch.position_ids}
        metadata = {
            "sample_ids": np.array(spec.sample_ids, np.str_),
            "sample_rows": batch.layout.segment_rows.astype(np.int32),
            "lengths": batch.layout.lengths.astype(np.int32),
            "bucket_id": np.array(spec.bucket_id),
            "max_len": np.array(spec.max_length),
            "index": np.array(spec.index),
            "epoch": np.array(spec.epoch),
            "plan": np.array(self.plan.fingerprint),
        }
        if reserved := sorted(arrays.keys() & metadata.keys()):
            raise ValueError(f"{path}: collate_fn must not return arrays named {', '.join(reserved)}")
        members = arrays | metadata
        largest = int(batch.input_ids.max(initial=0))
        existing = None
        with contextlib.suppress(CorruptFileError, OSError):
            existing = _load_members(path)
        if existing is None:
            write_npz(path, members)
        elif existing.keys() != members.keys() or not all(
            np.array_equal(existing[name], members[name]) for name in members
        ):
            raise ValueError(
                f"{path} differs from the batch of the plan and the samples: the samples or the file have "
                f"changed; delete it, or choose another folder"
            )
        return largest


class BatchReader:
    """Reads batches from a folder that `BatchWriter` wrote.

    Raises an error if a file is missing, is damaged or does not belong to the plan.
    """

    def __init__(self, batch_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(batch_dir)
        if not (self._folder / _MANIFEST).is_file():
            raise FileNotFoundError(f"{self._folder} has no {_MANIFEST}: it is not a batch folder")
        self.manifest = _load_manifest(self._folder)
        """Contents of `manifest.json`."""

    @property
    def plan(self) -> BatchPlan:
        """Batch plan that is stored in the folder."""
        if not (self._folder / PLAN_FILE).is_file():
            raise FileNotFoundError(f"{self._folder} has no {PLAN_FILE}; write the batches again")
        return load_batch_plan(self._folder)

    @property
    def num_epochs(self) -> int:
        """Number of epochs in the plan."""
        return self.manifest.num_epochs

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the plan."""
        return self.manifest.fingerprint

    def num_batches(self, epoch: int) -> int:
        """Return the number of batches in one epoch."""
        return self._epoch(epoch).batches

    def iter_epoch(self, epoch: int) -> Iterator[TokenBatch]:
        """Iterate over the batches of one epoch.

        Missing files raise an error before the first batch is read.
        """
        self._require_files(self._epoch(epoch))
        return (self.get_batch(epoch, index) for index in range(self.num_batches(epoch)))

    def get_batch(self, epoch: int, index: int) -> TokenBatch:
        """Read the batch at position `index` of an epoch."""
        count = self.num_batches(epoch)
        if not 0 <= index < count:
            raise ValueError(f"batch index must be between 0 and {count - 1} in epoch {epoch}, got {index}")
        path = _batch_path(self._folder, epoch, index)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; {self._remedy()}")
        members = _load_members(path)
        if missing := [name for name in (*_METADATA, "input_ids", "loss_mask") if name not in members]:
            raise ValueError(f"{path} is not a batch file: it has no {', '.join(missing)}")
        actual = (str(members["plan"]), int(members["epoch"]), int(members["index"]))
        if actual != (self.fingerprint, epoch, index):
            raise ValueError(
                f"{path} has batch {actual[2]} of epoch {actual[1]} of plan {actual[0]}, not batch {index} "
                f"of epoch {epoch} of plan {self.fingerprint}; {self._remedy()}"
            )
        return create_batch(members)

    def largest_token(self) -> int:
        """Return the largest token id in any batch.

        For complete epochs, the value is taken from the manifest. For incomplete epochs, all batches are
        read.
        """
        largest = [0]
        for epoch in self.manifest.epochs:
            if epoch.largest_token is not None:
                largest.append(epoch.largest_token)
            else:
                largest += [int(batch.input_ids.max(initial=0)) for batch in self.iter_epoch(epoch.epoch)]
        return max(largest)

    def verify_fingerprint(self, expected: str) -> bool:
        """Return whether the fingerprint of the plan is `expected`."""
        return self.fingerprint == expected

    def verify(self) -> int:
        """Read every file and return the number of files. Raises an error if a file is missing or damaged."""
        return sum(1 for epoch in self.manifest.epochs for _ in self.iter_epoch(epoch.epoch))

    def _epoch(self, epoch: int) -> EpochStatus:
        for files in self.manifest.epochs:
            if files.epoch == epoch:
                return files
        epochs = [files.epoch for files in self.manifest.epochs]
        raise ValueError(f"{self._folder} has the epochs {epochs}, not epoch {epoch}")

    def _require_files(self, files: EpochStatus) -> None:
        folder = _epoch_folder(self._folder, files.epoch)
        existing = {entry.name for entry in os.scandir(folder)} if folder.is_dir() else set()
        for index in range(files.batches):
            path = _batch_path(self._folder, files.epoch, index)
            if path.name not in existing:
                state = "" if files.complete else " (the epoch is incomplete)"
                raise FileNotFoundError(f"{path} is missing{state}; {self._remedy()}")

    def _remedy(self) -> str:
        return f"run BatchWriter again with plan {self.fingerprint}"


def _epoch_folder(folder: Path, epoch: int) -> Path:
    return folder / f"epoch_{epoch}"


def _batch_path(folder: Path, epoch: int, index: int) -> Path:
    return _epoch_folder(folder, epoch) / f"batch_{index:06d}.npz"


def _load_members(path: Path) -> dict[str, np.ndarray]:
    with open_npz(path, _REMEDY) as archive:
        return dict(archive)


def create_batch(members: Mapping[str, np.ndarray]) -> TokenBatch:
    """Create a batch from the arrays of a batch file. `members` maps array names to arrays."""
    input_ids, lengths = members["input_ids"], members["lengths"].astype(np.int32)
    packed = "segment_ids" in members
    offsets = np.searchsorted(members["sample_rows"], np.arange(len(input_ids) + 1)).astype(np.int64)
    layout = PackLayout(
        samples=np.arange(len(lengths), dtype=np.int32),
        lengths=lengths,
        offsets=offsets,
        width=int(members["max_len"]),
    )
    if packed:
        segment_ids, position_ids = members["segment_ids"], members["position_ids"]
    else:
        columns = np.arange(input_ids.shape[1], dtype=np.int32)
        segment_ids = (columns < lengths[:, None]).astype(np.int32)
        position_ids = columns * segment_ids
    known = (*_METADATA, "input_ids", "loss_mask", "segment_ids", "position_ids")
    table = LengthTable(members["sample_ids"].tolist(), lengths).trust()
    return TokenBatch(
        input_ids=input_ids,
        loss_mask=members["loss_mask"].astype(np.int8),
        segment_ids=segment_ids,
        position_ids=position_ids,
        layout=layout,
        columns={name: array for name, array in members.items() if name not in known},
        spec=BatchSpec(
            int(members["epoch"]), int(members["index"]), int(members["bucket_id"]), packed, layout, table
        ),
    )


def _load_manifest(folder: Path) -> BatchManifest:
    path = folder / _MANIFEST
    manifest = load_model(BatchManifest, path, "a batch manifest", "write the batches again")
    if manifest.format != _FORMAT or manifest.version != _VERSION:
        raise ValueError(
            f"{path} has format {manifest.format} version {manifest.version}, but this release reads "
            f"{_FORMAT} version {_VERSION}"
        )
    return manifest
