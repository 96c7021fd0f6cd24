"""`phalanx sweep` on the command line."""

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


def test_finished_sweep_is_only_ranked_again(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    out = tmp_path / "sweep"
    command = ("sweep", DESCENT, "rate=0.9,0.5", "num_updates=3", "--out", out)
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
    assert lines[5].startswith(f"2 of 2 trials finished; best {out}/trial_001; report ")
    assert "trial_001 and trial_000 compared" in (out / "report.html").read_text()
    again = phalanx(*command, "--metric", "distance", "--goal", "max")
    assert again.out.splitlines()[1].startswith("trial_000")
    other = phalanx("sweep", DESCENT, "rate=0.1", "--out", out)
    assert (other.code, "is another sweep" in other.err) == (2, True)
    unknown = phalanx(*command)
    assert unknown.code == 2
    assert "choose one with --metric: distance" in unknown.err


def test_a_failed_trial_is_reported_and_does_not_stop_the_others(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    out = tmp_path / "sweep"
    (tmp_path / "base.yaml").write_text("num_updates: 2\n")
    options = ("--config", tmp_path / "base.yaml", "--metric", "distance")
    done = phalanx("sweep", DESCENT, "checkpoint.best_metric=oops,distance", "--out", out, *options)
    assert done.code == 1
    assert "trial_000: exit code 2: phalanx: checkpoint.best_metric is 'oops'" in done.out
    assert f"1 of 2 trials finished; best {out}/trial_001; report " in done.out
    assert "num_updates: 2" in (out / "trial_001" / "config.yaml").read_text()


def test_an_invalid_setting_is_rejected_before_the_first_trial(
    tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    done = phalanx("sweep", DESCENT, "rate=0.5,oops", "--out", tmp_path / "sweep")
    assert (done.code, "rate must be a number, got 'oops'" in done.err) == (2, True)
    assert not (tmp_path / "sweep").exists()


def test_a_signal_saves_and_stops_random_trials_in_their_range(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "sweep",
        DESCENT,
        "rate=uniform(0.2,0.4)",
        "num_updates=100000",
        "--out",
        out,
        *("--sampler", "random", "--trials", "1", "--seed", "4", "--metric", "distance"),
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    metrics, began = out / "trial_000" / "batch_metrics.jsonl", time.monotonic()
    while not metrics.exists() and time.monotonic() < began + 120:
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 143
    assert "trial_000: exit code 143: Run " in output
    assert f"the same command continues the sweep in {out}" in output
    assert "Interrupted after" in (out / "trial_000.log").read_text()
    settings = yaml.safe_load((out / "trial_000" / "config.yaml").read_text())
    assert 0.2 <= settings["rate"] <= 0.4
