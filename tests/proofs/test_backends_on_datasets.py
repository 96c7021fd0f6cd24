"""Both engines against the oracle on states that random play reaches in the shared knowledge bases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.testing.tree_diff import to_host
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.state import ProofState
from tests.helpers import knowledge_bases as shared_sets, proof_cases as pc
from tests.reference import resolution as oracle

pytestmark = pytest.mark.slow

BATCH, STEPS, PLAYS = 48, 5, 2


def play(data: shared_sets.SharedSet, config: ProofConfig) -> ProofState:
    """The states that random play goes through: training queries, and random triples as negatives."""
    environment = ProofEnvironment.create(config, data.program, data.train)
    start, step = jax.jit(environment.reset_to), jax.jit(environment.step)
    rng = np.random.default_rng(7)
    # Without a rule for its predicate a query is a dead end.
    derivable = data.train[np.isin(data.train[:, 0], data.program.heads[:, 0])]
    seen = []
    for _ in range(PLAYS):
        queries = derivable[rng.integers(len(derivable), size=BATCH)]
        label = np.arange(BATCH) % 2 == 0
        queries[~label, 2] = rng.integers(1, data.program.num_constants + 1, size=(~label).sum())
        state, _ = start(jnp.asarray(queries), jnp.asarray(label))
        for _ in range(STEPS):
            seen.append(to_host(state))
            actions = (rng.random(BATCH) * seen[-1].num_actions).astype(np.int32)
            state, *_ = step(state, jnp.asarray(actions))
    played = jax.tree.map(lambda *leaves: np.concatenate(leaves), *seen)
    return played[played.status == 0]


def case_of(state: ProofState) -> pc.Case:
    visited = [pc.unpadded(rows) for rows in state.node.visited[: state.node.num_visited]]
    goals = pc.unpadded(state.goals)
    query = tuple(int(x) for x in state.query.atom)
    return pc.Case(goals, query, bool(state.query.label), tuple(v for v in visited if v != goals))


@pytest.mark.parametrize("name", shared_sets.NAMES)
def test_states_of_random_play_have_the_oracles_successors(name: str) -> None:
    if not shared_sets.present(name):
        pytest.skip(f"{name} is not in the shared folder")
    data = shared_sets.read(name)
    states = shared_sets.PADDING[name]
    config = ProofConfig(max_actions=states, backend=pc.ENGINES[0], end_proof_action=False)
    played = play(data, config)
    cases = [case_of(played[index]) for index in range(len(played.num_actions))]
    assert len(cases) > 150
    kb = oracle.KnowledgeBase(
        data.program.facts, data.rules, data.program.num_predicates, data.program.num_constants
    )
    pc.check_against_oracle(kb, config, cases, played.node)
    for engine in pc.ENGINES[1:]:
        other = config.model_copy(update={"backend": engine})
        pc.check_against_oracle(kb, config, cases, pc.expand_cases(data.program, other, cases))
