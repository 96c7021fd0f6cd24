"""Capabilities of the proof environment: data settings, curriculum, network, evaluations, fingerprint."""

import dataclasses
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
from phalanx.proofs.config import DepthCurriculumStage, ProofConfig, ProofEvaluationConfig
from phalanx.proofs.depth_curriculum import DepthCurriculumEnvironment
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.evaluation import evaluate_prover, sample_held_out_queries
from phalanx.proofs.link_prediction import LinkPredictionConfig
from phalanx.proofs.network import ProofNetworkConfig
from phalanx.proofs.state import ProofObservation
from phalanx.proofs.vocabulary import ProofVocabulary

FAMILY = {"num_families": 2, "generations": 3}
SIZES: dict[str, Any] = {"max_actions": 8, "max_goals": 3, "max_episode_steps": 4, "compute_depths_up_to": 6}
NETWORK = ProofNetworkConfig(hidden_dim=4, num_layers=1)


def small(*overrides: str, **settings: Any) -> ProofConfig:
    defaults = {**SIZES, "generated": FAMILY, "queries": {"min_depth": 1}}
    return load_config(ProofConfig, None, overrides, settings={**defaults, **settings})


@pytest.fixture(scope="module")
def environment() -> ProofEnvironment:
    return ProofEnvironment.from_config(small())


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
            ("curriculum=[{start_step_per_env: 5}, {start_step_per_env: 2}]",),
            r"must have increasing start_step_per_env, got \[5, 2\]",
        ),
        (("curriculum=[{update: 5}]",), "update was replaced by start_step_per_env"),
        (("depth_seconds=3",), "depth_seconds was renamed to depth_computation_seconds"),
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
        ProofEnvironment.from_config(ProofConfig(dataset="data/kg/family"))


def test_facts_rules_queries_and_depths_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("wife(eve,adam).\nfather(adam,abel).\nfather(adam,cain).\n")
    (tmp_path / "valid.txt").write_text("husband(adam,eve).\nmother(eve,abel).\nhusband(eve,eve)\n")
    (tmp_path / "rules.txt").write_text(
        "r0:1:wife(y,x) -> husband(x,y)\nr1:1:wife(x,z), father(z,y) -> mother(x,y)"
    )
    (tmp_path / "domain2constants.txt").write_text("parents adam eve\nchildren abel cain\n")
    config = ProofConfig(dataset=str(tmp_path), split="valid", max_goals=3)
    data = KnowledgeBase.load(tmp_path)
    assert ProofEnvironment.from_config(config).queries.depths.tolist() == [-1, -1, -1]
    env = ProofEnvironment.from_config(config.model_copy(update={"compute_depths_up_to": 6}))
    assert (len(env.program.facts), len(env.program.heads)) == (3, 2)
    # r0 proves the first query in one step; r1 and the fact wife(eve,adam) prove the second in two.
    assert env.queries.depths.tolist() == [1, 2, -1]
    assert env.known.domains.tolist() == [0, 2, 1, 2, 1]
    (tmp_path / "valid_depths.txt").write_text("husband(adam,eve) 7\n")
    assert ProofEnvironment.from_config(config).queries.depths.tolist() == [7, -1, -1]
    exact = ProofEnvironment.from_config(config.model_copy(update={"compute_depths_up_to": 1}))
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
    saved = ProofEnvironment.from_config(small(dataset=str(tmp_path / "family"), generated={}))
    given = phalanx.make("proofs-v1", knowledge_base=base, **SIZES, queries={"min_depth": 1})
    assert saved.program == given.program == environment.program
    assert saved.fingerprint() == given.fingerprint() == environment.fingerprint()
    assert saved.metadata() | {"dataset": "generated"} == environment.metadata()
    swapped = dataclasses.replace(base, valid=base.test, test=base.valid, split_depths={})
    other = ProofEnvironment.from_config(small(), knowledge_base=swapped)
    assert other.fingerprint() != environment.fingerprint()


def test_new_episodes_come_from_the_current_stage_of_a_curriculum() -> None:
    first = "{start_step_per_env: 4, min_depth: 2, max_depth: 2}"
    stages = f"curriculum=[{first}, {{start_step_per_env: 12, min_depth: 3}}]"
    config = small(stages, "queries.negative_ratio=0")
    assert config.curriculum[0] == DepthCurriculumStage(start_step_per_env=4, min_depth=2, max_depth=2)
    env: Any = ProofEnvironment.from_config(config)
    assert isinstance(env, DepthCurriculumEnvironment)
    assert [env.at_step(step) for step in (0, 3, 4, 11, 12)] == [env.stages[i] for i in (0, 0, 1, 1, 2)]
    assert env.metadata()["training_queries"] == [len(stage.queries) for stage in env.stages]

    @jax.jit
    def depths_at(clock: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        states, observations = env.batch_reset(keys)
        states = dataclasses.replace(states, clock=clock)
        mask = jnp.arange(len(clock)) != 0
        new_keys = jax.vmap(jax.random.split)(keys)[:, 0]
        _, observed = env.batch_reset_where(mask, new_keys, states, observations)
        return states.query.depth, observed.depth

    keys = jax.random.split(jax.random.key(0), 30)
    before, after = map(np.asarray, depths_at(np.repeat(np.array([3, 4, 12], np.int32), 10), keys))
    assert after[0] == before[0]
    assert len(np.unique(after[1:10])) > 1
    np.testing.assert_array_equal(after[10:20], 2)
    assert np.all(after[20:] >= 3)


def test_wrapper_has_the_capabilities_of_the_environment(environment: ProofEnvironment) -> None:
    wrapper: Any = ProofEnvironment.from_config(small("curriculum=[{start_step_per_env: 4, max_depth: 2}]"))
    for name in ("config_type", "network_config", "evaluation_config", "eval_config", "version"):
        assert getattr(wrapper, name) == getattr(environment, name)
    assert wrapper.max_episode_steps == environment.max_episode_steps == 4
    state, _ = jax.jit(wrapper.reset)(jax.random.key(0))
    assert wrapper.render_modes == environment.render_modes
    assert wrapper.render(state, "ansi") == environment.render(state, "ansi")
    assert wrapper.task_name(state) == environment.task_name(state)
    text = wrapper.action_text(jnp.int32(0), state)
    assert int(wrapper.parse_action(text, state)) == 0
    assert text in wrapper.observation_text(state)
    np.testing.assert_array_equal(wrapper.legal_actions(state), state.action_mask)


def test_default_network_needs_only_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_module, "compute_proof_depths", None)
    network = ProofEnvironment.default_network(small(), NETWORK, jax.random.key(0))
    assert network.embed_states(jnp.zeros((2, 3, 3), jnp.int32)).tolist() == [[0.0] * 4] * 2


def test_evaluations_during_training_share_the_held_out_environment(environment: ProofEnvironment) -> None:
    settings = ProofEvaluationConfig(max_positives=6)
    (result,) = environment.evaluate(FirstChoice(), settings, final=False)
    (again,) = environment.evaluate(FirstChoice(), settings, final=True)
    assert isinstance(result, EvaluationResult) and result == again
    held_out = environment.held_out(settings)
    assert environment.held_out(settings) is held_out
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
    held_out = environment.held_out(ProofEvaluationConfig())
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
    network = ProofEnvironment.default_network(small(), NETWORK, jax.random.key(0))
    few = LinkPredictionConfig(max_queries=2, split="valid", ties="realistic")
    (result,) = environment.evaluate(network, few, final=True)
    record = result.as_record()
    assert isinstance(result, EvaluationResult)
    assert (record["split"], record["mode"], record["num_queries"]) == ("valid", "policy", 2)
    swapped = dataclasses.replace(base, valid=base.test, test=base.valid, split_depths={})
    swapped.save(tmp_path / "swapped")
    other = few.model_copy(update={"dataset": str(tmp_path / "swapped"), "split": "test"})
    assert environment.evaluate(network, other, final=True)[0].as_record()["mrr"] == record["mrr"]
    generate_family(3, 3, seed=5).save(tmp_path / "others")
    unknown = few.model_copy(update={"dataset": str(tmp_path / "others")})
    with pytest.raises(ValueError, match="is in only one of them; only mode=exact works with other names"):
        environment.evaluate(network, unknown, final=True)
    exact = unknown.model_copy(update={"mode": "exact"})
    assert environment.evaluate(network, exact, final=True)[0].as_record()["mode"] == "exact"
    with pytest.raises(ValueError, match="mode=hybrid needs an embedding: set kge"):
        environment.evaluate(network, few.model_copy(update={"mode": "hybrid"}), final=True)


def test_sampled_episodes_are_rendered_with_names(environment: ProofEnvironment) -> None:
    from phalanx.core.episodes import record_episodes

    recorded = record_episodes(environment, FirstChoice(), jax.random.key(0), 2, 4)
    episodes = environment.render_episodes(recorded)
    assert len(episodes) == 2
    assert "</svg>" in episodes[0]["initial_state"]._repr_svg_()
    assert episodes[0]["task_id"] == environment.task_name(recorded[0]["initial_state"])


def test_embedding_closes_goals_and_changes_the_fingerprint(
    environment: ProofEnvironment, tmp_path: Path
) -> None:
    vocabulary = environment.vocabulary
    assert vocabulary is not None
    model = KGEModelConfig(embedding_dim=4)
    kge = KGE.create(model, vocabulary.num_predicates, vocabulary.num_constants, np.random.default_rng(0))
    save_kge(tmp_path / "kge", kge, model, vocabulary.kg)
    config = small(kge=str(tmp_path), allow_kge_on_query=True)
    kge_env = ProofEnvironment.from_config(config)
    held_out = kge_env.held_out(ProofEvaluationConfig())
    queries = sample_held_out_queries(held_out, 6)
    assert environment.kge_action is None and kge_env.kge_action is not None
    assert held_out.kge_action == kge_env.kge_action
    assert kge_env.fingerprint() != environment.fingerprint()
    network = eqx.filter_jit(lambda key: ProofEnvironment.default_network(config, NETWORK, key))(
        jax.random.key(0)
    )
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
        bare.evaluate(FirstChoice(), ProofEvaluationConfig(), final=False)
    assert bare.metadata() == {"training_queries": [len(environment.queries)]}
    assert len(sample_held_out_queries(bare, None).label) > len(environment.queries)


def test_expert_proves_true_queries_and_gives_up_on_false_ones(environment: ProofEnvironment) -> None:
    expert = environment.expert()
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
    wrapper: Any = ProofEnvironment.from_config(small("curriculum=[{start_step_per_env: 4, max_depth: 2}]"))
    states, _ = jax.jit(wrapper.batch_reset)(jax.random.split(jax.random.key(1), 4))
    labels, expected = wrapper.expert().label(states, ()), environment.expert().label(states, ())
    np.testing.assert_array_equal(labels.actions, expected.actions)
