"""Algorithms from files, and what a run has learned from its newest checkpoint.

Going on with a run is in `run`.
"""

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.training.algorithm import Algorithm
from phalanx.training.checkpoints import Which, check_facts, opened
from phalanx.training.journal import of_seed
from phalanx.training.warm_start import filled


def load_algorithm(path: str | Path) -> type[Algorithm]:
    """The one algorithm that a Python file defines; what the file itself raises is passed on."""
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(
            f"{file} is no Python file; give one that defines a subclass of phalanx.training.Algorithm"
        )
    name = f"phalanx_custom_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Under its name before it runs: dataclasses and pickles look their own module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found = [
        one
        for one in vars(module).values()
        if inspect.isclass(one)
        and issubclass(one, Algorithm)
        and not inspect.isabstract(one)
        and one.__module__ == name
    ]
    if len(found) != 1:
        names = ", ".join(one.__name__ for one in found) or "none"
        raise ValueError(
            f"{file} must define one subclass of phalanx.training.Algorithm, and defines {names}"
        )
    return found[0]


def initial_policy(algorithm: Algorithm) -> Any:
    """What a run of this algorithm begins with; of several seeds, the first."""
    start, _ = algorithm.compile()
    return algorithm.policy(of_seed(start(jax.random.key(algorithm.seed)), 0, algorithm.num_seeds))


def restore_policy(algorithm: Algorithm, run: str | Path, which: Which = "newest", *, seed: int = 0) -> Any:
    """What a run of this algorithm has learned, by its newest checkpoint, its best or one by its step.

    Of several seeds, one. Nothing is compiled, and only the weights are read, where they are the policy.
    """
    with opened(Path(run), which) as (checkpoints, step, facts):
        check_facts(Path(run), step, facts, algorithm.config)
        if not 0 <= seed < algorithm.num_seeds:
            raise ValueError(f"{run} has {algorithm.num_seeds} seeds, and none of number {seed}")
        places = facts.get("weights")
        if places and type(algorithm).weights is Algorithm.weights:
            like = jax.eval_shape(algorithm.start, jax.random.key(algorithm.seed))
            arrays = of_seed(checkpoints.arrays(step, list(places.values())), seed, algorithm.num_seeds)
            found = {name: np.asarray(arrays[place]) for name, place in places.items()}
            weights = filled(Path(run), found, algorithm.weights(like))
            return algorithm.policy(algorithm.with_weights(like, weights))
        start, _ = algorithm.compile()
        learner = checkpoints.restore(step, start(jax.random.key(algorithm.seed)))
    return algorithm.policy(of_seed(learner, seed, algorithm.num_seeds))
