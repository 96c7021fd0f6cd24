"""The comparisons with TorchRL's and Gymnasium's vector environments measure what they say.

Workers are too slow to start for a test.
"""

import time
from types import SimpleNamespace

import pytest
import stepping

BATCHED, PARALLEL = "BatchedVecEnv", "ParallelEnv"


def torchrl_comparison():
    pytest.importorskip("torchrl")
    import compare_torchrl

    return compare_torchrl


def test_a_torchrl_contender_counts_the_steps_of_all_its_environments() -> None:
    comparison = torchrl_comparison()
    from tests.helpers.ancestors import ancestors

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
            (BATCHED, 64, [100.0, 300.0, 200.0]),
            (BATCHED, 256, [400.0]),
            (PARALLEL, 2, [20.0]),
            (PARALLEL, 4, [50.0]),
        )
    ]
    found = stepping.verdicts(measured, BATCHED)  # type: ignore[arg-type]
    assert [verdict.measured for verdict in found] == [10.0, 4.0, 20.0, 8.0, 8.0]
    assert [verdict.passed for verdict in found] == [None, None, None, None, False]


def test_a_folder_that_is_not_there_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        torchrl_comparison().parse_arguments(["--data", "/nowhere"])
    assert "--data /nowhere is not a folder" in capsys.readouterr().err


def test_gymnasium_contenders_count_the_steps_of_all_their_environments() -> None:
    pytest.importorskip("gymnasium")
    import compare_gymnasium as comparison
    from gymnasium.vector import SyncVectorEnv

    from phalanx.integrations.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
    from tests.helpers.gymnasium_cases import ancestors, paintings

    made = {
        comparison.NATIVE: GymnasiumVectorEnv(paintings, 3),
        comparison.SYNC: SyncVectorEnv([lambda: GymnasiumEnv(ancestors)] * 3),
    }
    for kind, envs in made.items():
        contender = comparison.GymnasiumContender(kind, envs, time.perf_counter())
        contender.measure(0.05)
        record = contender.record("small", {"environment": "small"})
        assert record["environments"] == 3 and record["environment"] == "small"
        assert record["steps_per_second_median"] >= 15 / 60
        assert record["repeats"] == 1
