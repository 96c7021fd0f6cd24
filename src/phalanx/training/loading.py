"""Algorithms from files, and what a run has learned from its newest checkpoint.

Going on with a run is in `run`.
"""

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from phalanx.training.algorithm import Algorithm
from phalanx.training.checkpoints import CheckpointRef, Which, check_metadata, open_checkpoint
from phalanx.training.warm_start import load_params


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
    """Return the untrained policy that a run of this algorithm starts from."""
    return algorithm.policy(algorithm.init(jax.random.key(algorithm.seed)))


def restore_policy(algorithm: Algorithm, run: str | Path, which: Which = "newest") -> Any:
    """Return the policy of a checkpoint. Nothing is compiled, and only the parameters are read.

    Args:
        algorithm: Algorithm with the config of the run.
        run: Run folder; the folder of one seed if there are several.
        which: Step of the checkpoint, `"newest"` or `"best"`.
    """
    with open_checkpoint(Path(run), which) as (_, step, metadata):
        check_metadata(Path(run), step, metadata, algorithm.config)
    like = eqx.filter_eval_shape(algorithm.init, jax.random.key(algorithm.seed))
    params, _ = load_params(CheckpointRef(Path(run), step), like.params)
    return algorithm.policy(eqx.tree_at(lambda state: state.params, like, params))
