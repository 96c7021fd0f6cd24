"""The comparison with `ParallelEnv` measures what it says; workers are too slow to start for a test."""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchrl")

import compare_torchrl as comparison
import stepping
from ancestors import ancestors


def test_a_contender_counts_the_steps_of_all_its_environments() -> None:
    contender = comparison.TorchRLContender(comparison.BATCHED, ancestors(3), time.perf_counter())
    contender.measure(0.05)
    record = contender.record("small", {"data": "ancestors"})
    assert record["environments"] == 3 and record["data"] == "ancestors"
    assert record["steps_per_second_median"] >= 15 / 60
    assert record["repeats"] == 1


def test_ratios_are_of_medians_and_the_target_is_for_the_best_of_both() -> None:
    measured = [
        SimpleNamespace(kind=kind, environments=count, rates=rates)
        for kind, count, rates in (
            (comparison.BATCHED, 64, [100.0, 300.0, 200.0]),
            (comparison.BATCHED, 256, [400.0]),
            (comparison.PARALLEL, 2, [20.0]),
            (comparison.PARALLEL, 4, [50.0]),
        )
    ]
    found = stepping.verdicts(measured, comparison.BATCHED)  # type: ignore[arg-type]
    assert [verdict.measured for verdict in found] == [10.0, 4.0, 20.0, 8.0, 8.0]
    assert [verdict.passed for verdict in found] == [None, None, None, None, False]


def test_a_folder_that_is_not_there_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        comparison.parse_arguments(["--data", "/nowhere"])
    assert "--data /nowhere is not a folder" in capsys.readouterr().err
