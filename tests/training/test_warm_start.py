"""Runs that start from the parameters of another run, for every algorithm."""

import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc.networks import create_network
from phalanx.training import (
    PPO,
    SFT,
    Algorithm,
    CheckpointRef,
    KGEConfig,
    KGETrainer,
    PPOConfig,
    RunConfig,
    TrainState,
    UpdateResult,
    read_metadata,
    train,
)
from phalanx.training.warm_start import load_params
from tests.helpers.small_training import small_config
from tests.training.test_ppo_proofs import SMALL as SMALL_PROOFS
from tests.training.test_sft import config_of, samples as samples

pytestmark = pytest.mark.slow


def kge(*overrides: str) -> KGETrainer:
    small = ("model.embedding_dim=4", "num_epochs=2", "num_negatives=4", "evaluation.max_queries=4")
    return KGETrainer(KGEConfig.load(None, (*small, *overrides)))


def lm(samples: Path) -> SFT:
    return SFT(config_of(samples))


def arc(samples: Path) -> PPO:
    return PPO(small_config())


def proofs(samples: Path) -> PPO:
    return PPO(PPOConfig.load("proofs", (*SMALL_PROOFS, "num_envs=2", "num_steps=8")))


@pytest.mark.parametrize("make", [proofs, lm, arc])
def test_a_state_starts_from_given_parameters(make, samples: Path) -> None:
    algorithm = make(samples)
    first = eqx.filter_eval_shape(algorithm.init, jax.random.key(0))
    assert len(jax.tree.leaves(first.params)) > 4
    given = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, leaf.dtype), first.params)
    state = algorithm.init(jax.random.key(0), given)
    assert jax.tree.structure(state.params) == jax.tree.structure(first.params)
    assert all((np.asarray(leaf) == 0.5).all() for leaf in jax.tree.leaves(state.params))
    assert int(state.step) == 0


def test_an_embedding_starts_from_the_newest_epoch_of_another(tmp_path: Path) -> None:
    first = train(kge(), tmp_path / "first")
    algorithm = kge("seed=4")
    ref = CheckpointRef(first.run_dir)
    params, origin = load_params(ref, algorithm.init(jax.random.key(0)).params)
    assert origin == {"run": str(first.run_dir), "step": 2, "algorithm": "kge"}
    state = algorithm.init(jax.random.key(0), params)
    for own, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(first.state.params), strict=True):
        np.testing.assert_array_equal(own, other)
    assert int(state.step) == 0
    with pytest.raises(ValueError, match=r"has other sizes: model-entities is float32\[.*4\]"):
        load_params(ref, kge("model.embedding_dim=8").init(jax.random.key(0)).params)


class Imitation(Algorithm[TrainState]):
    """Another algorithm with the network of a training on ARC."""

    name = "imitation"
    config_type = RunConfig
    seed = 0

    def __init__(self, config: RunConfig, width: int) -> None:
        super().__init__(config)
        self.num_updates = 1
        arc = small_config(f"network.hidden_dim={width}")
        make = functools.partial(create_network, arc.network, arc.environment_settings)
        self._network = eqx.filter_jit(make)(jax.random.key(5))

    def init(self, key, params=None):
        return TrainState(eqx.filter(self._network, eqx.is_array), (), jnp.int32(0))

    def update(self, state):
        return state, UpdateResult({}, counts={"env_steps": jnp.int32(1)})

    def policy(self, state):
        return eqx.combine(state.params, self._network)


def test_a_policy_starts_from_the_network_of_another_algorithm(tmp_path: Path) -> None:
    origin = train(Imitation(RunConfig(), 8), tmp_path / "imitation")
    algorithm = PPO(small_config("num_updates=1"))
    ref = CheckpointRef(origin.run_dir)
    params, told = load_params(ref, algorithm.init(jax.random.key(0)).params)
    assert told["algorithm"] == "imitation"
    for own, other in zip(jax.tree.leaves(params), jax.tree.leaves(origin.state.params), strict=True):
        np.testing.assert_array_equal(own, other)
    outcome = train(algorithm, tmp_path / "arc", init_from=str(origin.run_dir))
    assert read_metadata(outcome.run_dir)["init_from"]["step"] == 1
    wide = train(Imitation(RunConfig(), 16), tmp_path / "wide").run_dir
    with pytest.raises(ValueError, match=r"has other sizes: .*16.* there and .*8.* here"):
        train(algorithm, tmp_path / "refused", init_from=str(wide))
    assert not (tmp_path / "refused").exists()
