"""Initial parameters from a checkpoint of another run."""

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
"""Arrays that an error message names."""


def _read_params(ref: CheckpointRef) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the parameters of a checkpoint by name, and a description of their origin for `run.json`."""
    if seeds := ref.seeds:
        raise ValueError(f"{ref.run} has {len(seeds)} seeds; choose one of them, such as {seeds[0]}")
    algorithm = read_metadata(ref.run).get("algorithm")
    with open_checkpoint(ref.run, ref.which) as (checkpoints, step, metadata):
        arrays = checkpoints.read_arrays(step, metadata["params"])
    params = {name.removeprefix("params").removeprefix("-"): array for name, array in arrays.items()}
    return params, {"run": str(ref.run.absolute()), "step": step, "algorithm": algorithm}


def load_params(ref: CheckpointRef, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Load the parameters of a checkpoint with the structure and placement of `like`.

    Raises:
        ValueError: If the names, shapes or types of the arrays differ.
    """
    found, origin = _read_params(ref)
    leaves = named(like)
    _check_fit(ref.run, found, {name: leaf for name, leaf in leaves.items() if leaf.size})
    placed = [_place(found.get(name), leaf) for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(like), placed), origin


def _check_fit(run: Path, found: Mapping[str, np.ndarray], expected: dict[str, Any]) -> None:
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    if missing or extra:
        parts = [
            f"only {where}: {', '.join(sorted(names)[:_MAX_NAMES])}"
            + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
            for where, names in (("there", extra), ("here", missing))
            if names
        ]
        raise ValueError(
            f"the network of {run} has another structure than this one; arrays {'; '.join(parts)}"
        )
    other = [
        f"{name or 'the array'} is {_shape(found[name])} there and {_shape(leaf)} here"
        for name, leaf in expected.items()
        if found[name].shape != leaf.shape or found[name].dtype != leaf.dtype
    ]
    if other:
        raise ValueError(
            f"the network of {run} has other sizes than this one: {'; '.join(other[:_MAX_NAMES])}"
            + (f"; and {len(other) - _MAX_NAMES} more" if len(other) > _MAX_NAMES else "")
        )


def _shape(array: Any) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _place(array: np.ndarray | None, like: Any) -> Any:
    """Move an array to the devices of `like`. Empty arrays are not stored in checkpoints."""
    array = np.zeros(like.shape, like.dtype) if array is None else array
    if isinstance(like, jax.Array) and like.committed:
        return jax.device_put(array, like.sharding)
    return jnp.asarray(array)
