"""Invariants hold in simulated worlds of faults, and the simulator detects violations."""

import asyncio
import contextlib
import math
import os
from pathlib import Path

import pytest

from phalanx.puzzles.server_client import collect
from phalanx.puzzles.server_client.client import PuzzleClient, _Puzzle
from tests.faults import network
from tests.faults.scenarios import SCENARIOS
from tests.faults.simulator import World, play
from tests.helpers.scripted_puzzle_server import ScriptedServer

pytestmark = pytest.mark.slow

WORLDS = int(os.environ.get("PHALANX_WORLDS", "300"))


def test_invariants_hold_in_every_simulated_world() -> None:
    played = {play(seed) for seed in range(WORLDS)}
    assert played == set(SCENARIOS)


def test_simulation_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        names = {play(seed, aloud=True) for seed in range(20)}
        told.append(capsys.readouterr().out)
    assert len(names) > 5
    assert told[0] == told[1] and "kill at call" in told[0] and "the clock jumps" in told[0]


def test_missing_sync_is_detected(tmp_path: Path) -> None:
    """Bytes that were never synced are lost in some worlds."""
    torn = 0
    for seed in range(80):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(seed, folder)
        with world.process(), contextlib.suppress(OSError):
            for _ in range(40):
                (folder / "new").write_bytes(b"whole" * 100)
                (folder / "new").replace(folder / "state")
        found = (folder / "state").read_bytes() if (folder / "state").exists() else b""
        torn += found not in (b"", b"whole" * 100)
    assert torn > 0


def caught(name: str, folder: Path) -> str:
    """Return the error of the first world in which a scenario violates its invariant."""
    for seed in range(40):
        (folder / str(seed)).mkdir()
        try:
            SCENARIOS[name](World(seed, folder / str(seed)))
        except (AssertionError, ConnectionError, ValueError) as error:
            return str(error)
    return "nothing was noticed"


def test_client_that_loses_moves_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgetful(self: PuzzleClient, puzzle: _Puzzle) -> None:
        await self._start(puzzle.game, puzzle.start)

    monkeypatch.setattr(PuzzleClient, "_restore", forgetful)
    assert "is answered otherwise" in caught("one_client", tmp_path)


def test_client_that_waits_too_long_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PuzzleClient, "_seconds_left", math.inf)
    assert "a request took" in caught("one_client", tmp_path)


def test_collection_that_repeats_episodes_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(out: Path, last: object, made: object) -> None:
        out.write_bytes(out.read_bytes() + b"{}\n")

    monkeypatch.setattr(collect, "_check_same_episode", append)
    noticed = caught("collecting", tmp_path)
    assert "other samples than of a calm run" in noticed or "not a sample" in noticed


def test_time_passes_only_while_all_tasks_wait(tmp_path: Path) -> None:
    async def sleep(loop: network.SimulatedLoop) -> float:
        began = loop.time()
        await asyncio.sleep(86_400)
        return loop.time() - began

    async def wait(loop: network.SimulatedLoop) -> None:
        await loop.create_future()

    serve = ScriptedServer().serve
    assert network.run(World(0, tmp_path), serve, sleep, faults=0) == pytest.approx(86_400)
    with pytest.raises(network.Deadlock):
        network.run(World(0, tmp_path), serve, wait, faults=0)
