"""Worlds of faults: what was acknowledged is not lost, nothing comes twice, nothing torn is read."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as `python -m tests.simulate` is started

from tests.simulate import World, play

WORLDS = int(os.environ.get("PHALANX_WORLDS", "300"))


def test_every_promise_holds_in_every_world() -> None:
    played = {play(seed) for seed in range(WORLDS)}
    assert len(played) == 6


def test_a_seed_replays_its_world(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        play(11, aloud=True)
        told.append(capsys.readouterr().out.count("\n"))
    assert told[0] == told[1] > 0


def test_a_writer_that_does_not_sync_is_caught(tmp_path: Path) -> None:
    """The worlds can tell: bytes that were never synced, renamed at once, are torn in some of them."""
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
