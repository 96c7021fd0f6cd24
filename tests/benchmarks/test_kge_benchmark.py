"""The comparison with PyKEEN: what a runner says of a small training, and how the verdict comes about."""

import sys

import compare_kge

from phalanx.kg import KnowledgeBase


def test_phalanxs_runner_trains_and_tells_time_and_mrr(tmp_path):
    base = KnowledgeBase.generate(num_families=2)
    base.save(tmp_path / "small")
    work = compare_kge.Work("small", "distmult", 8, 2, 64, 0.01, 0.02, 0)
    told = compare_kge.trained(
        compare_kge.PHALANX, tmp_path, work.options(compare_kge.PHALANX, tmp_path, 1, 0)
    )
    assert told["event"] == "trained" and 0 < told["mrr"] < 1
    assert told["cpu_seconds"] > 0 and told["seconds"] > 0
    assert compare_kge.PHALANX.python(tmp_path).name == sys.executable.rpartition("/")[2]


def test_a_bar_is_missed_by_speed_or_by_rank():
    def one(seconds: float, mrr: float) -> list[dict[str, float]]:
        return [{"seconds": seconds, "cpu_seconds": 2 * seconds, "mrr": mrr}]

    assert compare_kge.verdict(one(1.0, 0.5), one(3.0, 0.505))["holds"]
    assert not compare_kge.verdict(one(1.0, 0.5), one(2.9, 0.5))["holds"]
    assert not compare_kge.verdict(one(1.0, 0.5), one(9.0, 0.52))["holds"]
    several = compare_kge.verdict(one(1.0, 0.5) + one(2.0, 0.5) + one(9.0, 0.5), one(8.0, 0.5))
    assert several["times_as_fast"] == 4.0 and several["times_as_fast_cpu"] == 4.0
