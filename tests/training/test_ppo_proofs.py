"""Training on proofs: configs, data, the stages of a curriculum, scores.

A run from start to resumed end is in `tests/cli/test_train_proofs.py`.
"""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.config import list_presets
from phalanx.kg.kge import KGE, save_kge
from phalanx.kg.kge.models import KGEModelConfig
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.nn.distributions import MaskedCategorical
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.evaluation import evaluate_prover, held_out_queries
from phalanx.proofs.network import create_proof_network
from phalanx.proofs.state import ProofObservation
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training.proof_training import (
    CurriculumStage,
    ProofSetting,
    ProofTrainingConfig,
    load_proof_training,
)

pytestmark = pytest.mark.slow

SMALL = (
    "generated.num_families=2",
    "generated.generations=3",
    "proofs.max_actions=8",
    "proofs.max_goals=3",
    "proofs.max_episode_steps=4",
    "network.width=4",
    "network.depth=1",
    "evaluation.num_queries=6",
)


def small(*overrides: str) -> ProofTrainingConfig:
    return load_proof_training(None, (*SMALL, *overrides))


@pytest.fixture(scope="module")
def setting() -> ProofSetting:
    return ProofSetting.create(small())


class FirstChoice(eqx.Module):
    """The first successor always: the facts of a goal come before its rules."""

    def __call__(self, observation: ProofObservation) -> tuple[MaskedCategorical, jax.Array]:
        count = observation.action_mask.shape[-1]
        logits = -jnp.arange(count, dtype=jnp.float32)
        return MaskedCategorical(logits, observation.action_mask), jnp.float32(0)


def test_every_preset_loads_and_has_the_padding_of_the_reference() -> None:
    assert list_presets("train/proofs") == ("countries", "default", "family", "umls", "wn18rr")
    states = {name: load_proof_training(name).proofs.max_actions for name in list_presets("train/proofs")}
    assert states == {"countries": 20, "default": 32, "family": 130, "umls": 64, "wn18rr": 262}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("dataset=data/kg/family", "generated.seed=3"), "dataset is data/kg/family: leave it out"),
        (("curriculum=[{update: 5}, {update: 2}]",), "must begin one after the other"),
        (("network.width=5", "network.atoms=complex"), "width must be even"),
        (("ppo.num_env=5",), "num_envs"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small(*overrides)


def test_a_preset_whose_data_is_not_there_says_where_it_looked() -> None:
    with pytest.raises(FileNotFoundError, match="data/kg/family"):
        ProofSetting.create(load_proof_training("family"))


def test_an_environment_from_data_has_its_facts_rules_queries_and_depths(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("wife(eve,adam).\nfather(adam,abel).\nfather(adam,cain).\n")
    (tmp_path / "valid.txt").write_text("husband(adam,eve).\nmother(eve,abel).\nhusband(eve,eve)\n")
    (tmp_path / "rules.txt").write_text(
        "r0:1:wife(y,x) -> husband(x,y)\nr1:1:wife(x,z), father(z,y) -> mother(x,y)"
    )
    (tmp_path / "domain2constants.txt").write_text("parents adam eve\nchildren abel cain\n")
    data = KnowledgeBase.load(tmp_path)
    config = small().proofs
    everything = config.model_copy(update={"queries": config.queries.model_copy(update={"min_depth": None})})
    assert ProofEnvironment.from_knowledge_base(data, everything, "valid").queries.depths.tolist() == [
        -1,
        -1,
        -1,
    ]
    env = ProofEnvironment.from_knowledge_base(data, everything, "valid", depth_limit=6)
    assert (len(env.program.facts), len(env.program.heads)) == (3, 2)
    # One step by r0; r1, then wife(eve,z) by its fact, and father(adam,abel) is one; nothing proves the last.
    assert env.queries.depths.tolist() == [1, 2, -1]
    assert env.known.domains.tolist() == [0, 2, 1, 2, 1]
    (tmp_path / "valid_depths.txt").write_text("husband(adam,eve) 7\n")
    given = KnowledgeBase.load(tmp_path)
    assert ProofEnvironment.from_knowledge_base(given, everything, "valid").queries.depths.tolist() == [
        7,
        -1,
        -1,
    ]
    exact = ProofEnvironment.from_knowledge_base(given, everything, "valid", depth_limit=1)
    assert exact.queries.depths.tolist() == [1, -1, -1]
    with pytest.raises(ValueError, match="has no test queries"):
        ProofEnvironment.from_knowledge_base(data, everything, "test")
    with pytest.raises(ValueError, match=r"variables for 2 goals.* max_goals=3"):
        ProofEnvironment.from_knowledge_base(
            data, everything, "valid", vocabulary=ProofVocabulary(data, max_goals=2)
        )


def test_a_run_may_name_the_folder_of_a_knowledge_base(setting: ProofSetting, tmp_path: Path) -> None:
    setting.data.save(tmp_path / "mine")
    others = [line for line in SMALL if not line.startswith("generated")]
    read = ProofSetting.create(load_proof_training(None, (*others, f"dataset={tmp_path / 'mine'}")))
    assert read.stages[0].program == setting.stages[0].program
    assert read.facts() | {"dataset": "generated"} == setting.facts()


def test_a_curriculum_draws_from_each_stage_in_its_updates() -> None:
    config = small("curriculum=[{update: 1, min_depth: 2, max_depth: 2}, {update: 3, min_depth: 3}]")
    assert config.curriculum[0] == CurriculumStage(update=1, min_depth=2, max_depth=2)
    setting = ProofSetting.create(
        config.model_copy(
            update={
                "proofs": config.proofs.model_copy(
                    update={"queries": config.proofs.queries.model_copy(update={"negative_ratio": 0.0})}
                )
            }
        )
    )
    env: Any = setting.environment(num_steps=4)
    assert [setting.stage_at(update) for update in (0, 1, 2, 3)] == [
        setting.stages[stage] for stage in (0, 1, 1, 2)
    ]

    @jax.jit
    def depths_at(clock: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        states, observations = env.batch_reset(keys)
        states = dataclasses.replace(states, clock=clock)
        mask = jnp.arange(len(clock)) != 0
        _, seen = env.batch_reset_where(mask, jax.vmap(jax.random.split)(keys)[:, 0], states, observations)
        return states.proof.query.depth, seen.depth

    keys = jax.random.split(jax.random.key(0), 30)
    before, after = map(np.asarray, depths_at(np.repeat(np.array([3, 4, 12], np.int32), 10), keys))
    assert after[0] == before[0]
    assert len(np.unique(after[1:10])) > 1
    np.testing.assert_array_equal(after[10:20], 2)
    assert np.all(after[20:] >= 3)


def test_scores_count_positives_and_corruptions_apart(setting: ProofSetting) -> None:
    drawn = held_out_queries(setting.held_out, 6)
    assert drawn.label.tolist() == [True] * 6 + [False] * 6
    positives, negatives = np.split(np.asarray(drawn.atom), 2)
    np.testing.assert_array_equal(np.sum(positives != negatives, axis=1), 1)
    scores = evaluate_prover(setting.held_out, FirstChoice(), drawn, batch_size=5)
    assert scores.episodes == 12
    assert scores.false_proof_share == 0
    proved = scores.proved_share
    assert proved is not None
    assert scores.success_rate == pytest.approx((proved * 6 + 6) / 12)
    assert sum(kind["episodes"] for kind in scores.families.values()) == 12
    assert scores.families["corrupted"] == {"episodes": 6, "success_rate": 1.0}
    assert evaluate_prover(setting.held_out, FirstChoice(), drawn) == scores


def test_an_embedding_closes_goals_in_training_and_belongs_to_its_data(
    setting: ProofSetting, tmp_path: Path
) -> None:
    config = KGEModelConfig(embedding_dim=4)
    sizes = setting.index.num_predicates, setting.index.num_constants
    save_kge(tmp_path / "kge", KGE.create(config, *sizes, np.random.default_rng(0)), config, setting.index.kg)
    closing = ProofSetting.create(small(f"kge={tmp_path}", "proofs.allow_kge_on_query=true"))
    assert setting.held_out.kge_scorer is None and closing.held_out.kge_scorer is not None
    assert closing.stages[0].kge_scorer == closing.held_out.kge_scorer
    assert closing.fingerprint != setting.fingerprint
    config = small().network
    network = eqx.filter_jit(lambda key: create_proof_network(config, closing.index, key))(
        jax.random.PRNGKey(0)
    )
    scores = evaluate_prover(closing.held_out, network, held_out_queries(closing.held_out, 6))
    assert scores.episodes > 6
    _, seen = jax.jit(closing.held_out.reset)(jax.random.PRNGKey(0))
    last = int(np.asarray(seen.action_mask).sum()) - 1
    goal = np.asarray(seen.successors)[last, 0]
    assert closing.index.decode_atom(goal).predicate.endswith("_kge")
    logits, value = eqx.filter_jit(network.logits)(seen)
    assert np.isfinite(logits).all() and np.isfinite(value)
