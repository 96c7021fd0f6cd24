"""Both backends compared with the reference implementation on random knowledge bases, and with each other."""

import functools

import jax
import numpy as np
import pytest

from phalanx.core.testing.tree_diff import differences
from phalanx.native import is_native_available, native_unavailable_reason
from phalanx.proofs.config import ProofConfig
from tests.helpers import proof_cases as pc

pytestmark = pytest.mark.slow

CASES_PER_PROGRAM = 850
PROGRAMS = 12


def cases_of(seed: int, config: ProofConfig, arity: int = 2) -> tuple:
    """Return a program, its knowledge base for the reference, and the same cases for both backends."""
    return random_cases(seed, config.max_goals, config.memory_size, arity)


@functools.cache
def random_cases(seed: int, atoms: int, memory: int, arity: int) -> tuple:
    program, kb = pc.random_program(seed, arity)
    rng = np.random.default_rng(1000 + seed)
    return program, kb, [pc.random_case(kb, rng, atoms, memory) for _ in range(CASES_PER_PROGRAM)]


@pytest.mark.parametrize("backend", pc.ENGINES)
def test_successors_match_the_reference_on_random_states(backend: str) -> None:
    """Compare the order of the successors, overflows and candidates that are too long."""
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=5, backend=backend)
    counts = {"overflow": 0, "too long": 0, "true": 0, "false": 0, "variables": 0}
    for seed in range(PROGRAMS):
        program, kb, cases = cases_of(seed, config)
        node = pc.expand_cases(program, config, cases)
        pc.check_against_reference(kb, config, cases, node)
        counts["overflow"] += int(node.overflow.sum())
        counts["too long"] += int((node.num_too_long > 0).sum())
        counts["true"] += int((node.successors[:, :, 0, 0] == program.true_index).sum())
        counts["false"] += int((node.successors[:, 0, 0, 0] == program.false_index).sum())
        counts["variables"] += int((node.successors[:, :, :, 1:] > kb.constants).any(axis=(1, 2, 3)).sum())
    assert PROGRAMS * CASES_PER_PROGRAM >= 10_000
    assert all(count > 100 for count in counts.values()), counts


@pytest.mark.parametrize("backend", pc.ENGINES)
def test_successors_of_ternary_atoms_match_the_reference(backend: str) -> None:
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=5, backend=backend)
    counts = {"overflow": 0, "too long": 0, "true": 0, "false": 0}
    for seed in range(300, 306):
        program, kb, cases = cases_of(seed, config, arity=3)
        node = pc.expand_cases(program, config, cases)
        pc.check_against_reference(kb, config, cases, node)
        counts["overflow"] += int(node.overflow.sum())
        counts["too long"] += int((node.num_too_long > 0).sum())
        counts["true"] += int((node.successors[:, :, 0, 0] == program.true_index).sum())
        counts["false"] += int((node.successors[:, 0, 0, 0] == program.false_index).sum())
    assert all(count > 20 for count in counts.values()), counts


@pytest.mark.parametrize("backend", pc.ENGINES)
def test_successors_without_end_action_and_pruning_match_the_reference(backend: str) -> None:
    config = ProofConfig(
        max_actions=40, max_goals=6, end_proof_action=False, prune_visited=False, backend=backend
    )
    for seed in (100, 101):
        program, kb, cases = random_cases(seed, atoms=6, memory=1, arity=2)
        node = pc.expand_cases(program, config, cases)
        pc.check_against_reference(kb, config, cases, node)


@pytest.mark.skipif(not is_native_available(), reason=native_unavailable_reason())
def test_backends_are_bit_identical_when_unary_actions_are_skipped() -> None:
    """Compare also the skipped states, the visited states and the padding."""
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=2, skip_unary_actions=True)
    skipped = 0
    for seed in (200, 201, 202):
        program, _, cases = cases_of(seed, config)
        configs = [config.model_copy(update={"backend": backend}) for backend in ("native", "xla")]
        nodes = [pc.expand_cases(program, one, cases) for one in configs]
        assert differences(nodes[0], nodes[1], "the XLA backend's node") == []
        skipped += int((nodes[0].num_skipped > 0).sum())
    assert skipped > 30


@pytest.mark.skipif(not is_native_available(), reason=native_unavailable_reason())
def test_rows_outside_the_mask_are_not_changed() -> None:
    config = ProofConfig(max_actions=10, max_goals=4, max_episode_steps=5)
    program, _, cases = cases_of(3, config)
    for backend in ("native", "xla"):
        backend_config = config.model_copy(update={"backend": backend})
        expanded = pc.expand_cases(program, backend_config, cases)
        again = pc.expand_nodes(
            program, backend_config, cases, jax.tree.map(np.array, expanded), np.zeros(len(cases), bool)
        )
        assert differences(expanded, again, backend) == []
