"""The compilation cache: shared by commands, consistent after a kill, and limited in size."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx import compilation_cache as cache
from tests.helpers.cli import phalanx as phalanx

ROOT = Path(__file__).parents[1]
DESCENT = Path(__file__).parent / "helpers" / "descent.py"
KILLED = """
import os, signal
from phalanx import compilation_cache as cache
cache.enable_compilation_cache()
open(os.path.join(os.environ["JAX_COMPILATION_CACHE_DIR"], "half-cache"), "w").write("ha")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Path, Callable[[], None]]]:
    """Start a command. Returns the folder that JAX would write to and the function to call at exit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def begin() -> tuple[Path, Callable[[], None]]:
        monkeypatch.delenv(cache.JAX_CACHE_VARIABLE, raising=False)
        ends: list[Callable[[], None]] = []
        monkeypatch.setattr(
            "atexit.register", lambda function, *arguments: ends.append(lambda: function(*arguments))
        )
        cache.enable_compilation_cache()
        return Path(os.environ[cache.JAX_CACHE_VARIABLE]), ends[0]

    return begin


def kept(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.glob("*-cache")}


def test_next_command_reuses_compiled_programs(command) -> None:
    first, end = command()
    (first / "a-cache").write_text("A")
    assert kept(cache.cache_dir()) == {}
    end()
    assert kept(cache.cache_dir()) == {"a-cache": "A"}
    second, end = command()
    assert kept(second) == {"a-cache": "A"}
    end()
    assert [path.name for path in cache.cache_dir().iterdir()] == ["a-cache"]


def test_concurrent_commands_share_entries_only_after_they_end(command) -> None:
    (first, end_first), (second, end_second) = command(), command()
    (first / "a-cache").write_text("A")
    (second / "a-cache").write_text("A")
    (second / "b-cache").write_text("B")
    assert kept(first) == {"a-cache": "A"}
    end_second()
    end_first()
    assert kept(cache.cache_dir()) == {"a-cache": "A", "b-cache": "B"}


def test_incomplete_entry_of_a_killed_command_is_not_used(command, tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if name != cache.JAX_CACHE_VARIABLE}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=plain, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = list(cache.cache_dir().glob("stage-*/half-cache"))
    assert len(left) == 1
    stage, end = command()
    assert kept(stage) == {}
    assert not left[0].exists()
    end()


def test_oldest_entries_are_removed_first(tmp_path: Path) -> None:
    for age, name in enumerate(("old", "middle", "new")):
        (tmp_path / f"{name}-cache").write_text("x" * 10)
        os.utime(tmp_path / f"{name}-cache", (1000 + age, 1000 + age))
    cache.remove_oldest(tmp_path, 20)
    assert set(kept(tmp_path)) == {"middle-cache", "new-cache"}


def test_cache_can_be_disabled_and_respects_the_folder_of_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cache.JAX_CACHE_VARIABLE, "/elsewhere")
    assert cache.disabled_reason() == "JAX_COMPILATION_CACHE_DIR is /elsewhere"
    cache.enable_compilation_cache()
    monkeypatch.delenv(cache.JAX_CACHE_VARIABLE)
    monkeypatch.setenv(cache.DISABLE_VARIABLE, "off")
    cache.enable_compilation_cache()
    assert cache.disabled_reason() == "PHALANX_COMPILATION_CACHE is off"
    assert cache.JAX_CACHE_VARIABLE not in os.environ
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_only_disables_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv(cache.JAX_CACHE_VARIABLE, raising=False)
    cache.enable_compilation_cache()
    assert cache.JAX_CACHE_VARIABLE not in os.environ


def test_info_shows_size_and_location_of_the_cache(
    phalanx: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(cache.JAX_CACHE_VARIABLE, raising=False)
    cache.cache_dir().mkdir(parents=True)
    (cache.cache_dir() / "a-cache").write_text("x" * 250_000)
    assert f"cache    0.2 of 1,000 MB in {cache.cache_dir()}" in phalanx("info").out
    monkeypatch.setenv(cache.DISABLE_VARIABLE, "off")
    assert "cache    disabled: PHALANX_COMPILATION_CACHE is off" in phalanx("info").out


TRAIN_IN_PYTHON = """
import sys
import jax
jax.jit(lambda: 0)()  # Programs that are compiled before the training are not cached.
from phalanx.training import train
from tests.helpers.descent import Descent, DescentConfig
train(Descent(DescentConfig()), sys.argv[2])
"""
COMMANDS = {
    "command": ["-m", "phalanx", "train", DESCENT, "--out"],
    "Python": ["-c", TRAIN_IN_PYTHON, "--out"],
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_second_training_compiles_nothing(tmp_path: Path, arguments: list[Any]) -> None:
    # Everything is kept, however quickly it was compiled: the clock decides nothing here.
    plain = {name: value for name, value in os.environ.items() if name != cache.JAX_CACHE_VARIABLE}
    plain |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    names = []
    for run in ("first", "second"):
        done = subprocess.run(
            [sys.executable, *arguments, tmp_path / run],
            cwd=ROOT,
            env=plain | {"XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        names.append(sorted(path.name for path in (tmp_path / "phalanx").rglob("*-cache")))
    assert names[0] == names[1] != []
    assert list((tmp_path / "phalanx").rglob("stage-*")) == []
