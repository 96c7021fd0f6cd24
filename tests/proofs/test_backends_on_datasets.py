"""Both backends compared with the reference on states that random actions reach in the shared datasets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.testing.tree_diff import to_host
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.state import ProofState
from tests.helpers import knowledge_bases as shared_sets, proof_cases as pc
from tests.reference import proofs as reference

pytestmark = pytest.mark.slow

BATCH, STEPS, NUM_BATCHES = 48, 5, 2


def collect_states(data: shared_sets.SharedSet, config: ProofConfig) -> ProofState:
    """Return the states that random actions reach from training queries and from random negatives."""
    environment = ProofEnvironment.create(config, data.program, data.train)
    reset, step = jax.jit(environment.reset_to), jax.jit(environment.batch_step)
    rng = np.random.default_rng(7)
    # A query without a rule for its predicate is a dead end.
    derivable = data.train[np.isin(data.train[:, 0], data.program.heads[:, 0])]
    batches = []
    for _ in range(NUM_BATCHES):
        queries = derivable[rng.integers(len(derivable), size=BATCH)]
        label = np.arange(BATCH) % 2 == 0
        queries[~label, 2] = rng.integers(1, data.program.num_constants + 1, size=(~label).sum())
        state, _ = reset(jnp.asarray(queries), jnp.asarray(label))
        for _ in range(STEPS):
            batches.append(to_host(state))
            actions = (rng.random(BATCH) * batches[-1].num_actions).astype(np.int32)
            state, *_ = step(state, jnp.asarray(actions))
    states = jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    return states[states.status == 0]


def case_of(state: ProofState) -> pc.Case:
    visited = [pc.unpadded(rows) for rows in state.node.visited[: state.node.num_visited]]
    goals = pc.unpadded(state.goals)
    query = tuple(int(x) for x in state.query.atom)
    return pc.Case(goals, query, bool(state.query.label), tuple(v for v in visited if v != goals))


@pytest.mark.parametrize("name", shared_sets.NAMES)
def test_successors_of_reached_states_match_the_reference(name: str) -> None:
    if not shared_sets.present(name):
        pytest.skip(f"{name} is not in the shared folder")
    data = shared_sets.read(name)
    max_actions = shared_sets.PADDING[name]
    config = ProofConfig(max_actions=max_actions, backend=pc.ENGINES[0], end_proof_action=False)
    states = collect_states(data, config)
    cases = [case_of(states[index]) for index in range(len(states.num_actions))]
    assert len(cases) > 150
    kb = reference.KnowledgeBase(
        data.program.facts, data.rules, data.program.num_predicates, data.program.num_constants
    )
    pc.check_against_reference(kb, config, cases, states.node)
    for backend in pc.ENGINES[1:]:
        other = config.model_copy(update={"backend": backend})
        pc.check_against_reference(kb, config, cases, pc.expand_cases(data.program, other, cases))
