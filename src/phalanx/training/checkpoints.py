"""Checkpoints of a training: saved whole or not at all, sealed, and read back to the last bit.

What is saved is any pytree of arrays; which run it belongs to is told by a fingerprint of its config.
"""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from phalanx.config import Config, to_yaml
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import (
    CorruptFileError,
    read_verified_json,
    sha256_of_files,
    verify_sha256,
    write_json,
)
from phalanx.training.run_dir import CHECKPOINTS as FOLDER, FACTS, read_metadata

_LOG = logging.getLogger("phalanx.training")
BEST = "best"
SEAL = "digests.json"
"""The file of a checkpoint that tells the digests of the others."""
_WRITTEN_AFTER = ("_CHECKPOINT_METADATA", "commit_success.txt")
"""Orbax's own notes, which it renews when the seal is there already."""
Which = int | Literal["newest", "best"]
"""A checkpoint by its step, the newest one, or the best by `checkpoint.best`."""
_UNIMPORTANT = ("checkpoint", "logging")
"""Sections of a config that do not change what is computed."""


def config_digest(config: Config) -> str:
    """Of everything in a run's config that changes what is computed; its checkpoints carry it."""
    kept = {name: getattr(config, name) for name in type(config).model_fields if name not in _UNIMPORTANT}
    text = "\n".join(
        f"{name}: {to_yaml(value) if isinstance(value, Config) else value!r}" for name, value in kept.items()
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Checkpointer:
    """The checkpoints in a run's folder, the newest few of which are kept.

    Orbax writes each under a temporary name and renames it once it is sealed, so a kill in the middle leaves
    the older ones. What does not match its seal is refused on reading. Who only reads says so: what a
    training in another process is just writing is then left alone.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        keep: int = 3,
        folder: str = FOLDER,
        read_only: bool = False,
    ) -> None:
        import orbax.checkpoint as ocp

        # Orbax reports each of its steps to absl's logger, and each error that it raises with a traceback.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else keep,
            temporary_path_class=_sealing_path(),
            enable_async_checkpointing=False,
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            read_only=read_only,
        )
        self._place = (Path(run) / folder).absolute()
        self._checked: set[int] = set()
        self._manager = ocp.CheckpointManager(self._place, options=options)

    def close(self) -> None:
        """Let go of the folder."""
        self._manager.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def latest(self) -> int | None:
        """The step of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps of all checkpoints."""
        return sorted(self._manager.all_steps())

    def check(self, step: int) -> None:
        """Refuse a checkpoint that is not as it was saved: a file has changed or is missing."""
        if step in self._checked:
            return
        check_checkpoint(self._place / str(step))
        self._checked.add(step)

    def save(self, step: int, state: PyTree, facts: dict[str, Any]) -> None:
        """Save arrays and a few facts (numbers and text) about them.

        A step that is there already is left; one that is corrupt is saved anew.
        """
        import orbax.checkpoint as ocp

        if step in self._manager.all_steps():
            if self._is_whole(step):
                return
            self._manager.delete(step)
        # Orbax refuses empty arrays, which have nothing to save.
        arrays = {name: _plain(leaf) for name, leaf in named(state).items() if leaf.size}
        parts = ocp.args.Composite(state=ocp.args.StandardSave(arrays), facts=ocp.args.JsonSave(facts))
        try:
            self._manager.save(step, args=parts, force=True)
            self._manager.wait_until_finished()
        except BaseException:
            # What is there of it would keep holding a full disk's space.
            for left in self._place.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(left)
            raise

    def _is_whole(self, step: int) -> bool:
        try:
            self.check(step)
        except (CorruptFileError, FileNotFoundError):
            return False
        return True

    def facts(self, step: int) -> dict[str, Any]:
        """The facts saved with a checkpoint."""
        import orbax.checkpoint as ocp

        self.check(step)
        return self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore()))["facts"]

    def arrays(self, step: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Some arrays of a checkpoint by their names; the others are not read."""
        import orbax.checkpoint as ocp

        self.check(step)
        wanted = ocp.args.PyTreeRestore(
            item=dict.fromkeys(names, 0),
            restore_args=dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray)),
            partial_restore=True,
        )
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(self._place / str(step) / "state", args=wanted)

    def restore(self, step: int, like: PyTree) -> PyTree:
        """The arrays of a checkpoint in the places, types and devices of `like`."""
        import orbax.checkpoint as ocp

        self.check(step)
        wanted_leaves = named(like)
        targets = {name: _target(leaf) for name, leaf in wanted_leaves.items() if leaf.size}
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(targets))
        try:
            arrays = self._manager.restore(step, args=wanted)["state"]
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"checkpoint {step} does not fit this training (its arrays have other names or shapes): "
                f"{error}"
            ) from error
        leaves = [_as_before(arrays.get(name, leaf), leaf) for name, leaf in wanted_leaves.items()]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


def check_checkpoint(folder: Path) -> int:
    """Check the folder of a checkpoint against its seal. Returns how many files it has."""
    remedy = "go on from an older checkpoint"
    if not (folder / SEAL).is_file():
        raise CorruptFileError(
            f"{folder} is corrupt, or of another version of Phalanx: it has no {SEAL}; start a new run with "
            "another --out"
        )
    files = read_verified_json(folder / SEAL, remedy)["files"]
    for name, digest in files.items():
        verify_sha256(folder / name, digest, remedy)
    return len(files)


@functools.cache
def _sealing_path() -> Any:
    """Orbax's temporary folder of a checkpoint, which is sealed before it gets its name."""
    import orbax.checkpoint as ocp

    class SealingPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
        async def finalize(self) -> None:
            folder = Path(self.get())
            digests = sha256_of_files(folder, exclude=_WRITTEN_AFTER)
            with atomic_write(folder / SEAL, "w", checksum=True) as file:
                write_json(file, {"files": digests}, indent=1)
            await super().finalize()

    return SealingPath


def newest_checkpoint(checkpoints: Checkpointer, run: Path) -> tuple[int, dict[str, Any]]:
    """The step and the facts of a run's newest whole checkpoint; damaged ones are passed over aloud."""
    return next(readable_checkpoints(checkpoints, run))


def readable_checkpoints(checkpoints: Checkpointer, run: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The steps and facts of a run's whole checkpoints, the newest first; there is one, or it is an error."""
    found, damage = False, ""
    for step in reversed(checkpoints.steps()):
        try:
            facts = checkpoints.facts(step)
        except (CorruptFileError, FileNotFoundError) as error:
            _LOG.warning("checkpoint %d of %s is skipped: %s", step, run, error)
            damage = damage or f"; {error}"
            continue
        found = True
        yield step, facts
    if not found:
        raise ValueError(
            f"{run} has no checkpoint to resume from: start it again with --resume auto, or a new run with "
            f"another --out{damage}"
        )


@contextlib.contextmanager
def open_checkpoint(run: Path, which: Which = "newest") -> Iterator[tuple[Checkpointer, int, dict[str, Any]]]:
    """A run's checkpoints to read from, and the step and the facts of one of them."""
    folder = BEST if which == BEST else FOLDER
    if which == BEST and not (run / BEST).is_dir():
        raise ValueError(f"{run} has no best checkpoint: it was trained without checkpoint.best")
    if not (run / folder).is_dir():
        raise ValueError(f"{run} has no checkpoint")
    with Checkpointer(run, folder=folder, read_only=True) as checkpoints:
        step, facts = newest_checkpoint(checkpoints, run)
        if isinstance(which, int) and which != step:
            if which not in checkpoints.steps():
                there = ", ".join(map(str, checkpoints.steps()))
                raise ValueError(f"{run} has no checkpoint {which}; there are {there}")
            step, facts = which, checkpoints.facts(which)
        yield checkpoints, step, facts


def check_metadata(run: Path, step: int, facts: Mapping[str, Any], config: Config) -> None:
    """A checkpoint must have been saved with this config, or with one that the run was extended from."""
    if missing := {"config", "data", "seconds", "counts", "algorithm"} - facts.keys():
        raise ValueError(
            f"checkpoint {step} of {run} was saved by another version of Phalanx: it lacks "
            f"{', '.join(sorted(missing))}; start a new run with another --out"
        )
    extended = read_metadata(run).get("extended", []) if (run / FACTS).exists() else []
    if facts["config"] not in (config_digest(config), *(one["config"] for one in extended)):
        raise ValueError(
            f"checkpoint {step} of {run} was saved with another config than its config.yaml holds"
        )


def named(tree: PyTree) -> dict[str, Any]:
    """Every array by its path; Orbax's names may not have dots and brackets."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="-"): leaf for path, leaf in leaves}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    """Random keys are an array type of their own, which only their data can be saved of."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _target(leaf: Any) -> Any:
    plain = _plain(leaf)
    if isinstance(plain, jax.Array):
        return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=plain.sharding)
    return np.asarray(plain)


def _as_before(array: Any, like: Any) -> Any:
    if isinstance(like, jax.Array) and not like.committed and not _is_key(array):
        # Orbax ties arrays to a device, and an update would be compiled again for such.
        array = jnp.asarray(np.asarray(array))
    if _is_key(like) and not _is_key(array):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return array
