"""All kinds of puzzles: generators, solvers and verifiers compared with references and brute force."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx import native
from phalanx.puzzles import Puzzle, PuzzleEnvironment, SplitMix64, puzzle_kind, puzzle_kinds
from phalanx.puzzles.kind import solve_puzzle
from phalanx.puzzles.kinds import KINDS
from tests.reference.puzzles import knights, latin_square, lines, regions, sokoban
from tests.reference.puzzles.solution_counts import (
    binary_solutions,
    bridges_solutions,
    fewest_presses,
    fewest_pushes,
    hitori_solutions,
    knights_solutions,
    latin_solutions,
    nonogram_solutions,
)

RECORDED = Path(__file__).parent / "recorded_puzzles.json"
LEVELS = ("easy", "medium", "hard")
GENERATORS = {
    "sudoku": latin_square.generate_sudoku,
    "futoshiki": latin_square.generate_futoshiki,
    "binary": lines.generate_binary,
    "nonogram": lines.generate_nonogram,
    "hitori": regions.generate_hitori,
    "bridges": regions.generate_bridges,
    "knights": knights.generate_knights,
    "sokoban": sokoban.generate_sokoban,
}
SOLVERS = {
    "sudoku": latin_square.solve_sudoku,
    "futoshiki": latin_square.solve_futoshiki,
    "binary": lines.solve_binary,
    "nonogram": lines.solve_nonogram,
    "hitori": regions.solve_hitori,
    "bridges": regions.solve_bridges,
    "knights": knights.solve_knights,
}


@pytest.mark.parametrize("name", KINDS)
def test_solver_moves_solve_puzzles_of_each_difficulty(name: str) -> None:
    kind = puzzle_kind(name)
    for level in LEVELS:
        for puzzle in kind.generate_batch(range(50), level):
            state = kind.initial_state(puzzle)
            assert not kind.is_solved(puzzle, state)
            moves = kind.solve(puzzle, state)
            assert moves
            for move in moves:
                state = kind.apply(puzzle, state, kind.parse_move(puzzle, state, move))
            assert kind.is_solved(puzzle, state)
            assert kind.solve(puzzle, state) == []
            assert kind.verify(puzzle, kind.solution_text(puzzle))
            if kind.has_unique_solution:
                assert kind.count_solutions(puzzle) == 1


@pytest.mark.parametrize(
    ("name", "level", "seeds", "count"),
    [
        ("sudoku", "easy", 50, lambda puzzle: latin_solutions(puzzle, (2, 2))),
        ("sudoku", "medium", 10, lambda puzzle: latin_solutions(puzzle, (2, 3))),
        ("futoshiki", "easy", 50, lambda puzzle: latin_solutions(puzzle, None)),
        ("futoshiki", "medium", 5, lambda puzzle: latin_solutions(puzzle, None)),
        ("binary", "easy", 50, binary_solutions),
        ("nonogram", "easy", 50, nonogram_solutions),
        ("hitori", "easy", 50, hitori_solutions),
        ("bridges", "easy", 50, bridges_solutions),
        ("knights", "easy", 50, lambda puzzle: knights_solutions(puzzle_kind("knights").rules(puzzle))),
        ("knights", "hard", 50, lambda puzzle: knights_solutions(puzzle_kind("knights").rules(puzzle))),
    ],
)
def test_brute_force_finds_one_solution(
    name: str, level: str, seeds: int, count: Callable[[Puzzle], int]
) -> None:
    puzzles = puzzle_kind(name).generate_batch(range(seeds), level)
    assert [count(puzzle) for puzzle in puzzles] == [1] * seeds


def test_solution_count_of_ambiguous_puzzles_matches_brute_force() -> None:
    kind = puzzle_kind("sudoku")
    for seed in range(5):
        generated = kind.generate(seed, "easy")
        blanks = [cell for cell, value in enumerate(generated.given) if value][:3]
        given = tuple(0 if cell in blanks else value for cell, value in enumerate(generated.given))
        open_puzzle = Puzzle("sudoku", seed, "easy", 4, given, (), generated.solution)
        assert kind.count_solutions(open_puzzle, limit=300) == latin_solutions(open_puzzle, (2, 2))


@pytest.mark.parametrize("name", GENERATORS)
def test_compiled_generators_and_solvers_match_the_reference(name: str) -> None:
    kind = puzzle_kind(name)
    for level, seeds in zip(LEVELS, (6, 2, 1), strict=True):
        parameters = kind.parameters(level)
        records = [GENERATORS[name](seed, parameters) for seed in range(seeds)]
        expected = [kind._from_record(seed, level, record) for seed, record in enumerate(records)]
        assert kind.generate_batch(range(seeds), level) == expected
    if kind.has_unique_solution:
        for puzzle in kind.generate_batch(range(2), "medium"):
            encoded, parameters = kind._solver_input(puzzle), kind.parameters("medium")
            found = solve_puzzle(name, encoded, parameters, 2)
            assert found == SOLVERS[name](encoded, parameters, 2)
            assert len(found) == 1


def test_compiled_sokoban_solver_matches_the_reference() -> None:
    kind = puzzle_kind("sokoban")
    puzzle = kind.generate(3, "medium")
    state, moves = kind.initial_state(puzzle), kind.solve(puzzle, kind.initial_state(puzzle))
    assert moves
    state = kind.apply(puzzle, state, kind.parse_move(puzzle, state, moves[0]))
    assert kind.solve(puzzle, state) == moves[1:]
    encoded, parameters = bytes([*puzzle.given, puzzle.clues[2]]), kind.parameters("medium")
    assert solve_puzzle("sokoban", encoded, parameters, 10**5) == sokoban.solve_sokoban(
        encoded, parameters, 10**5
    )


def test_puzzles_are_generated_when_native_backends_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    before = puzzle_kind("sudoku").generate(1)
    monkeypatch.setenv("PHALANX_NATIVE", "0")
    assert puzzle_kind("sudoku").generate(1) == before


def test_missing_extension_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_load", lambda: "it is not installed")
    with pytest.raises(
        RuntimeError, match="puzzle generation needs the compiled extension: it is not installed"
    ):
        puzzle_kind("sudoku").generate(1)
    assert puzzle_kind("countdown").generate(1).clues


def test_recorded_puzzles_change_only_with_the_version() -> None:
    """`PYTHONPATH=src python tests/puzzles/test_kinds.py` records the digests again."""
    assert digests() == json.loads(RECORDED.read_text())


def digests() -> dict[str, str]:
    """Return digests of puzzles, prompts and answers by name and version of the kind."""
    found = {}
    for kind in puzzle_kinds():
        texts = []
        for level in LEVELS:
            for seed in range(5):
                environment = PuzzleEnvironment(kind, level)
                texts += [environment.reset(seed), *(environment.expert_actions() or ())]
        found[f"{kind.name}-v{kind.version}"] = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    return found


def test_lights_out_is_solved_with_the_fewest_presses() -> None:
    kind = puzzle_kind("lights_out")
    for seed in range(10):
        puzzle = kind.generate(seed, "easy")
        assert len(kind.solve(puzzle, puzzle.given) or ()) == fewest_presses(puzzle.given, 3)


def test_four_by_four_lights_out_is_solved_with_the_fewest_presses() -> None:
    kind = puzzle_kind("lights_out")
    puzzle = kind.generate(1, "medium")
    assert len(kind.solve(puzzle, puzzle.given) or ()) == fewest_presses(puzzle.given, 4)


def test_sokoban_is_solved_with_the_fewest_pushes() -> None:
    kind = puzzle_kind("sokoban")
    for level, seeds in (("easy", 20), ("medium", 4)):
        for seed in range(seeds):
            puzzle = kind.generate(seed, level)
            state, pushes = kind.initial_state(puzzle), 0
            for move in puzzle.solution:
                after = kind.apply(puzzle, state, move)
                state, pushes = after, pushes + (after.boxes != state.boxes)
            assert pushes == fewest_pushes(kind.draw_board(puzzle, kind.initial_state(puzzle)))
            settings = kind.difficulties[level]
            assert settings["min_pushes"] <= pushes <= settings["max_pushes"]


def test_box_in_a_corner_is_unsolvable() -> None:
    kind = puzzle_kind("sokoban")
    puzzle = kind.generate(0, "easy")
    #  # # # # # #
    #  # . - # - #
    #  # @ - - - #
    #  # - - $ - #
    state = kind.initial_state(puzzle)
    for move in ("right", "down", "right", "up", "right", "down"):
        state = kind.apply(puzzle, state, kind.parse_move(puzzle, state, move))
    assert kind.solve(puzzle, state) is None


@pytest.mark.parametrize("level", LEVELS)
def test_countdown_answer_evaluates_to_the_target(level: str) -> None:
    kind = puzzle_kind("countdown")
    for seed in range(30):
        puzzle = kind.generate(seed, level)
        assert eval(kind.solution_text(puzzle)) == puzzle.clues[0]


def test_countdown_is_solved_from_intermediate_states_and_lost_at_a_wrong_result() -> None:
    kind = puzzle_kind("countdown")
    puzzle = Puzzle("countdown", 0, "easy", 3, (9, 5, 1), (13,), (9, 0, 5, 14, 1, 1))
    assert kind.solve(puzzle, (5, 8)) == ["8 + 5"]
    assert kind.solve(puzzle, (5, 9)) is None
    assert kind.is_lost(puzzle, (14,)) and not kind.is_lost(puzzle, (13,))


def test_countdown_results_have_at_most_nine_digits() -> None:
    kind = puzzle_kind("countdown")
    puzzle = Puzzle("countdown", 0, "easy", 2, (999_999_999, 1), (10**9,), (999_999_999, 0, 1))
    assert kind.legal_moves(puzzle, puzzle.given) == [
        "999999999 - 1", "999999999 * 1", "999999999 / 1", "1 * 999999999",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="at most nine digits"):
        kind.parse_move(puzzle, puzzle.given, "999999999 + 1")


@pytest.mark.parametrize(
    ("expression", "is_valid"),
    [
        ("9 + 5 - 1", True),
        ("(9+5)-1", True),
        ("(09 +\n5) - 01", True),
        ("(9 - 1) + 5", True),
        ("9 + 5", False),
        ("9 + 5 - 1 * 1", False),
        ("13", False),
        ("((9 + 5 - 1", False),
        ("9 + 5 - 1)", False),
        ("1 - 9 + 21", False),
        ("__import__('os')", False),
        ("(" * 500, False),
        ("9 ** 5", False),
        ("", False),
    ],
)
def test_countdown_accepts_only_expressions(expression: str, is_valid: bool) -> None:
    puzzle = Puzzle("countdown", 0, "easy", 3, (9, 5, 1), (13,), (9, 0, 5, 14, 1, 1))
    assert puzzle_kind("countdown").verify(puzzle, expression) is is_valid


def test_verifier_rejects_wrong_boards_and_accepts_any_solution() -> None:
    kind = puzzle_kind("sudoku")
    open_puzzle = Puzzle("sudoku", 0, "easy", 4, (0,) * 16, (), ())
    assert kind.verify(open_puzzle, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1")
    assert kind.verify(open_puzzle, "2143\n4321\n1234\n3412")
    assert not kind.verify(open_puzzle, "1 2 3 4\n2 3 4 1\n3 4 1 2\n4 1 2 3")
    assert not kind.verify(open_puzzle, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 .")


def test_unknown_kinds_and_difficulties_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown puzzle kind 'sudko'; did you mean 'sudoku'"):
        puzzle_kind("sudko")
    with pytest.raises(
        ValueError, match="sudoku has no difficulty 'extreme'; choose from easy, medium, hard"
    ):
        puzzle_kind("sudoku").generate(0, "extreme")
    with pytest.raises(ValueError, match="seed must be an integer from 0"):
        puzzle_kind("sudoku").generate(-1)
    with pytest.raises(ValueError, match="may have several solutions"):
        puzzle_kind("sokoban").count_solutions(puzzle_kind("sokoban").generate(0))


def test_native_functions_reject_out_of_range_arguments() -> None:
    extension = native.native_module()
    assert extension is not None
    for kind, parameters in (
        ("sudoku", [9, 3, 4, 1]), ("sudoku", [25, 5, 5, 1]), ("binary", [5, 3]), ("nonogram", [16, 50]),
        ("futoshiki", [4, 99, 1]), ("sokoban", [9, 8, 1, 1, 1, 1, 1]), ("chess", [8]), ("hitori", [4]),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            extension.generate_puzzles(kind, [0], parameters)
    for kind, puzzle, parameters in (
        ("sudoku", b"\x09" * 16, [4, 2, 2, 1]), ("sudoku", b"\x00", [4, 2, 2, 1]),
        ("futoshiki", bytes(16) + b"\x00\x63", [4, 1, 1]), ("sokoban", bytes(65), [8, 8, 1, 1, 1, 1, 1]),
        ("bridges", b"\x01", [5, 5]), ("hitori", b"", [4, 4]), ("nonogram", b"", [4, 50]),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            extension.solve_puzzle(kind, puzzle, parameters, 2)


def test_random_numbers_match_the_splitmix64_reference() -> None:
    # The upper halves of the first outputs of the reference implementation for seed 1234567.
    rng = SplitMix64(1234567)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [rng.integers(1 << 32) for _ in expected] == [number >> 32 for number in expected]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(digests(), indent=2) + "\n")
