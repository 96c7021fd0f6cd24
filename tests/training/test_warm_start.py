"""Runs that start from the parameters of a run of another algorithm."""

import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc.spec import SPEC
from phalanx.training import (
    PPO,
    Algorithm,
    CheckpointRef,
    RunConfig,
    TrainState,
    UpdateResult,
    load_metadata,
    train,
)
from phalanx.training.warm_start import load_params
from tests.helpers.small_training import small_config
from tests.training.test_sft import samples as samples

pytestmark = pytest.mark.slow


class Imitation(Algorithm[TrainState]):
    """An algorithm with the network of PPO on ARC."""

    name = "imitation"
    config_type = RunConfig

    def __init__(self, config: RunConfig, width: int) -> None:
        super().__init__(config)
        arc = small_config(f"network.hidden_dim={width}")
        make = functools.partial(SPEC.network, arc.env.settings, arc.network)
        self._network = eqx.filter_jit(make)(jax.random.key(5))

    def init(self, key, params=None):
        return TrainState(eqx.filter(self._network, eqx.is_array), (), jnp.int32(0))

    def update(self, state):
        return state, UpdateResult({}, counts={"env_steps": jnp.int32(1)})

    def policy(self, state):
        return eqx.combine(state.params, self._network)


def test_run_starts_from_the_network_of_another_algorithm(tmp_path: Path) -> None:
    origin = train(Imitation(RunConfig(num_updates=1), 8), tmp_path / "imitation")
    algorithm = PPO(small_config("num_updates=1"))
    ref = CheckpointRef(origin.run_dir)
    params, metadata = load_params(ref, algorithm.init(jax.random.key(0)).params)
    assert metadata["algorithm"] == "imitation"
    for own, other in zip(jax.tree.leaves(params), jax.tree.leaves(origin.state.params), strict=True):
        np.testing.assert_array_equal(own, other)
    outcome = train(algorithm, tmp_path / "arc", init_from=str(origin.run_dir))
    assert load_metadata(outcome.run_dir)["init_from"]["step"] == 1
    wide = train(Imitation(RunConfig(num_updates=1), 16), tmp_path / "wide").run_dir
    with pytest.raises(ValueError, match=r"has a different structure: .*16.* there and .*8.* here"):
        train(algorithm, tmp_path / "rejected", init_from=str(wide))
    assert not (tmp_path / "rejected").exists()
