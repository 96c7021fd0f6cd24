"""`phalanx puzzles collect` and `phalanx puzzles play`, with a real server."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.puzzle_server import MISSING, RealServer, installed_server

pytestmark = pytest.mark.slow

COLLECT = (
    *("puzzles", "collect", "--games", "lights,binary", "--episodes", "8", "--connections", "3"),
    *("--host", "127.0.0.1"),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    package = installed_server()
    if package is None:
        pytest.skip(MISSING)
    server = RealServer(package)
    server.start()
    yield server.port
    server.kill()


@pytest.fixture(scope="module")
def collected(port: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an undisturbed run."""
    from typer.testing import CliRunner

    from phalanx.cli import app as cli

    out = tmp_path_factory.mktemp("arcade") / "samples.jsonl"
    result = CliRunner().invoke(cli.app, [*COLLECT, "--port", str(port), "--out", str(out)])
    assert result.exit_code == 0, result.output or result.exception
    assert f"{out}: 8 episodes (0 existing)" in result.output.replace("\n", "")
    assert "8 of 8 puzzles solved" in result.output.replace("\n", " ")
    return out


def samples(path: Path) -> list[dict[str, Any]]:
    """Without their times, which differ from run to run."""
    read = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in sample.items() if name != "timestamp"} for sample in read]


def test_collection_contains_all_moves_in_order(collected: Path) -> None:
    found = samples(collected)
    indices = [int(sample["episode_id"].rpartition("_")[2]) for sample in found]
    assert indices == sorted(indices) and set(indices) == set(range(8))
    assert [sample["episode_id"].split("_")[0] for sample in found if sample["step_index"] == 0] == [
        "lights",
        "binary",
    ] * 4
    last = {sample["episode_id"]: sample for sample in found}
    assert all(sample["step_index"] == sample["total_steps"] - 1 for sample in last.values())


@pytest.mark.parametrize(
    "where", ["in a line", "between the moves of an episode", "between episodes", "nothing"]
)
def test_killed_collection_resumes_to_the_same_samples(
    where: str, collected: Path, port: int, tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    lines = collected.read_bytes().splitlines(keepends=True)
    begins = [place for place, sample in enumerate(samples(collected)) if sample["step_index"] == 0]
    whole = {"nothing": 0, "between episodes": begins[3], "between the moves of an episode": begins[3] + 2}
    kept = b"".join(lines[: whole.get(where, begins[3] + 2)])
    out = tmp_path / "killed.jsonl"
    out.write_bytes(kept + (lines[begins[3] + 2][:100] if where == "in a line" else b""))
    result = phalanx(*COLLECT, "--port", port, "--out", out, "--resume", "--json")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert (summary["existing"], summary["new_episodes"]) == ((0, 8) if where == "nothing" else (3, 5))
    assert samples(out) == samples(collected)


def test_finished_collection_is_not_changed(
    collected: Path, phalanx: Callable[..., Any], tmp_path: Path
) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(collected.read_bytes())
    # Nothing listens at this port, and nothing has to.
    result = phalanx(*COLLECT, "--port", 1, "--out", copy, "--resume")
    assert result.code == 0, result.err
    assert copy.read_bytes() == collected.read_bytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--seed", "5"), "which these games, difficulties and seed do not give"),
        (("--games", "lights"), "which these games, difficulties and seed do not give"),
        (("--max-steps", "2"), "now gives other samples; the tokenizer, --max-steps or the server differ"),
    ],
)
def test_collection_does_not_resume_with_other_settings(
    changed: tuple[str, ...],
    message: str,
    collected: Path,
    port: int,
    tmp_path: Path,
    phalanx: Callable[..., Any],
) -> None:
    out = tmp_path / "samples.jsonl"
    out.write_bytes(collected.read_bytes())
    result = phalanx(*COLLECT, "--port", port, "--out", out, "--resume", "--episodes", 9, *changed)
    assert result.code == 2 and message in " ".join(result.err.split())
    assert out.read_bytes() == collected.read_bytes()


def test_existing_file_is_overwritten_only_with_the_flag(
    collected: Path, phalanx: Callable[..., Any]
) -> None:
    result = phalanx(*COLLECT, "--out", collected)
    assert result.code == 2 and "exists; continue it with --resume" in result.err


def test_ctrl_c_leaves_complete_episodes_and_prints_how_to_resume(port: int, tmp_path: Path) -> None:
    out = tmp_path / "samples.jsonl"
    command = [sys.executable, "-m", "phalanx", *COLLECT, "--port", str(port), "--out", str(out)]
    running = subprocess.Popen([*command, "--episodes", "100000"], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if out.exists() and out.stat().st_size:
                break
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=120)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, err
    assert "with --resume to continue" in err and "Traceback" not in err
    found = samples(out)
    assert found[-1]["step_index"] == found[-1]["total_steps"] - 1


def test_game_is_shown_until_it_ends(port: int, phalanx: Callable[..., Any]) -> None:
    result = phalanx(
        "puzzles", "play", "lights", "--seed", 42, "--pause", 0, "--host", "127.0.0.1", "--port", port
    )
    assert result.code == 0, result.err
    assert "Lights Out, easy, seed 42" in result.out
    assert "solved in 3 moves by 3 hints" in result.out


def test_logic_grid_is_shown_until_the_server_rejects_a_move(port: int, phalanx: Callable[..., Any]) -> None:
    result = phalanx("puzzles", "play", "logic", "--pause", 0, "--host", "127.0.0.1", "--port", port)
    assert result.code == 1
    assert "refuses every move of Logic Grid" in " ".join(result.out.split())


@pytest.mark.parametrize(
    "command",
    [("puzzles", "play", "sudko"), ("puzzles", "collect", "--games", "sudko", "--out", "x.jsonl")],
)
def test_unknown_game_gets_a_suggestion(
    command: tuple[str, ...],
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phalanx: Callable[..., Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    result = phalanx(*command, "--host", "127.0.0.1", "--port", port)
    assert result.code == 2 and "Traceback" not in result.err
    assert "did you mean 'sudoku'?" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--games", "sudoku,,binary"), "'' is not a valid name of a game"),
        (("--difficulty", "insane"), "difficulties[0] must be 'easy', 'medium' or 'hard', got 'insane'"),
        (("--games", "sud$ku"), "did you mean 'sudoku'?"),
        (("--out", "nowhere/samples.jsonl"), "the folder nowhere does not exist"),
    ],
)
def test_invalid_settings_are_rejected_before_the_first_episode(
    options: tuple[str, ...], message: str, tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    result = phalanx("puzzles", "collect", "--out", tmp_path / "x.jsonl", *options)
    assert result.code == 2 and message in result.err
    assert list(tmp_path.iterdir()) == []


def test_unreachable_server_is_reported(phalanx: Callable[..., Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = phalanx("puzzles", "play", "sudoku", "--host", "127.0.0.1", "--port", free.getsockname()[1])
    assert result.code == 2 and "is the puzzle server running?" in result.err
