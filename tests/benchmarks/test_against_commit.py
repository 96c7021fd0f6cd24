"""Comparison of this checkout with another one."""

import json
from pathlib import Path

import pytest
from benchmarks.timing import Repeat

from benchmarks import against_commit

ROOT = Path(__file__).parents[2]


def test_the_ratio_is_the_median_over_the_rounds() -> None:
    before = [Repeat(100, 1.0, 1.0), Repeat(10, 1.0, 2.0), Repeat(100, 1.0, 1.0)]
    after = [Repeat(90, 1.0, 1.0), Repeat(10, 1.0, 1.0), Repeat(99, 1.0, 0.5)]
    record = against_commit.compare("suite/case", before, after)
    assert (record["ratio"], record["cpu_ratio"]) == (0.99, 1.98)
    assert (record["other_per_second"], record["this_per_second"]) == (100, 90)


def test_a_checkout_is_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "batch_planning/pack", "--smoke", "--repeats", "2", "--seconds", "0.01"]
    assert against_commit.main([str(ROOT), *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["case"] == "batch_planning/pack"
    assert record["ratio"] > 0 and record["this"] == record["other"]


def test_default_cases_exist() -> None:
    from benchmarks.suite import find_suites

    suites = find_suites()
    for case in against_commit.CASES:
        suite, _, name = case.partition("/")
        if name:
            assert name in suites[suite].ids()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "/nowhere is not a checkout of Phalanx: it has no src/phalanx"),
        ([str(ROOT), "--only", "swim/fast"], "there is no suite 'swim' in benchmarks/speed"),
        ([str(ROOT), "--repeats", "0"], "--repeats must be at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        against_commit.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
