"""`phalanx puzzles list` and `phalanx puzzles show`."""

import json

from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.errors import UserError
from phalanx.puzzles.kinds import KINDS

runner = CliRunner()


def test_list_shows_all_kinds_and_their_numbers_of_solutions() -> None:
    lines = runner.invoke(app, ["puzzles", "list"]).output.splitlines()
    assert lines[0].split() == ["KIND", "SOLUTIONS", "DESCRIPTION"]
    assert [line.split()[0] for line in lines[1:]] == list(KINDS)
    assert "sokoban     any" in "\n".join(lines)


def test_json_list_contains_the_parameters() -> None:
    kinds = {
        each["kind"]: each for each in json.loads(runner.invoke(app, ["puzzles", "list", "--json"]).output)
    }
    assert list(kinds) == list(KINDS)
    assert kinds["sudoku"]["difficulties"]["hard"] == {
        "size": 9,
        "box_rows": 3,
        "box_columns": 3,
        "blanks": 50,
    }
    assert kinds["sudoku"]["has_unique_solution"] and kinds["sudoku"]["version"] == 1


def test_puzzle_is_shown_as_prompt_with_its_solution() -> None:
    shown = runner.invoke(app, ["puzzles", "show", "countdown", "--seed", "0"]).output
    assert "Numbers: 9, 5, 1\nTarget: 13\n" in shown and "Solution" not in shown
    solved = runner.invoke(
        app,
        [
            "puzzles",
            "show",
            "sudoku",
            "--seed",
            "3",
            "--difficulty",
            "hard",
            "--turns",
            "single",
            "--solution",
        ],
    ).output
    answer = solved.partition("Solution:\n")[2].splitlines()
    assert len(answer) == 9 and all(sorted(line.split()) == list("123456789") for line in answer)


def test_unknown_names_are_reported() -> None:
    for arguments, message in (
        (["sudko"], "did you mean 'sudoku'?"),
        (["sudoku", "--difficulty", "huge"], "sudoku has no difficulty 'huge'"),
    ):
        result = runner.invoke(app, ["puzzles", "show", *arguments])
        assert isinstance(result.exception, UserError) and message in str(result.exception)
