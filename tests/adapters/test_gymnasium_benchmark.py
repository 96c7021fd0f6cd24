"""The comparison with Gymnasium's own vector environments measures what it says."""

import time

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
        contender = comparison.GymnasiumContender(kind, envs, time.perf_counter())
        contender.measure(0.05)
        record = contender.record("small", {"environment": "small"})
        assert record["environments"] == 3 and record["environment"] == "small"
        assert record["steps_per_second_median"] >= 15 / 60
        assert record["repeats"] == 1


def test_a_comparison_needs_something_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        comparison.parse_arguments(["--batch-sizes", ","])
    assert "--batch-sizes and --sync need a number each" in capsys.readouterr().err
