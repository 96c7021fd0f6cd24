"""Creating text environments by name."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.core.text_environment import JaxTextEnvironment, JaxTextVectorEnvironment
from phalanx.puzzles import PuzzleEnvironment, puzzle_kinds
from phalanx.text import (
    TextEnvSpec,
    TextVectorEnvironment,
    make_text_env,
    make_text_vector_env,
    parse_env_name,
    register_text,
    registry as text_registry,
    text_env_factory,
)

CUSTOM_MODULE = """
from phalanx.puzzles import PuzzleEnvironment

class CustomPuzzle(PuzzleEnvironment):
    def __init__(self, difficulty="easy"):
        super().__init__("sudoku", difficulty)
"""


def test_name_is_parsed_into_environments_and_settings() -> None:
    parts = parse_env_name("sudoku, sokoban:easy:multi,lights_out::multi,countdown-v1")
    assert [(part.name, part.settings) for part in parts] == [
        ("sudoku", {}),
        ("sokoban", {"difficulty": "easy", "turns": "multi"}),
        ("lights_out", {"turns": "multi"}),
        ("countdown-v1", {}),
    ]
    assert [part.name for part in parse_env_name("puzzles")] == [kind.name for kind in puzzle_kinds()]
    assert {part.settings["difficulty"] for part in parse_env_name("puzzles:hard")} == {"hard"}
    parts = parse_env_name("arc-v2,sudoku,phalanx.puzzles:PuzzleEnvironment,tests.helpers.corridor:SPEC")
    assert [None if part.spec is None else part.spec.id for part in parts] == [
        None,
        "puzzles-v1",
        "phalanx.puzzles:PuzzleEnvironment",
        None,
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sudko", "unknown text environment 'sudko'; did you mean 'sudoku'?"),
        ("sudoku:easy:multi:3", r"expected sudoku\[:DIFFICULTY\]\[:TURNS\], got 'sudoku:easy:multi:3'"),
        ("sudoku,sudoku", "names an environment twice"),
        ("sudoku,sudoku-v1", "names an environment twice"),
        ("puzzles,sudoku", "names an environment twice"),
        ("", "unknown text environment ''"),
        ("sudoku-v2", "unknown text environment 'sudoku-v2'; did you mean 'sudoku'?"),
        ("tests.helpers.corridor:MOVES", "is neither a text environment nor a JAX environment: expected"),
        ("tests.helpers.corridor:RightExpert", "is neither a text environment nor a JAX environment"),
        ("tests.helpers.corridor:Nothing", "tests.helpers.corridor has no Nothing"),
    ],
)
def test_invalid_name_raises_error(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_env_name(name)
    assert "\n" not in str(caught.value)


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


def test_jax_environment_with_text_is_created_by_path(tmp_path: Path) -> None:
    file = tmp_path / "corridors.py"
    file.write_text("from tests.helpers.corridor import SPEC, Corridor as Silent\n")
    env = make_text_env(f"{file}:SPEC", max_episode_steps=2, text={"max_consecutive_invalid_answers": 3})
    assert isinstance(env, JaxTextEnvironment)
    assert "You stand in cell" in env.reset(0) and env.expert_actions() == ["right"]
    assert not env.step("right").done and env.step("right").info.truncated
    batch = make_text_vector_env(f"{file}:SPEC")
    assert batch.tasks == (f"{file}:SPEC",) and batch.reset([0]) == [env.reset(0)]
    with pytest.raises(ValueError, match="Silent has no text for its states and actions: set EnvSpec"):
        make_text_env(f"{file}:Silent")
    with pytest.raises(
        TypeError, match="unexpected keyword argument 'max_steps'; did you mean 'max_episode_"
    ):
        make_text_env(f"{file}:SPEC", max_steps=2)


def test_registered_text_environment_is_created_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_registry, "_registered", dict(text_registry._registered))

    def make_small(difficulty: str = "easy", turns: str = "multi") -> PuzzleEnvironment:
        return PuzzleEnvironment("sudoku", difficulty, turns=turns)

    register_text(TextEnvSpec("small-v1", make_small, settings=("difficulty", "turns")))
    for name in ("small:medium:single", "small-v1:medium:single"):
        env = make_text_env(name)
        assert isinstance(env, PuzzleEnvironment)
        assert (env.difficulty, env.turns) == ("medium", "single")
    with pytest.raises(ValueError, match="unknown text environment 'smal'; did you mean 'small'"):
        make_text_env("smal")
    with pytest.raises(ValueError, match="an id consists of a name and a version, such as maze-v1, got 'sm"):
        register_text(TextEnvSpec("small", make_small))


@pytest.mark.parametrize(("value", "found"), [("SPEC", True), ("MOVES", False)])
def test_entry_point_of_another_package_is_a_spec(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, found: bool
) -> None:
    (tmp_path / "mazes_package.py").write_text(
        "from phalanx.text import TextEnvSpec\n"
        "MOVES = ('left', 'right')\n"
        "SPEC = TextEnvSpec('mazes-v1', 'phalanx.puzzles:PuzzleEnvironment', settings=('kind',))\n"
    )
    (tmp_path / "mazes_package-1.0.dist-info").mkdir()
    (tmp_path / "mazes_package-1.0.dist-info/METADATA").write_text("Name: mazes_package\nVersion: 1.0\n")
    (tmp_path / "mazes_package-1.0.dist-info/entry_points.txt").write_text(
        f"[phalanx.text_environments]\nmazes-v1 = mazes_package:{value}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(text_registry, "_registered", dict(text_registry._registered))
    text_registry._discover.cache_clear()
    try:
        if found:
            assert make_text_env("mazes:sudoku").reset(1) == PuzzleEnvironment("sudoku").reset(1)
        else:
            message = "entry point mazes_package:MOVES in phalanx.text_environments must be a TextEnvSpec"
            with pytest.raises(TypeError, match=message):
                make_text_env("mazes:sudoku")
    finally:
        monkeypatch.undo()
        text_registry._discover.cache_clear()


def test_invalid_environments_are_rejected() -> None:
    with pytest.raises(ValueError, match="names 2 environments; name one, or use make_text_vector_env"):
        make_text_env("sudoku,binary")
    with pytest.raises(ValueError, match="'puzzle_server-v1' is a text environment; use make_text_env"):
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
def test_argument_that_contradicts_the_name_raises_error(make_env: Callable[..., Any]) -> None:
    message = "the name of sudoku sets difficulty='easy', but the argument is difficulty='hard'"
    with pytest.raises(ValueError, match=message):
        make_env("sudoku:easy", difficulty="hard")
    with pytest.raises(ValueError, match="the name of sudoku sets turns='multi'"):
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
        "phalanx.text.names",
        "phalanx.text.registry",
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
