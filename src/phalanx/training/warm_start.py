"""Loads initial parameters from a checkpoint of another run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from phalanx.training.checkpoints import CheckpointRef, named, open_checkpoint
from phalanx.training.run_dir import read_metadata

_MAX_NAMES = 2
"""Maximum number of arrays that an error message lists."""


def load_params(ref: CheckpointRef, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Load the parameters of a checkpoint.

    Args:
        ref: Checkpoint to load. If the run has several seeds, it must be the checkpoint of one seed.
        like: Parameters with the expected structure, shapes and types, on the devices to use.

    Returns:
        The parameters, and a description of their origin for `run.json`.

    Raises:
        ValueError: If the run has several seeds, or the names, shapes or types of the arrays differ from
            `like`.
    """
    if seeds := ref.seeds:
        raise ValueError(f"{ref.run} has {len(seeds)} seeds; choose one of them, such as {seeds[0]}")
    algorithm = read_metadata(ref.run).get("algorithm")
    with open_checkpoint(ref.run, ref.which) as (checkpoints, step, metadata):
        arrays = checkpoints.read_arrays(step, metadata["params"])
    found = {name.removeprefix("params").removeprefix("-"): array for name, array in arrays.items()}
    leaves = named(like)
    # Checkpoints contain no empty arrays.
    _check_fit(ref.run, found, {name: leaf for name, leaf in leaves.items() if leaf.size})
    placed = [_put_on_devices(found.get(name), leaf) for name, leaf in leaves.items()]
    origin = {"run": str(ref.run.absolute()), "step": step, "algorithm": algorithm}
    return jax.tree.unflatten(jax.tree.structure(like), placed), origin


def _check_fit(run: Path, found: Mapping[str, np.ndarray], expected: dict[str, Any]) -> None:
    there, here = ({name: _describe(array) for name, array in arrays.items()} for arrays in (found, expected))
    differing = [
        f"{name or 'the array'} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if differing:
        more = f"; and {len(differing) - _MAX_NAMES} more" if len(differing) > _MAX_NAMES else ""
        raise ValueError(f"the network of {run} has other arrays: {'; '.join(differing[:_MAX_NAMES])}{more}")


def _describe(array: Any) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _put_on_devices(array: np.ndarray | None, like: Any) -> Any:
    """Copy an array to the devices of `like`.

    `array` is None if `like` is empty, because checkpoints contain no empty arrays.
    """
    array = np.zeros(like.shape, like.dtype) if array is None else array
    if isinstance(like, jax.Array) and like.committed:
        return jax.device_put(array, like.sharding)
    return jnp.asarray(array)
