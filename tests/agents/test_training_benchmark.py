"""The training benchmark: what its parts add up to, how logging is weighed, how a comparison is judged."""

import json
from typing import Any

import pytest
import training_report as report

from phalanx.agents.benchmark import LoggingTimes, TrainingBenchmark
from phalanx.agents.training_parts import Parts, median_parts
from phalanx.cli.bench_train import QUICK
from phalanx.logs import LoggingConfig

BATCHED = LoggingConfig(batched_logging_enabled=True, log_frequency=10, sample_frequency=50)


@pytest.fixture(scope="module")
def benchmark() -> TrainingBenchmark:
    return TrainingBenchmark(
        overrides=QUICK, num_envs=8, logging_envs=(8,), repeats=1, rounds=2, judged=False
    )


@pytest.fixture(scope="module")
def records(benchmark: TrainingBenchmark) -> list[dict[str, Any]]:
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
    small, large = benchmark.config(1_024).ppo, benchmark.config(10_000).ppo
    assert (small.minibatches, large.minibatches) == (8, 80)
    assert (small.steps_per_update // 8, large.steps_per_update // 80) == (1_024, 1_000)


def comparison(batch: int, share: float | None, **rates: float) -> Any:
    work = report.Work("ppo" if share is not None else "rollout", batch, 16, "small" if share else None)
    names = {"ours": report.PHALANX, "jaxarc": report.JAXARC, "spared": report.JAXARC_SPARED}
    facts = {} if share is None else {"environment_share": share}
    return report.TrainingComparison(
        [
            report.TrainingMeasurement(work, names[name], (rate, rate * 2, rate / 2), facts)
            for name, rate in rates.items()
        ]
    )


def test_ratios_of_whole_updates_are_told_with_the_bound_that_the_network_sets() -> None:
    verdicts = comparison(1024, 0.2, ours=800.0, jaxarc=200.0, spared=400.0).verdicts()
    assert [(v.figure, v.measured, v.target, v.passed) for v in verdicts] == [
        ("phalanx / jaxarc", 4.0, 3.0, True),
        ("the same with a free environment / jaxarc", 5.0, None, None),
        ("phalanx / jaxarc, ended only", 2.0, None, None),
        ("the same with a free environment / jaxarc, ended only", 2.5, None, None),
    ]


def test_a_rollout_without_a_network_must_be_a_hundred_times_as_fast() -> None:
    (verdict,) = comparison(1024, None, ours=9_900.0, jaxarc=100.0).verdicts()
    assert (verdict.measured, verdict.target, verdict.passed) == (99.0, 100.0, False)


def test_other_numbers_of_environments_are_shown_without_a_target() -> None:
    assert all(v.target is None for v in comparison(64, 0.5, ours=100.0, jaxarc=100.0).verdicts())
