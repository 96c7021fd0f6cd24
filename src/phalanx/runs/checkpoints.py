"""Checkpoints of a training: saved whole or not at all, and read back to the last bit.

What is saved is any pytree of arrays; which run it belongs to is told by a fingerprint of its config.
"""

import hashlib
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from phalanx.core.config import Config, to_yaml

FOLDER = "checkpoints"
_UNIMPORTANT = ("checkpoint", "logging")
"""Sections of a config that do not change what is computed."""


def config_digest(config: Config) -> str:
    """Of everything in a run's config that changes what is computed; its checkpoints carry it."""
    kept = {name: getattr(config, name) for name in type(config).model_fields if name not in _UNIMPORTANT}
    text = "\n".join(
        f"{name}: {to_yaml(value) if isinstance(value, Config) else value!r}" for name, value in kept.items()
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Checkpoints:
    """The checkpoints in a run's folder, the newest few of which are kept.

    Orbax writes each under a temporary name and renames it, so a kill in the middle leaves the older ones.
    """

    def __init__(self, run: str | os.PathLike[str], *, keep: int = 3) -> None:
        import orbax.checkpoint as ocp

        # Orbax reports each of its steps at the level of warnings and informations of absl's logger.
        logging.getLogger("absl").setLevel(logging.ERROR)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager((Path(run) / FOLDER).absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.close()

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: PyTree, facts: dict[str, Any]) -> None:
        """Save arrays and a few facts (numbers and text) about them; a step that is there already is left."""
        import orbax.checkpoint as ocp

        if step in self._manager.all_steps():
            return
        # Orbax refuses empty arrays, which have nothing to save.
        arrays = {name: _plain(leaf) for name, leaf in _named(state).items() if leaf.size}
        parts = ocp.args.Composite(state=ocp.args.StandardSave(arrays), facts=ocp.args.JsonSave(facts))
        self._manager.save(step, args=parts, force=True)
        self._manager.wait_until_finished()

    def facts(self, step: int) -> dict[str, Any]:
        """The facts saved with a checkpoint."""
        import orbax.checkpoint as ocp

        return self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore()))["facts"]

    def restore(self, step: int, like: PyTree) -> PyTree:
        """The arrays of a checkpoint in the places, types and devices of `like`."""
        import orbax.checkpoint as ocp

        named = _named(like)
        targets = {name: _target(leaf) for name, leaf in named.items() if leaf.size}
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(targets))
        try:
            arrays = self._manager.restore(step, args=wanted)["state"]
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"checkpoint {step} does not fit this training (its arrays have other names or shapes): "
                f"{error}"
            ) from error
        leaves = [_as_before(arrays.get(name, leaf), leaf) for name, leaf in named.items()]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


def newest_checkpoint(checkpoints: Checkpoints, run: Path, config: Config) -> tuple[int, dict[str, Any]]:
    """The step and the facts of a run's newest checkpoint; it must have been saved with this config."""
    step = checkpoints.latest()
    if step is None:
        raise ValueError(f"{run} has no checkpoint to resume from; start a new run with another --out")
    facts = checkpoints.facts(step)
    if missing := {"config", "data", "seconds", "counts", "algorithm"} - facts.keys():
        raise ValueError(
            f"checkpoint {step} of {run} was saved by another version of Phalanx: it lacks "
            f"{', '.join(sorted(missing))}; start a new run with another --out"
        )
    if facts["config"] != config_digest(config):
        raise ValueError(
            f"checkpoint {step} of {run} was saved with another config than its config.yaml holds"
        )
    return step, facts


def _named(tree: PyTree) -> dict[str, Any]:
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
