"""Progress messages without a terminal."""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli import output as printing
from phalanx.cli.train_progress import _show_warnings

DESCENT = Path(__file__).parents[1] / "helpers" / "descent.py"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "PROGRESS_INTERVAL", 0.02)


@pytest.mark.usefixtures("soon")
def test_progress_shows_count_rate_and_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    with printing.progress("writing", "batches", 4) as advance:
        for _ in range(2):
            time.sleep(0.05)
            advance(1)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("writing: 1 of 4 batches, ")
    assert second.startswith("writing: 2 of 4 batches, ")
    assert second.endswith("/s, 0:00:00 left")
    with printing.progress("reading", "samples") as advance:
        time.sleep(0.05)
        advance(7)
    assert "reading: 7 samples, " in capsys.readouterr().err


def test_short_or_quiet_work_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with printing.progress("writing", "batches", 4) as advance, printing.show_activity("compiling"):
        advance(4)
    monkeypatch.setattr(printing, "PROGRESS_INTERVAL", 0.0)
    with printing.progress("writing", "batches", 4, quiet=True) as advance:
        advance(4)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("soon")
def test_activity_of_unknown_length_prints_elapsed_time(capsys: pytest.CaptureFixture[str]) -> None:
    with printing.show_activity("compiling"):
        time.sleep(0.1)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) >= 2
    assert set(printed) == {"compiling: 0:00:00"}


def test_first_and_last_update_are_printed(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    done = phalanx("train", DESCENT, "num_updates=5", "--out", tmp_path / "run")
    lines = [line for line in done.out.splitlines() if line.startswith("update ")]
    assert [line.split(":")[0] for line in lines] == ["update 1/5", "update 5/5"]
    assert "0k steps" in lines[0]
    assert re.search(r"/s reward mean \d\.\d{3} \(1 episode\)", lines[0])
    assert lines[1].endswith(", 0:00:00 left")


@pytest.mark.usefixtures("soon")
def test_long_training_prints_updates_in_between(
    tmp_path: Path, phalanx: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing.ProgressTimer, "is_due", lambda pace: True)
    done = phalanx("train", DESCENT, "num_updates=5", "--out", tmp_path / "run")
    assert sum(line.startswith("update ") for line in done.out.splitlines()) == 5


@pytest.mark.parametrize("propagate", [False, True])
def test_propagation_of_log_messages_is_restored(propagate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("phalanx")
    monkeypatch.setattr(logger, "propagate", propagate)
    with _show_warnings():
        assert not logger.propagate
    assert logger.propagate == propagate
