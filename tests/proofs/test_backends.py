"""Both engines against the oracle on random knowledge bases, and against one another."""

import functools

import jax
import numpy as np
import pytest

from phalanx.core.testing.tree_diff import differences
from phalanx.native import is_native_available, native_unavailable_reason
from phalanx.proofs.config import ProofConfig
from tests.helpers import proof_cases as pc

pytestmark = pytest.mark.slow

CASES_A_PROGRAM = 850
PROGRAMS = 12


def cases_of(seed: int, config: ProofConfig, arity: int = 2) -> tuple:
    """A program, what the oracle knows of it, and cases: the same ones for both engines."""
    return drawn_cases(seed, config.max_goals, config.memory_size, arity)


@functools.cache
def drawn_cases(seed: int, atoms: int, memory: int, arity: int) -> tuple:
    program, kb = pc.random_program(seed, arity)
    rng = np.random.default_rng(1000 + seed)
    return program, kb, [pc.random_case(kb, rng, atoms, memory) for _ in range(CASES_A_PROGRAM)]


@pytest.mark.parametrize("engine", pc.ENGINES)
def test_successors_equal_the_oracles_on_ten_thousand_random_states(engine: str) -> None:
    """Sequences, not only sets; overflow and too long candidates too."""
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=5, backend=engine)
    seen = {"overflow": 0, "too long": 0, "true": 0, "false": 0, "variables": 0}
    for seed in range(PROGRAMS):
        program, kb, cases = cases_of(seed, config)
        node = pc.expand_cases(program, config, cases)
        pc.check_against_oracle(kb, config, cases, node)
        seen["overflow"] += int(node.overflow.sum())
        seen["too long"] += int((node.num_too_long > 0).sum())
        seen["true"] += int((node.successors[:, :, 0, 0] == program.true_index).sum())
        seen["false"] += int((node.successors[:, 0, 0, 0] == program.false_index).sum())
        seen["variables"] += int((node.successors[:, :, :, 1:] > kb.constants).any(axis=(1, 2, 3)).sum())
    assert PROGRAMS * CASES_A_PROGRAM >= 10_000
    assert all(count > 100 for count in seen.values()), seen


@pytest.mark.parametrize("engine", pc.ENGINES)
def test_successors_of_atoms_with_three_terms_equal_the_oracles(engine: str) -> None:
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=5, backend=engine)
    seen = {"overflow": 0, "too long": 0, "true": 0, "false": 0}
    for seed in range(300, 306):
        program, kb, cases = cases_of(seed, config, arity=3)
        node = pc.expand_cases(program, config, cases)
        pc.check_against_oracle(kb, config, cases, node)
        seen["overflow"] += int(node.overflow.sum())
        seen["too long"] += int((node.num_too_long > 0).sum())
        seen["true"] += int((node.successors[:, :, 0, 0] == program.true_index).sum())
        seen["false"] += int((node.successors[:, 0, 0, 0] == program.false_index).sum())
    assert all(count > 20 for count in seen.values()), seen


@pytest.mark.parametrize("engine", pc.ENGINES)
def test_wide_padding_without_end_action_and_memory_equals_the_oracle(engine: str) -> None:
    config = ProofConfig(
        max_actions=40, max_goals=6, end_proof_action=False, prune_visited=False, backend=engine
    )
    for seed in (100, 101):
        program, kb, cases = drawn_cases(seed, atoms=6, memory=1, arity=2)
        node = pc.expand_cases(program, config, cases)
        pc.check_against_oracle(kb, config, cases, node)


@pytest.mark.skipif(not is_native_available(), reason=native_unavailable_reason())
def test_the_engines_agree_bit_by_bit_when_unary_actions_are_skipped() -> None:
    """States passed, states remembered and what the padding holds included."""
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=2, skip_unary_actions=True)
    skipped = 0
    for seed in (200, 201, 202):
        program, _, cases = cases_of(seed, config)
        both = [config.model_copy(update={"backend": backend}) for backend in ("native", "xla")]
        nodes = [pc.expand_cases(program, one, cases) for one in both]
        assert differences(nodes[0], nodes[1], "the XLA engine's node") == []
        skipped += int((nodes[0].num_skipped > 0).sum())
    assert skipped > 30


@pytest.mark.skipif(not is_native_available(), reason=native_unavailable_reason())
def test_rows_that_are_not_asked_for_stay_as_they_are() -> None:
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=5)
    program, _, cases = cases_of(3, config)
    for engine in ("native", "xla"):
        chosen = config.model_copy(update={"backend": engine})
        done = pc.expand_cases(program, chosen, cases)
        again = pc.expand_nodes(
            program, chosen, cases, jax.tree.map(np.array, done), np.zeros(len(cases), bool)
        )
        assert differences(done, again, engine) == []
