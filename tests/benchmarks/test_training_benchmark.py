"""The training benchmark: what its parts add up to, how logging is weighed, and the command line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from measuring.conditions import conditions
from timed_training import Parts, median_parts

import training
from phalanx.logging import LoggingConfig
from training import QUICK, LoggingTimes, TrainingBenchmark

BATCHED = LoggingConfig(log_frequency=10, sample_frequency=50)


@pytest.fixture(scope="module")
def benchmark() -> TrainingBenchmark:
    return TrainingBenchmark(
        overrides=QUICK, num_envs=8, logging_envs=(8,), repeats=1, rounds=2, judged=False
    )


@pytest.fixture(scope="module")
def records(benchmark: TrainingBenchmark) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timed_training._SECONDS_A_REPEAT", 0.3)
        return list(benchmark.run())


def test_shares_are_differences_of_what_was_timed_and_add_up_to_one() -> None:
    shares = Parts(environment=1.0, rollout=4.0, whole=10.0).shares()
    assert shares == {"environment_share": 0.1, "policy_share": 0.3, "update_share": 0.6}


def test_the_median_is_taken_of_each_part_by_itself() -> None:
    repeats = [Parts(1.0, 6.0, 10.0), Parts(3.0, 4.0, 30.0), Parts(2.0, 5.0, 20.0)]
    assert median_parts(repeats) == Parts(2.0, 5.0, 20.0)


def test_each_figure_is_one_json_line_with_its_conditions(records: list[dict[str, Any]]) -> None:
    assert [record["figure"] for record in records] == ["training", "logging"]
    for record in records:
        assert json.loads(json.dumps(record)) == record
        assert record["environments"] == 8 and record["grid"] == "3x3"
        assert record["num_parameters"] > 0
        assert {"load_average", "nproc", "cpu", "jax", "phalanx"} <= set(record)


def test_a_training_is_timed_whole_and_in_parts(records: list[dict[str, Any]]) -> None:
    training = records[0]
    assert 0 < training["environment_seconds"] < training["rollout_seconds"] < training["update_seconds"]
    shares = [training[f"{part}_share"] for part in ("environment", "policy", "update")]
    assert sum(shares) == pytest.approx(1, abs=2e-4)
    assert 0 < training["steps_per_second_worst"] <= training["steps_per_second_median"]


def test_every_round_logs_an_update_of_each_kind(records: list[dict[str, Any]]) -> None:
    logging = records[1]
    assert (logging["rounds"], logging["updates_on"]) == (2, 6)
    assert logging["log_frequency"] == 10 and logging["sample_frequency"] == 50
    # Pictures of three episodes cost more than a line of metrics, and that more than nothing.
    assert (
        logging["logger_seconds_sample"]
        > logging["logger_seconds_aggregate"]
        > logging["logger_seconds_silent"]
    )


def test_small_sizes_are_not_held_against_the_targets(records: list[dict[str, Any]]) -> None:
    assert all("passed" not in record and "targets" not in record for record in records)


def test_kinds_of_updates_are_weighed_by_how_often_the_settings_have_them() -> None:
    times = LoggingTimes(BATCHED)
    for kind, logging in (("silent", 0.0), ("silent", 0.0), ("aggregate", 0.5), ("sample", 3.0)):
        times.add(kind, 1.0 + logging, (0.5, 1.5), logging)
    # Of 50 updates 45 are silent, 4 aggregate and 1 samples: (45 * 0 + 4 * 0.5 + 3) / 50 = 0.1.
    facts = times.facts()
    assert facts["overhead"] == facts["logger_share"] == 0.1
    assert (facts["update_seconds_off"], facts["update_seconds_on"]) == (1.0, 1.1)


def test_a_machine_that_slows_down_does_so_with_and_without_logging() -> None:
    times = LoggingTimes(BATCHED)
    for number in range(1, 10):
        for kind in ("silent", "aggregate", "sample"):
            times.add(kind, float(number), (number - 0.25, number + 0.25), 0.0)
    assert times.facts()["overhead"] == 0.0


def test_a_benchmark_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        TrainingBenchmark(repeats=0)
    with pytest.raises(ValueError, match="a training needs at least 1 environment, got 0"):
        TrainingBenchmark(logging_envs=(1_024, 0))


def test_ten_thousand_environments_have_minibatches_of_the_size_of_a_thousand() -> None:
    benchmark = TrainingBenchmark()
    small, large = benchmark.config(1_024), benchmark.config(10_000)
    assert (small.num_minibatches, large.num_minibatches) == (8, 80)
    assert (small.steps_per_update // 8, large.steps_per_update // 80) == (1_024, 1_000)


SHARED = {
    "grid": "4x4",
    "network": "color_equivariant, hidden_dim 12, num_layers 3",
    "num_parameters": 12_345,
}
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
def measured(monkeypatch: pytest.MonkeyPatch) -> list[TrainingBenchmark]:
    """Figures without a training; what was asked for is kept."""
    asked: list[TrainingBenchmark] = []

    def run(self: TrainingBenchmark) -> Iterator[dict[str, Any]]:
        asked.append(self)
        for record in (TRAINING, LOGGING):
            yield {**record, **SHARED, **conditions("jax")}

    monkeypatch.setattr(TrainingBenchmark, "run", run)
    return asked


def test_the_figures_are_those_of_the_demo_at_a_thousand_and_ten_thousand_environments(program, measured):
    result = program(training, "--json")
    assert (result.code, result.err) == (0, "")
    assert [json.loads(line)["figure"] for line in result.out.splitlines()] == ["training", "logging"]
    (asked,) = measured
    assert asked == TrainingBenchmark()
    config = asked.config(asked.num_envs)
    assert (config.network.kind, config.environment_settings.grid_shape) == ("color_equivariant", (4, 4))
    assert (config.logging.log_frequency, config.logging.sample_frequency) == (10, 50)


def test_without_json_a_table_shows_the_figures_and_whether_they_reach_their_targets(program, measured):
    result = program(training)
    assert result.rows == [
        [
            "training",
            "1,024",
            "5,432 steps/s (worst 5,000); environment 1.23%, policy 20.0%, update 78.8%",
            "pass",
        ],
        ["logging", "10,000", "+3.10% (1.500 s an update without); in the logger itself 0.120%", "FAIL"],
    ]
    assert "4x4 canvas, color_equivariant, hidden_dim 12, num_layers 3, 12,345 parameters" in result.out


def test_settings_and_sizes_are_passed_on(program, measured):
    options = ("--environments", 64, "--logging", "", "--repeats", 2, "--rounds", 3)
    assert program(training, "--json", *options, "network.hidden_dim=16").code == 0
    (asked,) = measured
    assert (asked.num_envs, asked.logging_envs, asked.repeats, asked.rounds) == (64, (), 2, 3)
    assert asked.config(64).network.hidden_dim == 16
    assert asked.judged


def test_a_quick_run_is_tiny_and_not_held_against_the_targets(program, measured):
    assert program(training, "--json", "--quick").code == 0
    (asked,) = measured
    assert not asked.judged
    assert (asked.num_envs, asked.logging_envs) == (16, (16,))
    assert asked.config(16).environment_settings.grid_shape == (3, 3)


@pytest.mark.parametrize("text", ["many", "0", "8,,4", "-1"])
def test_sizes_that_are_no_numbers_are_refused(program, measured, text: str):
    result = program(training, f"--logging={text}")
    assert result.code == 2
    assert f"--logging: takes positive whole numbers with commas, as in 64,1024; got {text!r}" in result.err


def test_a_setting_that_does_not_exist_is_refused_before_anything_runs(program, measured):
    result = program(training, "network.widht=16")
    assert result.code == 2
    assert "widht" in result.err
    assert measured == []


def test_environments_that_cannot_be_cut_into_minibatches_are_refused_before_anything_runs(program, measured):
    result = program(training, "--environments", 1021, "num_steps=1")
    assert result.code == 2
    assert "minibatches must divide" in result.err
    assert measured == []


def test_peers_are_measured_by_the_comparison(program, measured, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert program(training, "--json", "--quick", "--repeats", 2, "--peers").code == 1
    script = Path(training.__file__).with_name("compare_training.py")
    assert asked == [[sys.executable, str(script), "--repeats", "2", "--quick", "--json"]]
    assert script.is_file()
