"""`phalanx puzzles`: the list of kinds, and a puzzle in words with its solution."""

import json

from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.errors import UserError
from phalanx.puzzles.kinds import KINDS

runner = CliRunner()


def test_the_list_names_every_kind_and_how_many_solutions_it_has() -> None:
    lines = runner.invoke(app, ["puzzles", "list"]).output.splitlines()
    assert lines[0].split() == ["KIND", "SOLUTIONS", "DESCRIPTION"]
    assert [line.split()[0] for line in lines[1:]] == list(KINDS)
    assert "sokoban     any" in "\n".join(lines)


def test_the_list_as_json_has_the_parameters() -> None:
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


def test_a_puzzle_is_shown_as_a_model_is_asked_and_with_its_solution() -> None:
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


def test_what_does_not_exist_is_said_in_words() -> None:
    for arguments, words in (
        (["sudko"], "did you mean 'sudoku'?"),
        (["sudoku", "--difficulty", "huge"], "sudoku has no difficulty 'huge'"),
    ):
        result = runner.invoke(app, ["puzzles", "show", *arguments])
        assert isinstance(result.exception, UserError) and words in str(result.exception)
