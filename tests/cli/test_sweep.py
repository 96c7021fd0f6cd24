"""`phalanx sweep`, as a user runs it: every trial trained, compared, and gone on with after a stop."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

DESCENT = Path(__file__).parents[1] / "helpers" / "descent.py"


def test_trials_are_trained_and_compared_and_a_second_time_only_compared(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    out = tmp_path / "sweep"
    command = ("sweep", f"custom {DESCENT}", "rate=0.9,0.5", "num_updates=3", "--out", out)
    ranked = ("--jobs", "2", "--metric", "distance", "--goal", "min")
    done = phalanx(*command, *ranked)
    assert done.code == 0, done.out + done.err
    lines = done.out.splitlines()
    assert sorted(line.partition(" ")[2] for line in lines[:2]) == [
        "trial_000: finished",
        "trial_001: finished",
    ]
    assert lines[2].split() == ["TRIAL", "DISTANCE", "rate"]
    assert [line.split()[0::2] for line in lines[3:5]] == [["trial_001", "0.5"], ["trial_000", "0.9"]]
    assert lines[5].startswith(f"2 of 2 trials finished; the best is {out}/trial_001; page ")
    assert "trial_001 and trial_000 compared" in (out / "report.html").read_text()
    again = phalanx(*command, "--metric", "distance", "--goal", "max")
    assert again.out.splitlines()[1].startswith("trial_000")
    other = phalanx("sweep", f"custom {DESCENT}", "rate=0.1", "--out", out)
    assert (other.code, "is another sweep" in other.err) == (2, True)
    unknown = phalanx(*command)
    assert unknown.code == 2
    assert "no evaluation has a known metric; --metric may be distance" in unknown.err


def test_a_trial_that_fails_costs_the_others_nothing_and_is_told(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    out = tmp_path / "sweep"
    (tmp_path / "base.yaml").write_text("num_updates: 2\n")
    options = ("--preset", tmp_path / "base.yaml", "--metric", "distance")
    done = phalanx("sweep", f"custom {DESCENT}", "rate=oops,0.5", "--out", out, *options)
    assert done.code == 1
    assert "trial_000: exit code 2: phalanx: rate must be a number" in done.out
    assert f"1 of 2 trials finished; the best is {out}/trial_001; page " in done.out
    assert "num_updates: 2" in (out / "trial_001" / "config.yaml").read_text()


def test_trials_are_drawn_by_chance(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    out = tmp_path / "sweep"
    options = ("--random", "1", "--seed", "4", "--metric", "distance")
    done = phalanx("sweep", f"custom {DESCENT}", "rate=uniform(0.2,0.4)", "--out", out, *options)
    assert done.code == 0, done.out
    settings = yaml.safe_load((out / "trial_000" / "config.yaml").read_text())
    assert 0.2 <= settings["rate"] <= 0.4


def test_a_stop_is_passed_on_and_the_sweep_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "sweep",
        f"custom {DESCENT}",
        "num_updates=100000",
        "--out",
        out,
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    metrics, began = out / "trial_000" / "batch_metrics.jsonl", time.monotonic()
    while not metrics.exists() and time.monotonic() < began + 120:
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 143
    assert "trial_000: exit code 143: Run " in said
    assert f"the same command goes on with {out}" in said
    assert "Interrupted after" in (out / "trial_000.log").read_text()
