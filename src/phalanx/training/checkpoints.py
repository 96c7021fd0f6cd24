"""Checkpoints of training runs. They are written atomically, have checksums and are restored bit for bit."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PyTree

from phalanx.config import Config
from phalanx.core.vector import key_type_of, with_key_type, without_key_type
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import (
    CorruptFileError,
    read_verified_json,
    sha256_of_files,
    verify_sha256,
    write_json,
)
from phalanx.io.yaml_files import read_yaml
from phalanx.training.config import CheckpointConfig
from phalanx.training.run_dir import CHECKPOINTS, CONFIG, METADATA, load_metadata

_LOG = logging.getLogger("phalanx.training")
CHECKSUMS = "checksums.json"
"""Name of the file in a checkpoint that contains the SHA-256 digests of its other files."""
_WRITTEN_LATER = ("_CHECKPOINT_METADATA", "commit_success.txt")
"""Names of files that have no checksum, because Orbax changes them after the checksums are written."""
_SECONDS_FOR_ABANDONED_WRITES = 0.2
_RESERVED_IN_PATHS = re.compile(r"[*?\[\]\\]|:/")
"""Matches parts of a path that Orbax or TensorStore interprets as a pattern, an escape sequence or a URL."""
_OS_ERROR_CODE = re.compile(r"\[os_error_code='(\d+)'")
"""Matches the `errno` in an error message of TensorStore."""
Which = int | Literal["newest", "best"]
"""Selects a checkpoint of a run: a number of completed updates, `newest`, or `best` for the checkpoint with
the best value of `checkpoint.best_metric`."""
_MAX_NAMES = 2
"""Maximum number of arrays that an error message lists."""
_NOT_COMPUTED_WITH = ("checkpoint", "logging")
"""Names of the config sections that do not affect the result of training."""


@dataclasses.dataclass(frozen=True)
class CheckpointRef:
    """Reference to a checkpoint of a run."""

    run: Path
    which: Which = "newest"

    @classmethod
    def parse(cls, text: str) -> "CheckpointRef":
        """Parse `RUN`, `RUN@STEP` or `RUN@best`.

        >>> CheckpointRef.parse("runs/arc@40").which, CheckpointRef.parse("runs/arc@best").which
        (40, 'best')
        """
        path, at, which = text.rpartition("@")
        if at and (which == "best" or which.isdecimal()):
            return cls(Path(path), "best" if which == "best" else int(which))
        return cls(Path(text))

    @property
    def seeds(self) -> list[Path]:
        """Folders of the seeds, sorted by number. Empty if the run has only one seed."""
        found = [path for path in self.run.glob("seed_*") if re.fullmatch(r"seed_\d+", path.name)]
        return sorted(found, key=lambda path: int(path.name.removeprefix("seed_")))

    def for_seed(self, number: int) -> "CheckpointRef":
        """Return a reference to the checkpoint of one seed of the run.

        If the run has only one seed, return this reference unchanged.

        Args:
            number: Index into `seeds`, counted from 0. It is not the value of the seed.

        Raises:
            ValueError: If the run has several seeds and `number` is out of range.
        """
        seeds = self.seeds
        if not seeds:
            return self
        if number >= len(seeds):
            raise ValueError(
                f"{self.run} has {len(seeds)} seeds, but seed {number} is needed; choose one of them, such "
                f"as {seeds[0]}"
            )
        return dataclasses.replace(self, run=seeds[number])


class Checkpointer(contextlib.AbstractContextManager["Checkpointer"]):
    """Saves and restores the checkpoints of a run.

    A checkpoint is identified by its step, which is the number of completed updates.

    Orbax writes a checkpoint under a temporary name and renames it when it is complete and has checksums.
    Therefore, a killed process leaves the earlier checkpoints intact. A checkpoint whose files do not match
    their checksums is rejected when it is read.

    The newest `config.keep` checkpoints are kept, and also the checkpoint with the best value of
    `config.best_metric`.

    Args:
        run: Run folder.
        config: Settings that determine which checkpoints to keep. Defaults to `CheckpointConfig()`.
        read_only: Never change or remove files. Set this if the run may still be in progress in another
            process.
    """

    def __init__(
        self, run: str | os.PathLike[str], config: CheckpointConfig | None = None, *, read_only: bool = False
    ) -> None:
        import orbax.checkpoint as ocp

        # Orbax logs every step and the traceback of every error that it raises, and asyncio logs those of the
        # writes that Orbax abandons when another write has failed.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._config = CheckpointConfig() if config is None else config
        self._folder = (Path(run) / CHECKPOINTS).absolute()
        self._verified: set[int] = set()
        self._scores: dict[int, float] = {}
        policies = ocp.checkpoint_managers
        # Orbax's BestN cannot be used: its manager fails to open if a file with metrics is damaged.
        kept = [policies.LatestN(self._config.keep), self]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=None if read_only else policies.AnyPreservationPolicy(kept),
            temporary_path_class=_checksummed_path_class(),
            enable_async_checkpointing=False,
            cleanup_tmp_directories=not read_only,
            create=False,
            read_only=read_only,
        )
        if not read_only:
            self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            self._orbax_folder = stack.enter_context(_path_for_orbax(self._folder))
            self._manager = ocp.CheckpointManager(self._orbax_folder, options=options)
            stack.callback(self._manager.close)
            if self._config.best_metric is not None:
                for step in self.steps():
                    if self._is_intact(step):
                        self._add_score(step, self.metadata(step).get("metrics"))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Release all resources."""
        self._stack.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def best(self) -> int | None:
        """Return the step of the intact checkpoint with the best value of `config.best_metric`.

        If several checkpoints are equally good, the earliest one is returned. The result is None if no
        checkpoint has a value for the metric.
        """
        return min(self._scores, key=lambda step: (-self._scores[step], step), default=None)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return for each checkpoint whether it is the best checkpoint, which must not be removed.

        Orbax calls this method after saving.
        """
        best = self.best()
        return [info.step == best for info in checkpoints]

    def is_better(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether `metrics` has a better value of `config.best_metric` than every existing checkpoint.

        Raises:
            ValueError: If `config.best_metric` is not in `metrics`.
        """
        score = self._score(metrics)
        return not math.isnan(score) and all(score > other for other in self._scores.values())

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints."""
        return sorted(self._manager.all_steps())

    def verify(self, step: int) -> None:
        """Raise an error if a file of a checkpoint was changed or is missing.

        The error is a `CorruptFileError` or `FileNotFoundError`. A checkpoint that was found intact is not
        verified again.
        """
        if step not in self._verified:
            verify_checkpoint(self._folder / str(step))
            self._verified.add(step)

    def save(
        self,
        step: int,
        state: PyTree,
        metadata: Mapping[str, Any],
        state_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a checkpoint, and remove old checkpoints that need not be kept.

        An existing checkpoint for this step is replaced only if it is corrupt or has different metrics. If
        the checkpoint cannot be written, for example because the disk is full, `OSError` is raised.

        Args:
            step: Number of completed updates.
            state: Pytree of arrays.
            metadata: JSON values by name. The `metrics` entry contains the metrics of the evaluation at this
                step, or None if there was no evaluation.
            state_dict: Result of `Algorithm.state_dict`: JSON values and NumPy arrays by name.
        """
        import orbax.checkpoint as ocp

        metrics = metadata.get("metrics")
        if step in self._manager.all_steps():
            if self._is_intact(step) and self.metadata(step).get("metrics") == metrics:
                return
            self._manager.delete(step)
            self._verified.discard(step)
            self._scores.pop(step, None)
        # Orbax rejects empty arrays.
        arrays = {name: without_key_type(leaf) for name, leaf in arrays_by_name(state).items() if leaf.size}
        other, other_arrays = _split_arrays(state_dict or {})
        items: dict[str, Any] = {
            "state": ocp.args.StandardSave(arrays),
            "metadata": ocp.args.JsonSave(dict(metadata)),
            "state_dict": ocp.args.JsonSave(other),
        }
        if other_arrays:
            items["state_dict_arrays"] = ocp.args.StandardSave(other_arrays)
        self._add_score(step, metrics)
        try:
            with _ignore_abandoned_writes():
                self._manager.save(step, args=ocp.args.Composite(**items), force=True)
                self._manager.wait_until_finished()
        except BaseException as error:
            self._scores.pop(step, None)
            # On a full disk, an incomplete checkpoint would continue to take up space.
            for path in self._folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(path, ignore_errors=True)
            # TensorStore reports errors of the operating system as ValueError.
            if isinstance(error, ValueError) and (code := _OS_ERROR_CODE.search(str(error))):
                number = int(code[1])
                raise OSError(number, os.strerror(number), str(self._folder / str(step))) from error
            raise
        self._scores = {kept: score for kept, score in self._scores.items() if kept in self.steps()}

    def metadata(self, step: int) -> dict[str, Any]:
        """Return the metadata of a checkpoint, after verifying all of its files."""
        import orbax.checkpoint as ocp

        self.verify(step)
        items = ocp.args.Composite(metadata=ocp.args.JsonRestore())
        return self._manager.restore(step, args=items)["metadata"]

    def load_state_dict(self, step: int) -> dict[str, Any]:
        """Return the `state_dict` of a checkpoint, after verifying all of its files."""
        import orbax.checkpoint as ocp

        self.verify(step)
        items = ocp.args.Composite(state_dict=ocp.args.JsonRestore())
        saved = self._manager.restore(step, args=items)["state_dict"]
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in saved["empty_arrays"].items()}
        folder = self._orbax_folder / str(step) / "state_dict_arrays"
        if folder.is_dir():
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                arrays |= jax.tree.map(np.asarray, reader.restore(folder))
        return {**saved["values"], **arrays}

    def load_arrays(self, step: int, names: Sequence[str], *, partial: bool = True) -> dict[str, np.ndarray]:
        """Read arrays from a checkpoint by name. The names are those that `arrays_by_name` returns.

        If `partial` is false, `names` must include all arrays in the checkpoint.
        """
        import orbax.checkpoint as ocp

        self.verify(step)
        selection = ocp.args.PyTreeRestore(
            item=dict.fromkeys(names, 0),
            restore_args=dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray)),
            partial_restore=partial,
        )
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(self._orbax_folder / str(step) / "state", args=selection)

    def restore(self, step: int, like: PyTree) -> PyTree:
        """Restore all arrays of a checkpoint, with the structure and devices of `like`.

        Raises:
            ValueError: If the names, shapes or types of the arrays differ from `like`.
        """
        self.verify(step)
        names = [name for name, leaf in arrays_by_name(like).items() if leaf.size]
        try:
            arrays = self.load_arrays(step, names, partial=False)
        except (KeyError, ValueError) as error:
            raise ValueError(f"checkpoint {step} does not fit this training: {error}") from error
        return transfer_arrays(arrays, like, f"checkpoint {step}")

    def _is_intact(self, step: int) -> bool:
        try:
            self.verify(step)
        except (CorruptFileError, FileNotFoundError) as error:
            _LOG.warning("ignoring checkpoint %d: %s", step, error)
            return False
        return True

    def _add_score(self, step: int, metrics: Mapping[str, Any] | None) -> None:
        if self._config.best_metric is not None and metrics:
            score = self._score(metrics)
            if not math.isnan(score):
                self._scores[step] = score

    def _score(self, metrics: Mapping[str, Any]) -> float:
        """Return the value of `best_metric`, negated if lower values are better."""
        name = self._config.best_metric
        if name is None or name not in metrics:
            raise ValueError(
                f"checkpoint.best_metric is {name!r}, which is not a metric of this run's evaluations; "
                f"choose one of {', '.join(metrics)}"
            )
        return float(metrics[name]) * (1 if self._config.best_mode == "max" else -1)


def _split_arrays(state_dict: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Split a `state_dict` into JSON values and arrays. Orbax rejects empty arrays, so these become JSON."""
    arrays = {name: value for name, value in state_dict.items() if isinstance(value, np.ndarray)}
    values = {name: value for name, value in state_dict.items() if name not in arrays}
    empty = {name: [list(a.shape), a.dtype.name] for name, a in arrays.items() if not a.size}
    return {"values": values, "empty_arrays": empty}, {name: a for name, a in arrays.items() if a.size}


@contextlib.contextmanager
def _ignore_abandoned_writes() -> Iterator[None]:
    """Do not print the errors of the writes that Orbax abandons when another write has failed.

    If an error occurs, wait for these writes, because they would otherwise write to a removed folder.
    """
    hook = sys.unraisablehook

    def ignore(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = ignore
    try:
        yield
    except Exception:
        time.sleep(_SECONDS_FOR_ABANDONED_WRITES)
        raise
    finally:
        sys.unraisablehook = hook


@functools.cache
def _checksummed_path_class() -> Any:
    """Return a subclass of Orbax's class for temporary folders that writes checksums before renaming."""
    import orbax.checkpoint as ocp

    class ChecksummedPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
        async def finalize(self) -> None:
            folder = Path(self.get())
            digests = sha256_of_files(folder, exclude=_WRITTEN_LATER)
            with atomic_write(folder / CHECKSUMS, "w", checksum=True) as file:
                write_json(file, {"files": digests}, indent=1)
            await super().finalize()

    return ChecksummedPath


@contextlib.contextmanager
def _path_for_orbax(folder: Path) -> Iterator[Path]:
    """Yield a path to `folder` in which no character has a special meaning in Orbax or TensorStore.

    In a folder such as `a[1]`, Orbax does not find the files that it has just written, and saves a checkpoint
    without arrays. For such a folder, the path is a temporary symbolic link.
    """
    if not _RESERVED_IN_PATHS.search(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-checkpoints-") as temporary:
        link = Path(temporary, "checkpoints")
        if _RESERVED_IN_PATHS.search(str(link)):
            raise ValueError(
                f"neither {folder} nor the temporary folder {temporary} can store checkpoints: their paths "
                "contain one of * ? [ ] \\ :/ ; set TMPDIR to another folder"
            )
        link.symlink_to(folder, target_is_directory=True)
        yield link


def verify_checkpoint(folder: Path) -> int:
    """Verify the checksums of a checkpoint.

    Returns:
        The number of verified files.

    Raises:
        CorruptFileError: If a file was changed, or the checkpoint has no checksums.
    """
    remedy = "resume from an earlier checkpoint"
    if not (folder / CHECKSUMS).is_file():
        raise CorruptFileError(
            f"{folder} is corrupt or was saved by another version of Phalanx: it has no {CHECKSUMS}; start a "
            "new run with another --out"
        )
    files = read_verified_json(folder / CHECKSUMS, remedy)["files"]
    for name, digest in files.items():
        verify_sha256(folder / name, digest, remedy)
    return len(files)


def intact_checkpoints(checkpoints: Checkpointer, run: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the step and metadata of each intact checkpoint of a run, newest first.

    Corrupt checkpoints are skipped with a warning.

    Raises:
        ValueError: If there is no intact checkpoint.
    """
    found, first_error = False, ""
    for step in reversed(checkpoints.steps()):
        try:
            metadata = checkpoints.metadata(step)
        except (CorruptFileError, FileNotFoundError) as error:
            _LOG.warning("skipping checkpoint %d of %s: %s", step, run, error)
            first_error = first_error or f"; {error}"
            continue
        found = True
        yield step, metadata
    if not found:
        raise ValueError(
            f"{run} has no checkpoint to resume from: start it again with --auto-resume, or start a new run "
            f"with another --out{first_error}"
        )


@contextlib.contextmanager
def open_checkpoint(run: Path, which: Which = "newest") -> Iterator[tuple[Checkpointer, int, dict[str, Any]]]:
    """Open a checkpoint of a run for reading.

    Yields:
        A `Checkpointer` for the run, and the step and metadata of the selected checkpoint.
    """
    if not (run / CHECKPOINTS).is_dir():
        raise ValueError(f"{run} has no checkpoint")
    config = None
    if which == "best":
        config = CheckpointConfig.model_validate((read_yaml(run / CONFIG) or {}).get("checkpoint", {}))
        if config.best_metric is None:
            raise ValueError(f"{run} has no best checkpoint: it was trained without checkpoint.best_metric")
    with Checkpointer(run, config, read_only=True) as checkpoints:
        if which == "newest":
            step, metadata = next(intact_checkpoints(checkpoints, run))
            yield checkpoints, step, metadata
            return
        chosen = checkpoints.best() if which == "best" else which
        if chosen is None:
            raise ValueError(f"{run} has no best checkpoint: no evaluation was saved")
        if chosen not in checkpoints.steps():
            steps = ", ".join(map(str, checkpoints.steps()))
            raise ValueError(f"{run} has no checkpoint {chosen}; available: {steps}")
        yield checkpoints, chosen, checkpoints.metadata(chosen)


def config_digest(config: Config) -> str:
    """Return a digest of the settings that affect the result of training, to be stored in checkpoints."""
    values = config.model_dump(mode="json", exclude=set(_NOT_COMPUTED_WITH))
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def check_metadata(run: Path, step: int, metadata: Mapping[str, Any], config: Config) -> None:
    """Raise ValueError if a checkpoint was saved with a config that differs from the config of the run.

    If the run was extended, its earlier configs are accepted as well. ValueError is also raised if `metadata`
    lacks entries, which means that another version of Phalanx saved the checkpoint.

    Args:
        run: Run folder.
        step: Step of the checkpoint.
        metadata: Metadata of the checkpoint.
        config: Config of the run.
    """
    required = {"config", "data", "seconds", "counts", "metrics", "params"}
    if missing := required - metadata.keys():
        raise ValueError(
            f"checkpoint {step} of {run} was saved by another version of Phalanx: it lacks "
            f"{', '.join(sorted(missing))}; start a new run with another --out"
        )
    extended = load_metadata(run).get("extended", []) if (run / METADATA).exists() else []
    if metadata["config"] not in (config_digest(config), *(entry["config"] for entry in extended)):
        raise ValueError(f"checkpoint {step} of {run} was saved with a config that differs from config.yaml")


def arrays_by_name(tree: PyTree) -> dict[str, Any]:
    """Return the arrays of a pytree by name.

    The name of an array is its path in the pytree, joined with `-` because Orbax does not allow dots.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="-"): leaf for path, leaf in leaves}


def transfer_arrays(arrays: Mapping[str, np.ndarray], like: PyTree, what: str) -> PyTree:
    """Copy arrays that were read from a checkpoint to the devices of `like`.

    Args:
        arrays: Arrays by the names that `arrays_by_name` returns for `like`.
        like: Pytree with the expected structure, shapes and types, on the devices to use.
        what: Description of the arrays, for the error message.

    Raises:
        ValueError: If the names, shapes or types of the arrays differ from `like`.
    """
    leaves = arrays_by_name(like)
    expected = {name: without_key_type(leaf) for name, leaf in leaves.items()}
    # Checkpoints contain no empty arrays.
    empty = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in expected.items() if not leaf.size}
    arrays = {**arrays, **empty}
    there, here = ({name: _describe(leaf) for name, leaf in each.items()} for each in (arrays, expected))
    differing = [
        f"{name or 'the array'} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if differing:
        more = f"; and {len(differing) - _MAX_NAMES} more" if len(differing) > _MAX_NAMES else ""
        raise ValueError(f"{what} has a different structure: {'; '.join(differing[:_MAX_NAMES])}{more}")
    leaves_on_devices = [_transfer(arrays[name], leaf) for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves_on_devices)


def _describe(array: Any) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _transfer(array: np.ndarray, like: Any) -> Any:
    # Programs would be compiled again if an array were committed to a device and `like` is not.
    sharding = like.sharding if isinstance(like, jax.Array) and like.committed else None
    # The memory must not be shared with NumPy, because programs may reuse the memory of their arguments.
    return with_key_type(jax.device_put(array, sharding, may_alias=False), key_type_of(like))
