"""Compact prompts and answers, and legal moves."""

import pytest

from phalanx.puzzles import PuzzleEnvironment
from phalanx.puzzles.kinds import KINDS, puzzle_kind


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
@pytest.mark.parametrize("kind", KINDS)
def test_legal_moves_are_accepted_and_include_expert_actions(kind: str, difficulty: str) -> None:
    environment = PuzzleEnvironment(kind, difficulty, prompt_format="compact")
    prompt = environment.reset(5)
    assert len(prompt) < 250
    legal = environment.legal_actions()
    assert legal is not None
    assert len(set(legal)) == len(legal)
    for move in legal[:: max(1, len(legal) // 12)]:
        environment.reset(5)
        assert not environment.step(move).info.error
    environment.reset(5)
    for answer in environment.expert_actions() or []:
        assert answer in (environment.legal_actions() or [])
        step = environment.step(answer)
    assert step.info.solved
    assert environment.legal_actions() == []


@pytest.mark.parametrize("kind", KINDS)
def test_compact_prompts_distinguish_puzzles_and_states(kind: str) -> None:
    environment = PuzzleEnvironment(kind, "medium", prompt_format="compact")
    prompts = {environment.reset(seed) for seed in range(40)}
    assert len(prompts) == 40
    single = PuzzleEnvironment(kind, "medium", turns="single", prompt_format="compact")
    assert single.reset(3).startswith(kind[:2])
    assert single.legal_actions() is None
    [answer] = single.expert_actions() or []
    assert single.step(answer).info.solved


def test_compact_boards_and_answers_have_the_same_width() -> None:
    for kind in ("binary", "bridges", "futoshiki", "hitori", "sudoku"):
        environment = PuzzleEnvironment(kind, turns="single", prompt_format="compact")
        rows = environment.reset(4).split("\n")[1:-1]
        [answer] = environment.expert_actions() or []
        assert {len(row) for row in rows} == {len(row) for row in answer.split("\n")}


def test_hitori_shows_shaded_numbers_as_letters() -> None:
    environment = PuzzleEnvironment("hitori", prompt_format="compact")
    before = environment.reset(1).split("\n")[1]
    after = environment.step("1 2 #") and environment.prompt.split("\n")[1]
    assert after == before[0] + "abcd"[int(before[1]) - 1] + before[2:]


def test_bridges_are_parsed_from_a_board_or_from_moves() -> None:
    kind = puzzle_kind("bridges")
    for puzzle in kind.generate_batch(range(30), "medium"):
        board = kind.compact_solution(puzzle)
        assert (
            kind.parse_answer(puzzle, board)
            == kind.parse_answer(puzzle, kind.solution_text(puzzle))
            == puzzle.solution
        )
        assert kind.verify(puzzle, kind.draw_board(puzzle, puzzle.solution))
    puzzle = kind.generate(1, "easy")
    assert kind.compact_board(puzzle, kind.initial_state(puzzle)).split("\n") == [
        "2....",
        ".....",
        "3...3",
        ".....",
        "1...3",
    ]
    assert kind.verify(puzzle, "2....\nH....\n3---3\n....H\n1---3")
    for board, message in (
        ("2....\nH....\n3--.3\n....H\n1---3", "no bridges from island to island"),
        ("2-...\nH....\n3---3\n....H\n1---3", "no bridges from island to island"),
        ("2....\nH....\n3---2\n....H\n1---3", "is the island 3, got '2'"),
        ("2....\nH....\n3---3\n....H", "5 lines of 5 symbols"),
    ):
        with pytest.raises(ValueError, match=message):
            kind.parse_answer(puzzle, board)


def test_sokoban_answers_are_words_letters_or_letters_with_cells() -> None:
    kind = puzzle_kind("sokoban")
    puzzle = kind.generate(3, "easy")
    words = kind.solution_text(puzzle)
    letters = "".join(word[0] for word in words.split())
    formats = (words, letters, " ".join(letters), kind.compact_solution(puzzle), letters.upper())
    assert len({kind.parse_answer(puzzle, answer) for answer in formats}) == 1
    assert kind.compact_solution(puzzle)[0] == letters[0]
    wrong = kind.compact_solution(puzzle)[:1] + "11" + kind.compact_solution(puzzle)[3:]
    with pytest.raises(ValueError, match=r"move 1: \w leads to \d\d, not to 11"):
        kind.parse_answer(puzzle, wrong)
    for invalid in ("", "uq", "12", "urx"):
        with pytest.raises(ValueError, match="a move is up, down, left or right"):
            kind.parse_answer(puzzle, invalid)


def test_compact_knights_use_first_letters() -> None:
    environment = PuzzleEnvironment("knights", prompt_format="compact")
    prompt = environment.reset(2)
    first = prompt.split("\n")[4]
    assert first[1] == "?"
    assert not environment.step(f"{first[0]}+").info.error
    assert environment.prompt.split("\n")[4] == f"{first[0]}+"
    assert "nobody is called" in environment.step("Z-").info.error


@pytest.mark.parametrize("difficulty", ["easy", "medium"])
def test_light_chasing_solves_within_max_steps(difficulty: str) -> None:
    environment = PuzzleEnvironment("lights_out", difficulty, prompt_format="compact")
    for seed in range(150):
        environment.reset(seed)
        answers = environment.expert_actions() or []
        assert answers
        for answer in answers:
            step = environment.step(answer)
        assert step.info.solved


def test_lights_out_expert_starts_below_the_first_light() -> None:
    kind = puzzle_kind("lights_out")
    puzzle = kind.generate(0, "easy")
    assert (kind.solve_as_expert(puzzle, (0, 1, 0, 1, 0, 0, 0, 0, 0)) or [])[0] == "2 2"
    # Only the last row is lit, so the solution must start with presses in the first row.
    assert (kind.solve_as_expert(puzzle, (0, 0, 0, 0, 0, 0, 1, 1, 0)) or [])[0] == "1 3"
