"""Creating text environments by name."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.puzzles import PuzzleEnvironment, puzzle_kinds
from phalanx.text import (
    JaxTextVectorEnvironment,
    TextVectorEnvironment,
    make_text_env,
    make_text_vector_env,
    parse_env_spec,
    text_env_factory,
)

CUSTOM_MODULE = """
from phalanx.puzzles import PuzzleEnvironment

class CustomPuzzle(PuzzleEnvironment):
    def __init__(self, difficulty="easy"):
        super().__init__("sudoku", difficulty)
"""


def test_spec_is_parsed_into_names_and_settings() -> None:
    parts = parse_env_spec("sudoku, sokoban:easy:multi,lights_out::multi,countdown-v1")
    assert [(part.name, dict(part.settings)) for part in parts] == [
        ("sudoku", {}),
        ("sokoban", {"difficulty": "easy", "turns": "multi"}),
        ("lights_out", {"turns": "multi"}),
        ("countdown-v1", {}),
    ]
    assert [part.name for part in parse_env_spec("puzzles")] == [kind.name for kind in puzzle_kinds()]
    assert {part.settings["difficulty"] for part in parse_env_spec("puzzles:hard")} == {"hard"}
    assert [part.interface for part in parse_env_spec("arc-v2,sudoku,a.b:C")] == ["jax", "text", "class"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sudko", "unknown text environment 'sudko'; did you mean 'sudoku'?"),
        ("sudoku:easy:multi:3", r"expected sudoku\[:DIFFICULTY\]\[:TURNS\], got 'sudoku:easy:multi:3'"),
        ("sudoku,sudoku", "names an environment twice"),
        ("puzzles,sudoku", "names an environment twice"),
        ("", "unknown text environment ''"),
    ],
)
def test_invalid_spec_raises_error(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_env_spec(spec)


def test_environments_are_created_by_name(tmp_path: Path) -> None:
    single = make_text_env("sudoku:hard:single", max_steps=3)
    assert isinstance(single, PuzzleEnvironment)
    assert (single.difficulty, single.turns, single.max_steps) == ("hard", "single", 3)
    assert phalanx.make_text_env("sudoku").reset(1) == PuzzleEnvironment("sudoku").reset(1)
    (tmp_path / "custom_puzzles.py").write_text(CUSTOM_MODULE)
    custom = make_text_env(f"{tmp_path}/custom_puzzles.py:CustomPuzzle", difficulty="medium")
    assert custom.reset(2) == PuzzleEnvironment("sudoku", "medium").reset(2)
    batch = make_text_vector_env("custom_puzzles:CustomPuzzle")
    assert type(batch) is TextVectorEnvironment and batch.reset([2]) == [PuzzleEnvironment("sudoku").reset(2)]
    proofs = make_text_vector_env("proofs-v1", max_actions=16, text={"max_consecutive_invalid_answers": 2})
    assert isinstance(proofs, JaxTextVectorEnvironment) and proofs.max_consecutive_invalid_answers == 2
    assert proofs.tasks == ("proofs-v1",)


def test_invalid_environments_are_rejected() -> None:
    with pytest.raises(ValueError, match="names 2 environments; name one, or use make_text_vector_env"):
        make_text_env("sudoku,binary")
    with pytest.raises(ValueError, match="is a text environment; use make_text_env"):
        phalanx.make("puzzle_server-v1")
    with pytest.raises(ValueError, match="cannot be combined"):
        make_text_vector_env("sudoku,puzzle_server:lights")
    with pytest.raises(ValueError, match="cannot be combined; name several kinds of puzzles"):
        make_text_vector_env("arc-v2,sudoku")
    with pytest.raises(ValueError, match="cannot import 'no_such_module:Env'"):
        make_text_env("no_such_module:Env")
    with pytest.raises(TypeError, match="a function takes no settings, got difficulty"):
        text_env_factory(lambda: PuzzleEnvironment("sudoku"), difficulty="hard")


@pytest.mark.parametrize("make_env", [make_text_env, text_env_factory, make_text_vector_env])
def test_unknown_setting_raises_error_with_suggestion(make_env: Callable[..., Any]) -> None:
    with pytest.raises(
        TypeError, match="'sudoku' got an unexpected keyword argument 'dificulty'; did you mean 'd"
    ):
        make_env("sudoku", dificulty="hard")


@pytest.mark.parametrize("make_env", [make_text_env, text_env_factory, make_text_vector_env])
def test_argument_that_contradicts_the_spec_raises_error(make_env: Callable[..., Any]) -> None:
    message = "the spec of sudoku sets difficulty='easy', but the argument is difficulty='hard'"
    with pytest.raises(ValueError, match=message):
        make_env("sudoku:easy", difficulty="hard")
    with pytest.raises(ValueError, match="the spec of sudoku sets turns='multi'"):
        make_env("sudoku::multi", difficulty="hard", turns="single")
    make_env("sudoku:hard", difficulty="hard", turns="single")


def test_suffix_applies_only_to_its_own_kind() -> None:
    assert make_text_vector_env("sudoku,countdown:easy:single").tasks == (
        "sudoku:easy:multi",
        "countdown:easy:single",
    )
    assert make_text_vector_env("sudoku,countdown:hard", turns="single").tasks == (
        "sudoku:easy:single",
        "countdown:hard:single",
    )


@pytest.mark.parametrize(
    "module",
    [
        "phalanx.text",
        "phalanx.text.wrapper",
        "phalanx.text.env_spec",
        "phalanx.puzzles",
        "phalanx.puzzles.kinds",
        "phalanx.puzzles.server_client",
        "phalanx.puzzles.server_client.env",
        "phalanx.integrations.trl",
        "phalanx.integrations.skyrl",
        "phalanx.integrations.verifiers",
        "phalanx.integrations.openenv",
    ],
)
def test_module_is_imported_without_jax(module: str) -> None:
    code = (
        "import sys\n"
        f"try:\n    __import__({module!r})\n"
        "except ModuleNotFoundError:\n    pass  # the library of the integration is not installed\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
