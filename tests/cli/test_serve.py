"""`phalanx serve`: settings and error messages."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.errors import UserError
from phalanx.cli.serve import _factory
from phalanx.core.text_environment import JaxTextEnvironment
from phalanx.puzzles import PuzzleEnvironment


def test_puzzle_settings_are_parsed_from_the_command_line() -> None:
    made = _factory("sudoku", ["difficulty=hard", "turns=single", "max_steps=3"])()
    assert isinstance(made, PuzzleEnvironment)
    assert (made.difficulty, made.turns, made.max_steps) == ("hard", "single", 3)


def test_environment_settings_are_a_preset_and_overrides() -> None:
    made = _factory("arc-v2", ["config=mini", "episode.max_episode_steps=7"])()
    assert isinstance(made, JaxTextEnvironment)
    assert "Step 0 of at most 7." in made.reset(1)


def test_environments_are_served_by_path(tmp_path: Path) -> None:
    file = tmp_path / "served.py"
    file.write_text(
        "from phalanx.puzzles import PuzzleEnvironment\nfrom tests.helpers.corridor import SPEC\n\n"
        "def easy_sudoku():\n    return PuzzleEnvironment('sudoku')\n"
    )
    made = _factory(f"{file}:SPEC", ["max_episode_steps=2"])()
    assert isinstance(made, JaxTextEnvironment) and "You stand in cell" in made.reset(0)
    assert [made.step("right").done for _ in range(2)] == [False, True]
    assert isinstance(_factory(f"{file}:easy_sudoku", [])(), PuzzleEnvironment)


def test_puzzle_server_game_includes_its_address() -> None:
    made = _factory("puzzle_server:sudoku", ["host=127.0.0.1", "port=1", "difficulty=hard"])()
    made.close()
    with pytest.raises(ValueError, match="hrad"):
        _factory("puzzle_server:sudoku", ["difficulty=hrad"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sudko"], "unknown text environment 'sudko'; did you mean 'sudoku'?"),
        (
            ["sudoku", "hard"],
            "an override has the form key.sub=value",
        ),
        (
            ["sudoku", "dificulty=hard"],
            "'sudoku' got an unexpected keyword argument 'dificulty'; did you mean 'diff",
        ),
        (["sudoku:easy", "difficulty=hard"], "the name of sudoku sets difficulty='easy'"),
        (["sudoku,countdown"], "'sudoku,countdown' names 2 environments; name one"),
        (["arc-v9"], "this release has version 2 of 'arc'"),
        (["tests.helpers.corridor:SPEC", "max_step=3"], "did you mean 'max_episode_steps'"),
        (["tests.helpers.corridor:SPEC", "max_episode_steps=x"], "max_episode_steps must be an integer"),
        (["tests.helpers.corridor:SPEC", "config=mini"], "has no config; pass its settings as"),
        (["tests.helpers.corridor:Corridor"], "has no text for its states and actions"),
        (["sudoku", "--idle-timeout", "0"], "idle_timeout must be positive"),
    ],
)
def test_invalid_arguments_are_reported(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments]).exception
    assert isinstance(result, UserError) and message in str(result)


def test_used_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", "sudoku", "--port", port]).exception
    assert isinstance(result, UserError) and f"cannot listen on 127.0.0.1:{port}" in str(result)
