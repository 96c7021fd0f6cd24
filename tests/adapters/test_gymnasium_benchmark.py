"""The comparison with Gymnasium's own vector environments measures what it says."""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("gymnasium")

import compare_gymnasium as comparison
from gymnasium.vector import SyncVectorEnv
from gymnasium_cases import ancestors, paintings

from phalanx.adapters.gymnasium import PhalanxEnv, PhalanxVectorEnv


def test_contenders_count_the_steps_of_all_their_environments() -> None:
    made = {
        comparison.NATIVE: PhalanxVectorEnv(paintings, 3),
        comparison.SYNC: SyncVectorEnv([lambda: PhalanxEnv(ancestors)] * 3),
    }
    for kind, envs in made.items():
        contender = comparison.Contender(kind, envs, time.perf_counter())
        contender.measure(0.05)
        record = contender.record({"environment": "small"})
        assert record["environments"] == 3 and record["environment"] == "small"
        assert record["steps_per_second_median"] >= 15 / 60
        assert record["repeats"] == 1


def test_ratios_are_of_medians_and_the_target_is_for_the_best_of_both() -> None:
    measured = [
        SimpleNamespace(kind=kind, environments=count, rates=rates)
        for kind, count, rates in (
            (comparison.NATIVE, 64, [100.0, 300.0, 200.0]),
            (comparison.NATIVE, 1024, [400.0]),
            (comparison.SYNC, 64, [20.0]),
            (comparison.ASYNC, 4, [50.0]),
        )
    ]
    found = comparison.verdicts(measured)  # type: ignore[arg-type]
    assert [verdict.measured for verdict in found] == [10.0, 4.0, 20.0, 8.0, 8.0]
    assert [verdict.passed for verdict in found] == [None, None, None, None, False]


def test_a_comparison_needs_something_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        comparison.parse_arguments(["--batch-sizes", ","])
    assert "--batch-sizes and --sync need a number each" in capsys.readouterr().err
