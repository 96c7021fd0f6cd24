"""The KGE action: when it is offered, what it proves, and its reward, on both backends."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.testing import check_environment
from phalanx.kg import KnowledgeBase, parse_atom, parse_rule
from phalanx.kg.kge import KGE
from phalanx.kg.kge.models import KGEModelConfig
from phalanx.proofs import ProofConfig, ProofEnvironment
from phalanx.proofs.search.beam import BeamSearchConfig, beam_search
from phalanx.proofs.spec import SPEC
from phalanx.proofs.vocabulary import ProofVocabulary
from tests.helpers.families import without_counters
from tests.helpers.uniform_policy import UniformPolicy

pytestmark = pytest.mark.slow

DATA = KnowledgeBase(
    train=tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "married(c,d)"))),
    valid=tuple(map(parse_atom, ("grandparent(a,c)", "grandparent(a,d)"))),
    rules=(parse_rule("r0:1.0:parent(x,y), parent(y,z) -> grandparent(x,z)"),),
)
VOCABULARY = ProofVocabulary(DATA, max_goals=3)
CONFIG = ProofConfig(max_goals=3, max_actions=6, max_episode_steps=5)
MODEL = KGE.create(
    KGEModelConfig(embedding_dim=4),
    VOCABULARY.num_predicates,
    VOCABULARY.num_constants,
    np.random.default_rng(0),
)
BACKENDS = ("native", "xla")


@functools.cache
def environment(backend: str = "xla", *, with_kge: bool = True, **settings: object) -> ProofEnvironment:
    """Create an environment with or without the embedding; it is cached, so that tests share compilations."""
    return create_environment(MODEL if with_kge else None, backend=backend, **settings)


def create_environment(kge: KGE | None, **settings: object) -> ProofEnvironment:
    return ProofEnvironment.from_knowledge_base(
        DATA, CONFIG.model_copy(update=settings), "valid", vocabulary=VOCABULARY, kge=kge
    )


def start_state(env: ProofEnvironment, query: str, label: bool = True):
    row = jnp.asarray(VOCABULARY.encode_atom(parse_atom(query)), jnp.int32)
    return env.reset_to(row, jnp.bool_(label))[0]


def choices(state) -> list[str]:
    successors = np.asarray(state.successors)[: int(state.num_actions)]
    return [", ".join(map(str, VOCABULARY.decode_state(rows))) for rows in successors]


def log_probability(atom: str) -> float:
    return float(MODEL.log_prob(VOCABULARY.kg.encode([parse_atom(atom)]))[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_kge_action_proves_a_ground_goal_and_its_probability_scales_the_reward(backend):
    env = environment(backend)
    state = start_state(env, "grandparent(a,d)")
    assert choices(state) == ["parent(a,_1), parent(_1,d)", "End"], "the query itself has no KGE action"
    state, _, reward, _, _ = env.step(state, jnp.int32(0))
    assert choices(state) == ["parent(b,d)", "End"], "a goal with a variable has no KGE action"
    assert float(reward) == 0
    state, *_ = env.step(state, jnp.int32(0))
    assert choices(state) == ["False", "parent_kge(b,d)"]
    state, _, reward, done, info = env.step(state, jnp.int32(1))
    assert bool(done) and bool(info.proved) and int(info.action) == 1
    assert float(info.log_score) == pytest.approx(log_probability("parent(b,d)"), abs=1e-6)
    # Reward type 4: a true query has the reward 1 if it is proved and -1 if not.
    assert float(reward) == pytest.approx(2 * np.exp(log_probability("parent(b,d)")) - 1, abs=1e-6)


def test_log_reward_adds_the_log_probability_to_the_reward():
    env = environment(kge_reward="log", allow_kge_on_query=True)
    state = start_state(env, "grandparent(a,d)", label=False)
    assert choices(state)[-1] == "grandparent_kge(a,d)"
    state, _, reward, done, _ = env.step(state, state.num_actions - 1)
    assert bool(done)
    assert float(reward) == pytest.approx(-1 + log_probability("grandparent(a,d)"), abs=1e-6)


def test_environment_without_an_embedding_has_no_kge_action():
    base_env, kge_env = environment(with_kge=False), environment(allow_kge_on_query=True)
    state = start_state(base_env, "grandparent(a,c)")
    assert state.log_score is None and base_env.step(state, jnp.int32(0))[4].log_score is None
    assert choices(start_state(kge_env, "grandparent(a,c)"))[:-1] == choices(state)


def test_backends_agree_and_the_environment_conforms():
    one, other = (environment(backend, allow_kge_on_query=True) for backend in BACKENDS)

    @jax.jit
    def reset(key):
        keys = jax.random.split(key, 16)
        return one.batch_reset(keys)[0], other.batch_reset(keys)[0]

    @jax.jit
    def step(first, second, key):
        actions = jax.vmap(one.sample_action)(jax.random.split(key, 16), first)
        return one.batch_step(first, actions), other.batch_step(second, actions)

    first, second = reset(jax.random.PRNGKey(1))
    for number in range(5):
        (first, _, rewards, *_), (second, _, other_rewards, *_) = step(
            first, second, jax.random.PRNGKey(number)
        )
        for left, right in zip(
            jax.tree.leaves((first, rewards)), jax.tree.leaves((second, other_rewards)), strict=True
        ):
            np.testing.assert_allclose(left, right, rtol=1e-5)
    report = check_environment(one, spec=SPEC, comparable_state=without_counters)
    assert {"check_text_round_trip", "check_expert", "check_task_name"} <= set(report.passed)


def test_search_adds_the_log_probabilities_of_embedding_and_policy():
    queries = VOCABULARY.encode(DATA.valid)
    program, config = environment().program, CONFIG
    without_kge = beam_search(config, program, UniformPolicy(), queries, BeamSearchConfig(beam_width=4))
    assert without_kge.proved.tolist() == [True, False]
    found = beam_search(config, program, UniformPolicy(), queries, BeamSearchConfig(beam_width=4), kge=MODEL)
    assert found.proved.tolist() == [True, True] and found.length.tolist() == [2, 3]
    # There are two actions at each of three steps; the last one taken is the KGE action.
    assert found.log_prob[1] == pytest.approx(-np.log(8) + log_probability("parent(b,d)"), abs=1e-5)


def test_embedding_of_other_sizes_and_skipped_states_are_rejected():
    small = KGE.create(KGEModelConfig(embedding_dim=4), 1, 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"the embedding has 1 predicates and 2 constants.*load_kge"):
        create_environment(small)
    with pytest.raises(ValueError, match="skip_unary_actions would skip states"):
        create_environment(MODEL, skip_unary_actions=True)
