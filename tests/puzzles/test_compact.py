"""Puzzles in few characters, and the moves that are legal: read back by the same rules."""

import pytest

from phalanx.puzzles import PuzzleEnvironment
from phalanx.puzzles.catalog import KINDS


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
@pytest.mark.parametrize("kind", KINDS)
def test_legal_moves_are_taken_and_the_solvers_are_among_them(kind: str, difficulty: str) -> None:
    environment = PuzzleEnvironment(kind, difficulty, compact=True)
    prompt = environment.reset(5)
    assert len(prompt) < 250
    legal = environment.legal_moves()
    assert legal is not None
    assert len(set(legal)) == len(legal)
    for move in legal[:: max(1, len(legal) // 12)]:
        environment.reset(5)
        assert not environment.step(move).info.refused
    environment.reset(5)
    for answer in environment.demonstration() or []:
        assert answer in (environment.legal_moves() or [])
        step = environment.step(answer)
    assert step.info.solved
    assert environment.legal_moves() == []


@pytest.mark.parametrize("kind", KINDS)
def test_compact_prompts_tell_puzzles_and_states_apart(kind: str) -> None:
    environment = PuzzleEnvironment(kind, "medium", compact=True)
    prompts = {environment.reset(seed) for seed in range(40)}
    assert len(prompts) == 40
    single = PuzzleEnvironment(kind, "medium", turns="single", compact=True)
    assert single.reset(3).startswith(kind)
    assert single.legal_moves() is None
    [answer] = single.demonstration() or []
    assert single.step(answer).info.solved
