"""Goals that an embedding closes: what is offered, what taking it leaves and pays, on both engines."""

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
from phalanx.proofs.vocabulary import ProofVocabulary
from tests.helpers.uniform_policy import UniformPolicy

pytestmark = pytest.mark.slow

DATA = KnowledgeBase(
    train=tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "married(c,d)"))),
    valid=tuple(map(parse_atom, ("grandparent(a,c)", "grandparent(a,d)"))),
    rules=(parse_rule("r0:1.0:parent(x,y), parent(y,z) -> grandparent(x,z)"),),
)
NAMES = ProofVocabulary(DATA, max_goals=3)
CONFIG = ProofConfig(max_goals=3, max_actions=6, max_episode_steps=5)
MODEL = KGE.create(
    KGEModelConfig(embedding_dim=4), NAMES.num_predicates, NAMES.num_constants, np.random.default_rng(0)
)
ENGINES = ("native", "xla")


@functools.cache
def environment(engine: str = "xla", *, closes: bool = True, **settings: object) -> ProofEnvironment:
    """With the embedding or without it; what one test has compiled serves the others."""
    return made(MODEL if closes else None, backend=engine, **settings)


def made(kge: KGE | None, **settings: object) -> ProofEnvironment:
    return ProofEnvironment.from_knowledge_base(
        DATA, CONFIG.model_copy(update=settings), "valid", vocabulary=NAMES, kge=kge
    )


def started(env: ProofEnvironment, query: str, label: bool = True):
    row = jnp.asarray(NAMES.encode_atom(parse_atom(query)), jnp.int32)
    return env.reset_to(row, jnp.bool_(label))[0]


def choices(state) -> list[str]:
    shown = np.asarray(state.successors)[: int(state.num_actions)]
    return [", ".join(map(str, NAMES.decode_state(rows))) for rows in shown]


def belief(atom: str) -> float:
    return float(MODEL.log_probability(NAMES.kg.encode([parse_atom(atom)]))[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_twin_of_a_ground_goal_closes_it_and_its_probability_is_what_the_proof_is_worth(engine):
    env = environment(engine)
    state = started(env, "grandparent(a,d)")
    assert choices(state) == ["parent(a,_1), parent(_1,d)", "End"], "the query itself is not closed"
    state, _, reward, _, _ = env.step(state, jnp.int32(0))
    assert choices(state) == ["parent(b,d)", "End"], "a goal with a variable has no score"
    assert float(reward) == 0
    state, *_ = env.step(state, jnp.int32(0))
    assert choices(state) == ["False", "parent_kge(b,d)"]
    state, _, reward, done, info = env.step(state, jnp.int32(1))
    assert bool(done) and bool(info.proved) and int(info.action) == 1
    assert float(info.log_score) == pytest.approx(belief("parent(b,d)"), abs=1e-6)
    # Type 4: a true query pays 1 if proved and -1 if not.
    assert float(reward) == pytest.approx(2 * np.exp(belief("parent(b,d)")) - 1, abs=1e-6)


def test_with_log_the_logarithm_is_paid_at_once_beside_the_whole_reward():
    env = environment(kge_reward="log", allow_kge_on_query=True)
    state = started(env, "grandparent(a,d)", label=False)
    assert choices(state)[-1] == "grandparent_kge(a,d)"
    state, _, reward, done, _ = env.step(state, state.num_actions - 1)
    assert bool(done)
    assert float(reward) == pytest.approx(-1 + belief("grandparent(a,d)"), abs=1e-6)


def test_without_an_embedding_nothing_changes():
    plain, closing = environment(closes=False), environment(allow_kge_on_query=True)
    state = started(plain, "grandparent(a,c)")
    assert state.log_score is None and plain.step(state, jnp.int32(0))[4].log_score is None
    assert choices(started(closing, "grandparent(a,c)"))[:-1] == choices(state)


def test_the_engines_agree_and_the_environment_conforms():
    one, other = (environment(engine, allow_kge_on_query=True) for engine in ENGINES)

    @jax.jit
    def begin(key):
        keys = jax.random.split(key, 16)
        return one.batch_reset(keys)[0], other.batch_reset(keys)[0]

    @jax.jit
    def step(first, second, key):
        actions = jax.vmap(one.sample_action)(jax.random.split(key, 16), first)
        return one.batch_step(first, actions), other.batch_step(second, actions)

    first, second = begin(jax.random.PRNGKey(1))
    for number in range(5):
        (first, _, paid, *_), (second, _, paid_too, *_) = step(first, second, jax.random.PRNGKey(number))
        for left, right in zip(
            jax.tree.leaves((first, paid)), jax.tree.leaves((second, paid_too)), strict=True
        ):
            np.testing.assert_allclose(left, right, rtol=1e-5)
    check_environment(one)


def test_a_search_adds_the_embedding_s_logarithms_to_the_policy_s():
    queries = NAMES.encode(DATA.valid)
    program, config = environment().program, CONFIG
    alone = beam_search(config, program, UniformPolicy(), queries, BeamSearchConfig(beam_width=4))
    assert alone.proved.tolist() == [True, False]
    found = beam_search(config, program, UniformPolicy(), queries, BeamSearchConfig(beam_width=4), kge=MODEL)
    assert found.proved.tolist() == [True, True] and found.length.tolist() == [2, 3]
    # Two choices at each of three steps; the last one is the embedding's.
    assert found.log_prob[1] == pytest.approx(-np.log(8) + belief("parent(b,d)"), abs=1e-5)


def test_an_embedding_of_other_sizes_and_skipped_states_are_refused_in_words():
    small = KGE.create(KGEModelConfig(embedding_dim=4), 1, 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"the embedding has 1 predicates and 2 constants.*load_kge"):
        made(small)
    with pytest.raises(ValueError, match="skip_unary_actions would skip states"):
        made(MODEL, skip_unary_actions=True)
