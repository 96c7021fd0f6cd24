"""Episodes of the proof environment: rewards, limits, queries and negatives, on a family of five."""

import dataclasses
import functools
import gc
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.core.testing.tree_diff import differences
from phalanx.native import is_native_available, native_unavailable_reason
from phalanx.proofs.config import ProofConfig, ProofRewardConfig, QueryConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.queries import KnownArrays, NegativeSamplingData, PositiveQueries, corrupt, sample_query
from tests.helpers import families as f, proof_cases as pc
from tests.reference import proofs as reference

pytestmark = pytest.mark.slow

GRANDCHILD = ((f.PARENT, f.ANN, f.X), (f.ANCESTOR, f.X, f.CAT))


@pytest.fixture(scope="module")
def env() -> ProofEnvironment:
    return f.environment()


def test_positive_query_cannot_be_proved_by_its_own_fact(
    env: ProofEnvironment,
) -> None:
    state = f.start(env, (f.ANCESTOR, f.ANN, f.CAT))
    assert f.offered(state) == [((f.PARENT, f.ANN, f.CAT),), GRANDCHILD, f.END]


def test_negative_query_can_be_proved_by_its_own_fact(env: ProofEnvironment) -> None:
    state = f.start(env, (f.ANCESTOR, f.ANN, f.CAT), label=False)
    assert f.offered(state)[0] == f.TRUE


def test_proof_ends_at_true_with_reward_one(env: ProofEnvironment) -> None:
    state = f.start(env, (f.ANCESTOR, f.ANN, f.CAT))
    steps = GRANDCHILD, ((f.ANCESTOR, f.BOB, f.CAT),), f.TRUE
    state, observation, reward, done, info = f.take(env, state, *steps)
    assert (float(reward), bool(done), bool(info.proved), bool(info.terminated)) == (1.0, True, True, True)
    assert int(info.step_count) == 3
    assert f.offered(state) == [f.TRUE] and observation.action_mask.tolist() == [True] + [False] * 7


def test_end_action_leads_to_the_false_state(env: ProofEnvironment) -> None:
    state, _, reward, done, info = f.take(env, f.start(env, (f.SIBLING, f.BOB, f.EVE)), f.END)
    assert tuple(map(tuple, np.asarray(state.goals)[:1].tolist())) == f.FALSE
    assert bool(done) and bool(info.gave_up) and not bool(info.proved)
    assert float(reward) == -1.0


def test_dead_end_offers_only_false() -> None:
    env = f.environment(end_proof_action=False)
    state = f.start(env, (f.PARENT, f.DAN, f.ANN))
    assert f.offered(state) == [f.FALSE]
    info = f.take(env, state, f.FALSE)[4]
    assert bool(info.terminated) and not bool(info.gave_up)


def test_step_limit_truncates_the_episode_with_the_reward_of_a_failed_proof() -> None:
    env = f.environment(max_episode_steps=1)
    state, _, reward, done, info = f.take(env, f.start(env, (f.ANCESTOR, f.ANN, f.CAT)), GRANDCHILD)
    assert bool(done) and bool(info.truncated) and not bool(info.terminated)
    assert float(reward) == -1.0
    assert f.offered(state) == [((f.ANCESTOR, f.BOB, f.CAT),), ((f.ANCESTOR, f.EVE, f.CAT),), f.END]


@pytest.mark.parametrize("action", [-1, 3, 7, 8, 1000])
def test_masked_action_gives_the_penalty_and_changes_only_the_step_count(
    env: ProofEnvironment, action: int
) -> None:
    before = f.start(env, (f.ANCESTOR, f.ANN, f.CAT))
    after, _, reward, done, info = env.step(before, jnp.int32(action))
    assert (float(reward), bool(done), int(info.action), int(info.step_count)) == (-1.0, False, -1, 1)
    states = f.without_counters(before), f.without_counters(after)
    assert differences(*states, "state after an invalid action") == []


def test_unary_actions_are_skipped_until_the_first_choice() -> None:
    """sibling(Bob, Eve) has one successor, whose goals have one matching fact, which leads to True."""
    env = f.environment(skip_unary_actions=True)
    state = f.start(env, (f.SIBLING, f.BOB, f.EVE))
    assert int(state.node.num_skipped) == 1
    assert pc.unpadded(np.asarray(state.goals)) == ((f.PARENT, f.X, f.BOB), (f.PARENT, f.X, f.EVE))
    assert f.offered(state) == [f.TRUE, f.END]


def test_at_most_twenty_states_are_skipped() -> None:
    """A chain of 30 rules, one for each predicate."""
    chain = Program.create(
        np.array([[31, 1, 1]], np.int32), [((k, -1, -2), [(k + 1, -1, -2)]) for k in range(1, 31)], 31, 2
    )
    config = ProofConfig(max_actions=4, max_goals=2, skip_unary_actions=True, end_proof_action=False)
    env = ProofEnvironment.create(config, chain, np.array([[1, 1, 1]], np.int32))
    state = f.start(env, (1, 1, 2))
    assert int(state.node.num_skipped) == 20 and int(state.goals[0, 0]) == 21


REWARDS = {
    0: (1.0, 0.0, 0.0, 0.0, 0.0),
    1: (1.0, 0.0, -1.0, 0.0, 0.0),
    2: (1.0, 0.0, 0.0, 1.0, 1.0),
    3: (1.0, -0.5, -1.5, 1.0, 1.0),
    4: (1.0, -1.0, -1.0, 0.25, 0.25),
    5: (1.0, -1.0, -1.0, 0.25, 0.55),
}


@pytest.mark.parametrize("type_", REWARDS)
def test_rewards_of_each_type_for_true_and_false_proofs_and_failures(type_: int) -> None:
    env = f.environment(reward=ProofRewardConfig(type=type_, true_negative=0.25), max_actions=5)
    grandparent = (f.ANCESTOR, f.ANN, f.CAT)
    proof = GRANDCHILD, ((f.ANCESTOR, f.BOB, f.CAT),), f.TRUE
    failure = ((f.PARENT, f.ANN, f.CAT),), f.FALSE
    dead = f.start(env, (f.PARENT, f.DAN, f.ANN), False)
    results = (
        f.take(env, f.start(env, grandparent), *proof),
        f.take(env, f.start(env, grandparent), *failure),
        f.take(env, f.start(env, grandparent, False), f.TRUE),
        f.take(env, dead, f.FALSE),
        f.take(env, f.start(env, grandparent, False), f.END),
    )
    assert tuple(round(float(result[2]), 6) for result in results) == REWARDS[type_]


def test_negative_ratio_sets_the_fraction_of_negative_queries() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), 2000)
    for ratio, fraction in ((1.0, 0.5), (0.0, 0.0)):
        env = f.environment(queries=QueryConfig(negative_ratio=ratio))
        state = jax.device_get(jax.jit(env.batch_reset)(keys)[0])
        assert abs(float(np.mean(~state.query.label)) - fraction) < 0.04
        assert np.where(state.query.label, state.query.depth >= 2, state.query.depth == -1).all()


def random_bits(count: int, width: int = 3) -> jax.Array:
    return jax.random.bits(jax.random.PRNGKey(3), (count, width), jnp.uint32)


@functools.partial(jax.jit, static_argnums=1)
def sample_corruptions(known: KnownArrays, corruption: str, triple: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(lambda w: corrupt(known, corruption, triple, w))(random_bits(200))


@settings(max_examples=60, deadline=None)
@given(
    cells=st.sets(st.integers(0, 71), min_size=30, max_size=30),
    domains=st.lists(st.integers(0, 1), min_size=6, max_size=6),
    side=st.sampled_from(["head", "tail"]),
)
def test_negatives_are_exactly_the_unknown_triples_of_the_same_domain(
    cells: set, domains: list, side: str
) -> None:
    """Every unknown replacement from the same domain is sampled, and nothing else."""
    triples = [(cell // 36 + 1, cell // 6 % 6 + 1, cell % 6 + 1) for cell in sorted(cells)]
    known = NegativeSamplingData.create(np.array(triples, np.int32), 2, 6, np.array([0, *domains], np.int32))
    triple, column = triples[0], 1 if side == "head" else 2
    replaced = [(*triple[:column], c, *triple[column + 1 :]) for c in range(1, 7)]
    same_domain = [t for t in replaced if domains[t[column] - 1] == domains[triple[column] - 1]]
    free = set(same_domain) - set(triples)
    sampled, possible = sample_corruptions(known.arrays, side, jnp.asarray(triple, jnp.int32))
    assert (np.asarray(possible) == bool(free)).all()
    if free:
        assert {tuple(row) for row in np.asarray(sampled).tolist()} == free


def test_corruption_of_either_side_falls_back_to_the_side_with_unknown_triples() -> None:
    """r(1, ?) is known for all constants, so only the first argument can be replaced; then none can."""
    everyone = np.array([(1, 1, c) for c in range(1, 4)], np.int32)
    known = NegativeSamplingData.create(everyone, 1, 3)
    sampled, possible = sample_corruptions(known.arrays, "either", jnp.array([1, 1, 2], jnp.int32))
    assert np.asarray(possible).all() and {tuple(r) for r in sampled.tolist()} == {(1, 2, 2), (1, 3, 2)}
    full = NegativeSamplingData.create(np.array([(1, a, b) for a in (1, 2) for b in (1, 2)], np.int32), 1, 2)
    queries = PositiveQueries.create(np.array([[1, 1, 2]], np.int32))
    sample = jax.jit(jax.vmap(lambda w: sample_query(QueryConfig(), queries, full, w)))
    assert np.asarray(sample(random_bits(40, 5)).label).all()


def test_corruption_of_both_sides_changes_the_first_and_is_never_known() -> None:
    known = NegativeSamplingData.create(np.array([(1, 1, 1), (1, 2, 2), (1, 3, 1)], np.int32), 1, 3)
    sampled, _ = sample_corruptions(known.arrays, "both", jnp.array([1, 1, 1], jnp.int32))
    assert {tuple(row) for row in sampled.tolist()} == {(1, 2, 1), (1, 2, 3), (1, 3, 2), (1, 3, 3)}


def test_queries_are_sampled_by_depth() -> None:
    keys = jax.random.split(jax.random.PRNGKey(1), 1000)
    shallow = f.environment(queries=QueryConfig(negative_ratio=0, max_depth=2))
    assert set(np.asarray(jax.jit(shallow.batch_reset)(keys)[0].query.depth).tolist()) == {2}
    weighted = f.environment(queries=QueryConfig(negative_ratio=0, depth_weights=((2, 1.0), (3, 3.0))))
    state = jax.device_get(jax.jit(weighted.batch_reset)(keys)[0])
    assert abs(float(np.mean(state.query.depth == 3)) - 0.75) < 0.05
    first = np.all(state.query.atom == f.QUERIES[0], axis=1)
    assert abs(float(np.mean(first)) - 0.125) < 0.04
    with pytest.raises(ValueError, match=r"no query matches min_depth=9.*2: 2, 3: 1"):
        f.environment(queries=QueryConfig(min_depth=9))


def test_proofs_of_random_episodes_hold_by_forward_chaining() -> None:
    """Check positive queries without their own fact, and negative queries."""
    proofs = 0
    for seed in range(2):
        program, kb = pc.random_program(300 + seed)
        config = ProofConfig(max_actions=7, max_goals=4, max_episode_steps=8)
        env = ProofEnvironment.create(config, program, program.facts)
        state, _ = jax.jit(env.batch_reset)(jax.random.split(jax.random.PRNGKey(seed), 400))
        step, rng = jax.jit(env.batch_step), np.random.default_rng(seed)
        for _ in range(8):
            actions = (rng.random(400) * np.asarray(state.num_actions)).astype(np.int32)
            state, _, _, _, info = step(state, jnp.asarray(actions))
        closures: dict = {None: reference.closure(kb, None)}
        for query, label in {
            (tuple(q), bool(l))
            for q, l, p in zip(
                state.query.atom.tolist(), state.query.label.tolist(), info.proved.tolist(), strict=True
            )
            if p
        }:
            excluded = query if label else None
            if excluded not in closures:
                closures[excluded] = reference.closure(kb, excluded)
            assert query in closures[excluded], f"{query} is not entailed"
            proofs += 1
    assert proofs > 30


def test_no_data_remains_from_earlier_states_and_episodes() -> None:
    """Rows after the successors are empty at every step, and a reset state equals a new state."""
    program, _ = pc.random_program(7)
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=5)
    env = ProofEnvironment.create(config, program, program.facts)
    keys = jax.random.split(jax.random.PRNGKey(0), 80)
    fresh, _ = state, observation = jax.jit(env.batch_reset)(keys)
    step, rng = jax.jit(env.batch_step), np.random.default_rng(0)
    widest = np.zeros(80, int)
    for _ in range(4):
        count = np.asarray(state.num_actions)
        widest = np.maximum(widest, count)
        state, observation, *_ = step(state, jnp.asarray((rng.random(80) * count).astype(np.int32)))
        assert not np.asarray(state.successors)[~np.asarray(state.action_mask)].any()
    assert (widest > np.asarray(state.num_actions)).sum() > 20
    reset_state, _ = jax.jit(env.batch_reset_where)(jnp.ones(80, bool), keys, state, observation)
    assert differences(fresh, reset_state, "reset state") == []


def test_step_and_reset_agree_under_jit_vmap_and_scan(env: ProofEnvironment) -> None:
    keys = np.asarray(jax.random.split(jax.random.PRNGKey(0), 6))

    def three_steps(key: jax.Array) -> jax.Array:
        def one(state, key):
            state, _, reward, _, _ = env.step(state, env.sample_action(key, state))
            return state, reward

        return jax.lax.scan(one, env.reset(key)[0], jax.random.split(key, 3))[1]

    nested = jax.jit(jax.vmap(jax.vmap(three_steps)))(keys.reshape(2, 3, 2))
    single = np.stack([jax.jit(three_steps)(key) for key in keys])
    assert np.array_equal(np.asarray(nested).reshape(6, 3), single)


@pytest.mark.skipif(not is_native_available(), reason=native_unavailable_reason())
def test_compiled_function_that_outlives_its_program_raises_an_error() -> None:
    gc.collect(1)  # so that collecting the young generations below is enough
    program = dataclasses.replace(f.program(), rule_order=np.array([0, 1, 7], np.int32))
    env = ProofEnvironment.create(ProofConfig(backend="native"), program, f.QUERIES)
    query, label = jnp.asarray(f.QUERIES[0]), jnp.bool_(True)
    function = jax.jit(env.reset_to)
    compiled = function.lower(query, label).compile()
    assert int(compiled(query, label)[0].num_actions) == 3
    del function, env, program
    gc.collect(1)
    with pytest.raises(Exception, match="Program of this compiled function has been deleted"):
        jax.block_until_ready(compiled(query, label))


def test_invalid_programs_are_rejected() -> None:
    facts = np.array([[1, 1, 9]], np.int32)
    with pytest.raises(
        ValueError, match=r"fact 0 is \[1, 1, 9\], but predicates are 1..1 and constants 1..2"
    ):
        Program.create(facts, [], 1, 2)
    with pytest.raises(ValueError, match=r"rule 0: \(1, -1, 0\) must be a predicate from 1"):
        Program.create(facts[:0], [((1, -1, 0), [])], 1, 2)
    with pytest.raises(ValueError, match="depth_weights contains a depth twice"):
        QueryConfig(depth_weights=((1, 1.0), (1, 2.0)))


def test_equal_programs_have_equal_hashes() -> None:
    one, other = f.program(), Program.create(f.FACTS[::-1].copy(), f.RULES, 3, 5)
    assert one == other and hash(one) == hash(other)
    assert one != Program.create(f.FACTS[1:], f.RULES, 3, 5)


def test_used_environment_can_be_pickled(env: ProofEnvironment) -> None:
    f.start(env, f.QUERIES[0])
    assert pickle.loads(pickle.dumps(env)) == env


def test_equal_environments_have_equal_hashes() -> None:
    assert f.environment() == f.environment() and hash(f.environment()) == hash(f.environment())
