"""`phalanx bench train`: its ways of printing, what it refuses, and the hand-over to the comparison."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx as package
from phalanx.agents import benchmark
from phalanx.arc.benchmark import conditions

SHARED = {"grid": "4x4", "network": "planes, width 12, depth 3", "num_parameters": 12_345}
TRAINING = {
    "figure": "training",
    "environments": 1024,
    "steps_per_second_median": 5_432,
    "steps_per_second_worst": 5_000,
    "environment_share": 0.0123,
    "policy_share": 0.2,
    "update_share": 0.7877,
    "passed": True,
}
LOGGING = {
    "figure": "logging",
    "environments": 10_000,
    "overhead": 0.031,
    "logger_share": 0.0012,
    "update_seconds_off": 1.5,
    "passed": False,
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[benchmark.TrainingBenchmark]:
    """Figures without a training; what was asked for is kept."""
    asked: list[benchmark.TrainingBenchmark] = []

    def run(self: benchmark.TrainingBenchmark) -> Iterator[dict[str, Any]]:
        asked.append(self)
        for record in (TRAINING, LOGGING):
            yield {**record, **SHARED, **conditions()}

    monkeypatch.setattr(benchmark.TrainingBenchmark, "run", run)
    monkeypatch.setenv("COLUMNS", "160")
    return asked


def test_the_figures_are_those_of_the_demo_at_a_thousand_and_ten_thousand_environments(phalanx, measured):
    result = phalanx("bench", "train", "--json")
    assert (result.code, result.err) == (0, "")
    assert [json.loads(line)["figure"] for line in result.out.splitlines()] == ["training", "logging"]
    (asked,) = measured
    assert asked == benchmark.TrainingBenchmark()
    config = asked.config(asked.num_envs)
    assert (config.network.kind, config.arc.grid_shape) == ("planes", (4, 4))
    assert (config.logging.log_frequency, config.logging.sample_frequency) == (10, 50)


def test_without_json_a_table_shows_the_figures_and_whether_they_reach_their_targets(phalanx, measured):
    result = phalanx("bench", "train")
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in result.out.splitlines() if "│" in line
    ]
    assert rows == [
        [
            "training",
            "1,024",
            "5,432 steps/s (worst 5,000); environment 1.23%, policy 20.0%, update 78.8%",
            "pass",
        ],
        ["logging", "10,000", "+3.10% (1.500 s an update without); in the logger itself 0.120%", "FAIL"],
    ]
    assert "4x4 canvas, planes, width 12, depth 3, 12,345 parameters" in result.out


def test_settings_and_sizes_are_passed_on(phalanx, measured):
    options = ("--environments", 64, "--logging", "", "--repeats", 2, "--rounds", 3)
    assert phalanx("bench", "train", "--json", *options, "network.width=16").code == 0
    (asked,) = measured
    assert (asked.num_envs, asked.logging_envs, asked.repeats, asked.rounds) == (64, (), 2, 3)
    assert asked.config(64).network.width == 16
    assert asked.judged


def test_a_quick_run_is_tiny_and_not_held_against_the_targets(phalanx, measured):
    assert phalanx("bench", "train", "--json", "--quick").code == 0
    (asked,) = measured
    assert not asked.judged
    assert (asked.num_envs, asked.logging_envs) == (16, (16,))
    assert asked.config(16).arc.grid_shape == (3, 3)


@pytest.mark.parametrize("text", ["many", "0", "8,,4", "-1"])
def test_sizes_that_are_no_numbers_are_refused(phalanx, measured, text: str):
    result = phalanx("bench", "train", f"--logging={text}")
    assert result.code == 2
    assert f"--logging takes positive whole numbers with commas, as in 1024,10000; got {text!r}" in result.err


def test_a_setting_that_does_not_exist_is_refused_before_anything_runs(phalanx, measured):
    result = phalanx("bench", "train", "network.widht=16")
    assert result.code == 2
    assert "widht" in result.err
    assert measured == []


def test_environments_that_cannot_be_cut_into_minibatches_are_refused_before_anything_runs(phalanx, measured):
    result = phalanx("bench", "train", "--environments", 1021, "ppo.num_steps=1")
    assert result.code == 2
    assert "minibatches must divide" in result.err
    assert measured == []


def test_peers_are_measured_by_the_comparison_in_the_sources(
    phalanx, measured, monkeypatch: pytest.MonkeyPatch
):
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert phalanx("bench", "train", "--json", "--quick", "--repeats", 2, "--peers").code == 1
    script = Path(package.__file__).parents[2] / "benchmarks" / "compare_training.py"
    assert asked[0][1:] == [str(script), "--repeats", "2", "--quick", "--json"]


def test_peers_need_the_sources(phalanx, measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "phalanx" / "__init__.py"))
    result = phalanx("bench", "train", "--json", "--peers")
    assert result.code == 2
    assert "--peers needs a checkout of Phalanx's sources" in result.err
