"""How proof environments are made, trained and evaluated: data settings, curriculum, network, evaluations."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phalanx
from phalanx.config import load_config
from phalanx.core.evaluation import EvaluationResult
from phalanx.core.expert import Expert
from phalanx.kg.family_generator import generate_family
from phalanx.kg.kge import KGE, save_kge
from phalanx.kg.kge.models import KGEModelConfig
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.nn.distributions import MaskedCategorical
from phalanx.proofs import env as env_module
from phalanx.proofs.config import ProofConfig, ProofEvaluationConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.evaluation import evaluate_prover, sample_held_out_queries
from phalanx.proofs.expert import ShortestProofExpert
from phalanx.proofs.link_prediction import LinkPredictionConfig
from phalanx.proofs.network import ProofNetworkConfig
from phalanx.proofs.spec import (
    SPEC,
    ProofTasks,
    create_network,
    curriculum_stages,
    evaluate_link_prediction,
    make_proofs,
    task_name,
)
from phalanx.proofs.state import ProofObservation
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training import TrainResult, train
from phalanx.training.ppo import PPO, PPOConfig

FAMILY = {"num_families": 2, "generations": 3}
SIZES: dict[str, Any] = {"max_actions": 8, "max_goals": 3, "max_episode_steps": 4, "compute_depths_up_to": 6}
NETWORK = ProofNetworkConfig(hidden_dim=4, num_layers=1)


def small(*overrides: str, **settings: Any) -> ProofConfig:
    defaults = {**SIZES, "generated": FAMILY, "queries": {"min_depth": 1}}
    return load_config(ProofConfig, None, overrides, settings={**defaults, **settings})


@pytest.fixture(scope="module")
def environment() -> ProofEnvironment:
    return make_proofs(small())


class FirstChoice(eqx.Module):
    """A policy that always takes the first action; the facts of a goal come before its rules."""

    def __call__(self, observation: ProofObservation) -> tuple[MaskedCategorical, jax.Array]:
        logits = -jnp.arange(observation.action_mask.shape[-1], dtype=jnp.float32)
        return MaskedCategorical(logits, observation.action_mask), jnp.float32(0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("dataset=data/kg/family",), "generated has no effect because dataset is 'data/kg/family'"),
        (
            ("curriculum=[{start_update: 5}, {start_update: 2}]",),
            r"must have increasing start_update, got \[5, 2\]",
        ),
        (("split=training",), "split must be 'train', 'valid' or 'test'"),
    ],
)
def test_invalid_data_setting_is_rejected_with_an_explanation(
    overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small(*overrides)


def test_missing_dataset_is_named_in_the_error() -> None:
    with pytest.raises(FileNotFoundError, match="data/kg/family"):
        phalanx.make("proofs", dataset="data/kg/family")


def test_facts_rules_queries_and_depths_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("wife(eve,adam).\nfather(adam,abel).\nfather(adam,cain).\n")
    (tmp_path / "valid.txt").write_text("husband(adam,eve).\nmother(eve,abel).\nhusband(eve,eve)\n")
    (tmp_path / "rules.txt").write_text(
        "r0:1:wife(y,x) -> husband(x,y)\nr1:1:wife(x,z), father(z,y) -> mother(x,y)"
    )
    (tmp_path / "domain2constants.txt").write_text("parents adam eve\nchildren abel cain\n")
    config = ProofConfig(dataset=str(tmp_path), split="valid", max_goals=3)
    data = KnowledgeBase.load(tmp_path)
    assert make_proofs(config).queries.depths.tolist() == [-1, -1, -1]
    env = make_proofs(config.model_copy(update={"compute_depths_up_to": 6}))
    assert (len(env.program.facts), len(env.program.heads)) == (3, 2)
    # r0 proves the first query in one step; r1 and the fact wife(eve,adam) prove the second in two.
    assert env.queries.depths.tolist() == [1, 2, -1]
    assert env.known.domains.tolist() == [0, 2, 1, 2, 1]
    (tmp_path / "valid_depths.txt").write_text("husband(adam,eve) 7\n")
    assert make_proofs(config).queries.depths.tolist() == [7, -1, -1]
    exact = make_proofs(config.model_copy(update={"compute_depths_up_to": 1}))
    assert exact.queries.depths.tolist() == [1, -1, -1]
    with pytest.raises(ValueError, match="has no test queries"):
        ProofEnvironment.from_knowledge_base(data, config, "test")
    with pytest.raises(ValueError, match=r"variables for 2 goals.* max_goals=3"):
        ProofEnvironment.from_knowledge_base(data, config, "valid", vocabulary=ProofVocabulary(data, 2))


def test_saved_knowledge_base_gives_the_same_environment(
    environment: ProofEnvironment, tmp_path: Path
) -> None:
    base = environment.knowledge_base
    assert base is not None
    base.save(tmp_path / "family")
    saved = make_proofs(small(dataset=str(tmp_path / "family"), generated={}))
    given = phalanx.make("proofs-v1", knowledge_base=base, **SIZES, queries={"min_depth": 1})
    assert saved.program == given.program == environment.program
    assert saved.fingerprint == given.fingerprint == environment.fingerprint
    assert ProofTasks(saved, 0).metadata | {"dataset": "generated"} == ProofTasks(environment, 0).metadata
    swapped = dataclasses.replace(base, valid=base.test, test=base.valid, split_depths={})
    other = make_proofs(small(), knowledge_base=swapped)
    assert other.fingerprint != environment.fingerprint


STAGES = (
    "{start_update: 2, min_depth: 2, max_depth: 2}",
    "{start_update: 5, depth_weights: [[2, 1], [3, 3]]}",
)
CURRICULUM = f"curriculum=[{', '.join(STAGES)}]"


@pytest.fixture(scope="module")
def stages() -> ProofTasks:
    """Return the tasks of a curriculum with positives of depth 1 or more, then of depth 2, then of depths 2
    and 3."""
    return ProofTasks(make_proofs(small(CURRICULUM, "queries.negative_ratio=0")), seed=0)


@functools.cache
def sample_depths(tasks: ProofTasks, update: int, count: int = 4000) -> np.ndarray:
    """Sample the queries of `count` episodes of an update, and return their depths."""
    environment = tasks.training(update)
    return np.asarray(_reset(environment, jax.random.split(jax.random.key(update), count)))


@jax.jit
def _reset(environment: ProofEnvironment, keys: jax.Array) -> jax.Array:
    return environment.batch_reset(keys)[0].query.depth


def test_stage_starts_at_its_update(stages: ProofTasks) -> None:
    assert list(curriculum_stages(stages.environment.config)) == [0, 2, 5]
    environments = [stages.training(update) for update in range(7)]
    assert [environments.index(each) for each in environments] == [0, 0, 2, 2, 2, 5, 5]
    assert environments[0] is environments[1] and environments[3] is environments[4]
    assert np.unique(sample_depths(stages, 1)).tolist()[0] == 1
    np.testing.assert_array_equal(sample_depths(stages, 2), 2)
    np.testing.assert_array_equal(sample_depths(stages, 4), 2)
    assert np.unique(sample_depths(stages, 5)).tolist() == [2, 3]


def test_stage_that_starts_at_update_0_replaces_the_query_settings() -> None:
    config = small("curriculum=[{start_update: 0, min_depth: 3}]", "queries.negative_ratio=0")
    environment = make_proofs(config)
    assert sample_depths(ProofTasks(environment, 0), 0, 200).min() >= 3
    assert ProofTasks(environment, 0).training(0) == environment


@pytest.mark.parametrize("update", [0, 5])
def test_depths_of_queries_are_sampled_in_proportion_to_the_weights_of_a_stage(
    stages: ProofTasks, update: int
) -> None:
    available = stages.environment.queries.depths
    if update == 0:  # all queries of depth 1 or more with equal probability
        depths, counts = np.unique(available[available >= 1], return_counts=True)
        expected = counts / counts.sum()
    else:
        depths, expected = np.array([2, 3]), np.array([0.25, 0.75])
    sampled = sample_depths(stages, update)
    frequencies = np.mean(sampled[:, None] == depths, axis=0)
    assert frequencies.sum() == 1
    # Four standard errors.
    np.testing.assert_array_less(
        np.abs(frequencies - expected), 4 * np.sqrt(expected * (1 - expected) / len(sampled))
    )


def test_queries_of_one_depth_are_sampled_uniformly(stages: ProofTasks) -> None:
    states, _ = jax.jit(stages.training(2).batch_reset)(jax.random.split(jax.random.key(0), 4000))
    _, counts = np.unique(np.asarray(states.query.atom), axis=0, return_counts=True)
    assert len(counts) == np.sum(stages.environment.queries.depths == 2)
    expected = 4000 / len(counts)
    np.testing.assert_array_less(np.abs(counts - expected), 5 * np.sqrt(expected))


def test_metadata_counts_the_training_queries_of_each_stage(stages: ProofTasks) -> None:
    depths = stages.environment.queries.depths
    counts = [depths >= 1, depths == 2, (depths == 2) | (depths == 3)]
    assert stages.metadata["training_queries"] == [int(np.sum(each)) for each in counts]
    assert stages.metadata["dataset"] == "generated"


def test_stages_share_one_compiled_program(stages: ProofTasks) -> None:
    compiled = jax.jit(lambda environment, key: environment.reset(key)[0].query.depth)
    for update in (0, 2, 5):
        compiled(stages.training(update), jax.random.key(0))
    assert compiled._cache_size() == 1


def test_stage_without_queries_is_rejected(stages: ProofTasks) -> None:
    tasks = ProofTasks(make_proofs(small("curriculum=[{start_update: 2, min_depth: 99}]")), seed=0)
    with pytest.raises(ValueError, match=r"no query matches min_depth=99.*numbers of queries by depth: "):
        tasks.training(0)


def test_environment_of_a_knowledge_base_ignores_the_curriculum(environment: ProofEnvironment) -> None:
    base = environment.require_knowledge_base()
    plain = ProofEnvironment.from_knowledge_base(base, small(CURRICULUM))
    assert plain.queries == environment.queries and plain.cumulative_weights is None
    assert ProofTasks(plain, 0).training(5) is plain


def test_evaluations_during_a_curriculum_use_queries_of_all_depths(stages: ProofTasks) -> None:
    held_out = stages.held_out(ProofEvaluationConfig())
    base = stages.environment.require_knowledge_base()
    assert len(held_out.queries) == len(base.valid)
    assert held_out.cumulative_weights is None


def small_run(folder: Path, num_updates: int, **options: Any) -> TrainResult:
    overrides = (
        *(f"env.{name}={value}" for name, value in SIZES.items()),
        "env.generated={num_families: 2, generations: 3}",
        "env.queries={min_depth: 1, negative_ratio: 0}",
        "env.curriculum=[{start_update: 2, min_depth: 2, max_depth: 2}]",
        *("num_envs=8", "num_steps=4", "num_minibatches=1", "update_epochs=1", f"num_updates={num_updates}"),
        *("optimizer.lr_schedule=constant", "ent_schedule=constant"),
        *("network.hidden_dim=4", "network.num_layers=1", "evaluation.max_positives=2"),
        *("evaluation.every=0", "logging.sample_frequency=0"),
    )
    return train(PPO(PPOConfig.load("proofs", overrides)), folder, **options)


def test_resumed_run_continues_in_the_same_stage(tmp_path: Path) -> None:
    whole = small_run(tmp_path / "whole", 4)
    small_run(tmp_path / "parts", 3)
    resumed = small_run(tmp_path / "parts", 4, resume=True, extend=True)
    for result in (whole, resumed):
        states = result.state.rollout.environments.states
        # All episodes that started in the first stage have ended.
        np.testing.assert_array_equal(states.query.depth, 2)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.state.params, resumed.state.params))


def test_default_network_needs_only_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_module, "compute_proof_depths", None)
    network = create_network(small(), NETWORK, jax.random.key(0))
    assert network.embed_states(jnp.zeros((2, 3, 3), jnp.int32)).tolist() == [[0.0] * 4] * 2


def test_evaluations_during_training_share_the_held_out_environment(environment: ProofEnvironment) -> None:
    settings = ProofEvaluationConfig(max_positives=6)
    tasks = ProofTasks(environment, seed=0)
    (result,) = SPEC.evaluation.run(tasks, FirstChoice(), settings, False)
    (again,) = SPEC.evaluation.run(tasks, FirstChoice(), settings, True)
    assert isinstance(result, EvaluationResult) and result == again
    held_out = tasks.held_out(settings)
    assert tasks.held_out(settings) is held_out
    assert held_out.program is environment.program
    queries = sample_held_out_queries(held_out, 6)
    assert queries.label.tolist() == [True] * 6 + [False] * 6
    record = result.as_record()
    assert (record["split"], record["mode"], record["episodes"]) == ("valid", "greedy", 12)
    assert record["false_proof_rate"] == 0
    assert record["success_rate"] == pytest.approx((record["proved_rate"] * 6 + 6) / 12)
    assert sum(group["episodes"] for group in record["groups"].values()) == 12
    assert record["groups"]["corrupted"] == {"episodes": 6, "success_rate": 1.0}
    assert {"overflow_rate", "mean_proof_length"} <= record.keys()
    json.dumps(record)
    assert result.describe()[0].startswith("valid, 12 queries: ")
    assert len(result.describe()) == 1 + len(record["groups"])


def test_evaluation_does_not_depend_on_the_batch_size(environment: ProofEnvironment) -> None:
    held_out = ProofTasks(environment, seed=0).held_out(ProofEvaluationConfig())
    queries = sample_held_out_queries(held_out, 6)
    positives, negatives = np.split(np.asarray(queries.atom), 2)
    np.testing.assert_array_equal(np.sum(positives != negatives, axis=1), 1)
    by_five = evaluate_prover(held_out, FirstChoice(), queries, batch_size=5)
    assert by_five == evaluate_prover(held_out, FirstChoice(), queries)


def test_link_prediction_uses_the_mode_dataset_and_split_of_its_settings(
    environment: ProofEnvironment, tmp_path: Path
) -> None:
    base = environment.knowledge_base
    assert base is not None
    network = create_network(small(), NETWORK, jax.random.key(0))
    tasks = ProofTasks(environment, seed=0)
    few = LinkPredictionConfig(max_queries=2, split="valid", ties="realistic")
    (result,) = evaluate_link_prediction(tasks, network, few, True)
    record = result.as_record()
    assert isinstance(result, EvaluationResult)
    assert (record["split"], record["mode"], record["num_queries"]) == ("valid", "policy", 2)
    swapped = dataclasses.replace(base, valid=base.test, test=base.valid, split_depths={})
    swapped.save(tmp_path / "swapped")
    other = few.model_copy(update={"dataset": str(tmp_path / "swapped"), "split": "test"})
    assert evaluate_link_prediction(tasks, network, other, True)[0].as_record()["mrr"] == record["mrr"]
    generate_family(3, 3, seed=5).save(tmp_path / "others")
    unknown = few.model_copy(update={"dataset": str(tmp_path / "others")})
    with pytest.raises(ValueError, match="is in only one of them; only mode=exact works with other names"):
        evaluate_link_prediction(tasks, network, unknown, True)
    exact = unknown.model_copy(update={"mode": "exact"})
    assert evaluate_link_prediction(tasks, network, exact, True)[0].as_record()["mode"] == "exact"
    with pytest.raises(ValueError, match="mode=hybrid needs an embedding: set kge"):
        evaluate_link_prediction(tasks, network, few.model_copy(update={"mode": "hybrid"}), True)


def test_sampled_episodes_are_rendered_with_names(environment: ProofEnvironment) -> None:
    from phalanx.core.episodes import record_episodes

    recorded = record_episodes(environment, FirstChoice(), jax.random.key(0), 2, 4, task_name=task_name)
    assert SPEC.episode_view is not None
    episodes = SPEC.episode_view(environment, recorded)
    assert len(episodes) == 2
    assert "</svg>" in episodes[0]["initial_state"]._repr_svg_()
    assert episodes[0]["task_id"] == task_name(environment, recorded[0]["initial_state"])


def test_embedding_closes_goals_and_changes_the_fingerprint(
    environment: ProofEnvironment, tmp_path: Path
) -> None:
    vocabulary = environment.vocabulary
    assert vocabulary is not None
    model = KGEModelConfig(embedding_dim=4)
    kge = KGE.create(model, vocabulary.num_predicates, vocabulary.num_constants, np.random.default_rng(0))
    save_kge(tmp_path / "kge", kge, model, vocabulary.kg)
    config = small(kge=str(tmp_path), allow_kge_on_query=True)
    kge_env = make_proofs(config)
    held_out = ProofTasks(kge_env, seed=0).held_out(ProofEvaluationConfig())
    queries = sample_held_out_queries(held_out, 6)
    assert environment.kge_action is None and kge_env.kge_action is not None
    assert held_out.kge_action == kge_env.kge_action
    assert kge_env.fingerprint != environment.fingerprint
    network = eqx.filter_jit(lambda key: create_network(config, NETWORK, key))(jax.random.key(0))
    assert evaluate_prover(held_out, network, queries).episodes > 6
    _, observation = jax.jit(held_out.reset)(jax.random.key(0))
    last = int(np.asarray(observation.action_mask).sum()) - 1
    goal = np.asarray(observation.successors)[last, 0]
    assert vocabulary.decode_atom(goal).predicate.endswith("_kge")
    logits, value = eqx.filter_jit(network.logits)(observation)
    assert np.isfinite(logits).all() and np.isfinite(value)


def test_environment_from_arrays_has_no_evaluation(environment: ProofEnvironment) -> None:
    bare = dataclasses.replace(environment, knowledge_base=None)
    with pytest.raises(ValueError, match="has no knowledge base and therefore no evaluation"):
        SPEC.evaluation.run(ProofTasks(bare, 0), FirstChoice(), ProofEvaluationConfig(), False)
    assert ProofTasks(bare, 0).metadata == {"training_queries": [len(environment.queries)]}
    assert len(sample_held_out_queries(bare, None).label) > len(environment.queries)


def test_expert_proves_true_queries_and_gives_up_on_false_ones(environment: ProofEnvironment) -> None:
    expert = ShortestProofExpert(environment)
    assert isinstance(expert, Expert)
    keys = jax.random.split(jax.random.key(1), 32)
    states, _ = jax.jit(environment.batch_reset)(keys)
    step = jax.jit(environment.batch_step)
    labels = expert.label(states, expert.init(states))
    has_answer = labels.mask[:, 0]
    is_true = np.asarray(states.query.label)
    assert has_answer[is_true].any() and has_answer[~is_true].any()
    proved = np.zeros(32, bool)
    for _ in range(environment.max_episode_steps):
        states, _, _, _, info = step(states, jnp.asarray(labels.actions[:, 0]))
        proved |= np.asarray(info.proved)
        labels = expert.label(states, ())
    np.testing.assert_array_equal(proved[has_answer], is_true[has_answer])
    assert not expert.must_act(labels.actions, labels).any()


def test_expert_of_a_curriculum_labels_its_states(environment: ProofEnvironment) -> None:
    with_stages = make_proofs(small("curriculum=[{start_update: 4, max_depth: 2}]"))
    states, _ = jax.jit(with_stages.batch_reset)(jax.random.split(jax.random.key(1), 4))
    labels, expected = (ShortestProofExpert(env).label(states, ()) for env in (with_stages, environment))
    np.testing.assert_array_equal(labels.actions, expected.actions)
