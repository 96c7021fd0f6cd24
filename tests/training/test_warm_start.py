"""A training that begins with another's weights, for every algorithm that has some."""

import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc.networks.arc import create_arc_network
from phalanx.training import (
    Algorithm,
    ArcTraining,
    CheckpointRef,
    KGETraining,
    LMTraining,
    ProofTraining,
    RunConfig,
    UpdateResult,
    load_kge_training,
    load_proof_training,
    read_metadata,
    train,
)
from phalanx.training.warm_start import begin_with, weight_names
from tests.helpers.small_training import small_config
from tests.training.test_ppo_proofs import SMALL as SMALL_PROOFS
from tests.training.test_sft import config_of, samples as samples


def kge(*overrides: str) -> KGETraining:
    small = ("kge.dim=4", "kge.epochs=2", "kge.negatives=4", "evaluation.max_queries=4")
    return KGETraining(load_kge_training(None, (*small, *overrides)))


def lm(samples: Path) -> LMTraining:
    return LMTraining(config_of(samples))


def arc(samples: Path) -> ArcTraining:
    return ArcTraining(small_config())


def proofs(samples: Path) -> ProofTraining:
    return ProofTraining(load_proof_training(None, (*SMALL_PROOFS, "ppo.num_envs=2", "ppo.num_steps=8")))


def started(algorithm: Algorithm):
    return jax.eval_shape(algorithm.start, jax.random.key(0))


@pytest.mark.parametrize("make", [proofs, lm, arc])
def test_the_weights_are_the_arrays_of_the_policy_and_nothing_else(make, samples: Path) -> None:
    algorithm = make(samples)
    learner = started(algorithm)
    own = jax.tree.leaves(algorithm.weights(learner))
    assert len(weight_names(algorithm, learner)) == len(own) > 4
    changed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.int8), algorithm.weights(learner)
    )
    after = algorithm.with_weights(learner, changed)
    assert {leaf.dtype for leaf in jax.tree.leaves(algorithm.weights(after))} == {jnp.dtype("int8")}
    both = zip(jax.tree.leaves(learner), jax.tree.leaves(after), strict=True)
    assert sum(before is not now for before, now in both) == len(own)


def test_an_embedding_goes_on_from_the_newest_epoch_of_another(tmp_path: Path) -> None:
    first = train(kge(), tmp_path / "first")
    algorithm = kge("kge.seed=4")
    start, _ = algorithm.compile()
    learner, told = begin_with(algorithm, start(jax.random.key(0)), CheckpointRef(first.run))
    assert told == {"run": str(first.run), "step": 2, "kind": "kge"}
    newest = first.learner.learner.kge
    for own, other in zip(jax.tree.leaves(learner.learner.kge), jax.tree.leaves(newest), strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(learner.best.kge.model.entities, newest.model.entities)
    assert int(learner.learner.epoch) == 0
    wide = kge("kge.dim=8")
    wider = jax.jit(wide.start)(jax.random.key(0))
    with pytest.raises(ValueError, match=r"has other sizes than this one: model-entities is float32\[.*4\]"):
        begin_with(wide, wider, CheckpointRef(first.run))


class Imitation(Algorithm[dict]):
    """Another algorithm with the network of a training on ARC, under a name of its own."""

    kind = "imitation"
    config_type = RunConfig

    def __init__(self, config: RunConfig, width: int) -> None:
        super().__init__(config, num_updates=1)
        arc = small_config(f"network.hidden_dim={width}")
        make = functools.partial(create_arc_network, arc.network, arc.arc)
        self._network = eqx.filter_jit(make)(jax.random.key(5))

    def start(self, key):
        return {"student": eqx.filter(self._network, eqx.is_array), "seen": jnp.int32(0)}

    def update(self, learner):
        return learner, UpdateResult({}, counts={"environment_steps": jnp.int32(1)})

    def policy(self, learner):
        return eqx.combine(learner["student"], self._network)


def test_a_policy_begins_with_the_network_of_another_algorithm(tmp_path: Path) -> None:
    origin = train(Imitation(RunConfig(), 8), tmp_path / "imitation")
    algorithm = ArcTraining(small_config("ppo.num_updates=1"))
    learner, told = begin_with(
        algorithm, jax.jit(algorithm.start)(jax.random.key(0)), CheckpointRef(origin.run)
    )
    assert told["kind"] == "imitation"
    wanted = jax.tree.leaves(origin.learner["student"])
    for own, other in zip(jax.tree.leaves(learner.network), wanted, strict=True):
        np.testing.assert_array_equal(own, other)
    outcome = train(algorithm, tmp_path / "arc", init_from=str(origin.run))
    assert read_metadata(outcome.run)["init_from"]["step"] == 1
    wide = train(Imitation(RunConfig(), 16), tmp_path / "wide").run
    with pytest.raises(ValueError, match=r"has other sizes than this one: .*16.* there and .*8.* here"):
        train(algorithm, tmp_path / "refused", init_from=str(wide))
    assert not (tmp_path / "refused").exists()
