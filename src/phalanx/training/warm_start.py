"""A run that begins with what another has learned: where its weights are, whether they fit, and taking them.

Going on with a run is in `run`; which arrays are weights is the `Algorithm`'s to say.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from phalanx.training.algorithm import Algorithm
from phalanx.training.checkpoints import FOLDER, Which, named, opened
from phalanx.training.run_dir import read_metadata

_SHOWN = 2
"""Arrays that an error names at most."""


@dataclasses.dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint of another run."""

    run: Path
    which: Which = "newest"
    seed: int | None = None
    """Of a run of several seeds, one; None for each seed its own."""

    @classmethod
    def parse(cls, text: str) -> "CheckpointRef":
        """`RUN`, `RUN@STEP` or `RUN@best`; `RUN/seed_1` is one seed of several.

        >>> Origin.parse("runs/arc@40").which, Origin.parse("runs/arc@best").which
        (40, 'best')
        """
        path, at, wanted = text.rpartition("@")
        which: Which = "newest"
        if at and (wanted == "best" or wanted.isdecimal()):
            text, which = path, "best" if wanted == "best" else int(wanted)
        run, seed = Path(text), None
        match = re.fullmatch(r"seed_(\d+)", run.name)
        if match and not (run / FOLDER).is_dir() and (run.parent / FOLDER).is_dir():
            run, seed = run.parent, int(match[1])
        return cls(run, which, seed)


def weight_names(algorithm: Algorithm, learner: PyTree) -> dict[str, str]:
    """The name of each of an algorithm's weights among themselves, and in its learner; none it has not."""
    places = {id(leaf): name for name, leaf in named(learner).items()}
    weights = named(algorithm.weights(learner))
    found = {name: places.get(id(leaf)) for name, leaf in weights.items() if leaf.size}
    known = {name: place for name, place in found.items() if place is not None}
    return known if len(known) == len(found) else {}


def read_weights(origin: CheckpointRef) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The weights of a checkpoint by name, and what `run.json` is to say of where they come from."""
    run = origin.run
    about = read_metadata(run)
    with opened(run, origin.which) as (checkpoints, step, facts):
        places = facts.get("weights")
        if not places:
            raise ValueError(
                f"checkpoint {step} of {run} does not say which of its arrays are weights: it is of an older "
                "version of Phalanx, or its algorithm's `weights` are no arrays of its learner"
            )
        arrays = checkpoints.arrays(step, list(places.values()))
    seeds = facts.get("num_seeds", 1)
    weights = {name: arrays[place] for name, place in places.items()}
    if origin.seed is not None:
        if origin.seed >= seeds:
            raise ValueError(f"{run} has {seeds} seeds, and none of number {origin.seed}")
        weights, seeds = {name: np.asarray(array[origin.seed]) for name, array in weights.items()}, 1
    told = {"run": str(run.absolute()), "step": step, "kind": about.get("kind"), "num_seeds": seeds}
    return weights, told | ({} if origin.seed is None else {"seed": origin.seed})


def begin_with(algorithm: Algorithm, learner: PyTree, origin: CheckpointRef) -> tuple[PyTree, dict[str, Any]]:
    """A new learner with the weights of another run's, and where they come from.

    Each seed takes its own where there are as many, and all the same where there is one.
    """
    found, told = read_weights(origin)
    own = algorithm.weights(learner)
    seeds = told.pop("num_seeds")
    if seeds not in (1, algorithm.num_seeds):
        raise ValueError(
            f"{origin.run} has {seeds} seeds and this training {algorithm.num_seeds}: name one of them, as "
            f"{origin.run / 'seed_0'}"
        )
    if seeds < algorithm.num_seeds:
        found = {
            name: np.broadcast_to(array, (algorithm.num_seeds, *array.shape)) for name, array in found.items()
        }
    return algorithm.with_weights(learner, filled(origin.run, found, own)), told


def filled(run: Path, weights: Mapping[str, np.ndarray], like: PyTree) -> PyTree:
    """A run's weights in the places of arrays, or shapes, like them; what does not fit is refused."""
    leaves = named(like)
    _check_fit(run, weights, {name: leaf for name, leaf in leaves.items() if leaf.size})
    taken = [_placed(weights.get(name), leaf) for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(like), taken)


def _check_fit(run: Path, found: Mapping[str, np.ndarray], wanted: dict[str, Any]) -> None:
    missing, left = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    if missing or left:
        parts = [
            f"{'only there' if names is left else 'only here'}: {', '.join(sorted(names)[:_SHOWN])}"
            + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            for names in (left, missing)
            if names
        ]
        raise ValueError(f"the network of {run} is built otherwise than this one; arrays {'; '.join(parts)}")
    other = [
        f"{name or 'the array'} is {_shape(found[name])} there and {_shape(leaf)} here"
        for name, leaf in wanted.items()
        if found[name].shape != leaf.shape or found[name].dtype != leaf.dtype
    ]
    if other:
        raise ValueError(
            f"the network of {run} has other sizes than this one: {'; '.join(other[:_SHOWN])}"
            + (f"; and {len(other) - _SHOWN} more" if len(other) > _SHOWN else "")
        )


def _shape(array: Any) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _placed(array: np.ndarray | None, like: Any) -> Any:
    """Where the array was that it takes the place of; an empty one was not saved."""
    array = np.zeros(like.shape, like.dtype) if array is None else array
    if isinstance(like, jax.Array) and like.committed:
        return jax.device_put(array, like.sharding)
    return jnp.asarray(array)
