"""One checkout beside another: ratios of what was measured in turns, and what is refused."""

import json
from pathlib import Path

import against_commit
import pytest
from against_commit import AFTER, BEFORE, CommitComparison, Work
from commit_runner import WORKS
from measuring.verdicts import Measurement

from phalanx.native import is_native_available, native_unavailable_reason

ROOT = Path(__file__).parents[2]


def test_a_ratio_is_the_median_over_the_rounds() -> None:
    rates = {BEFORE: (100.0, 10.0, 100.0), AFTER: (90.0, 10.0, 99.0)}
    cpu = {BEFORE: (100.0, 50.0, 100.0), AFTER: (100.0, 60.0, 100.0)}
    found = CommitComparison(
        [Measurement(Work("arc"), name, told, {"cpu_rates": cpu[name]}) for name, told in rates.items()]
    )
    clock, processors = found.verdicts()
    assert (clock.measured, clock.passed) == (0.99, True)
    assert (processors.measured, processors.passed) == (1.0, None)


def test_a_checkout_is_measured_beside_itself(program) -> None:
    options = ("--works", "plan,pack", "--quick", "--json", "--repeats", 2, "--seconds", 0.01)
    result = program(against_commit, ROOT, *options)
    assert result.code in (0, 1), result.err
    *measured, plan, _, pack, _ = [json.loads(line) for line in result.out.splitlines()]
    told = [(record["work"], record["contender"]) for record in measured]
    assert told == [("plan", BEFORE), ("plan", AFTER), ("pack", BEFORE), ("pack", AFTER)]
    assert {record["source"] for record in measured} == {str(ROOT / "src" / "phalanx")}
    assert plan["measured"] > 0 and pack["measured"] > 0


@pytest.mark.parametrize("work", WORKS)
def test_every_work_is_done_by_this_checkout(work: str) -> None:
    if work in ("arc", "proofs") and not is_native_available():
        pytest.skip(native_unavailable_reason())
    prepared = WORKS[work](True)
    prepared.call()
    assert prepared.amount > 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["/nowhere"], "/nowhere is no checkout of Phalanx: it has no src/phalanx"),
        ([str(ROOT), "--works", "arc,swim"], "no work 'swim'; there are arc, proofs, plan, pack, ppo"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(program, given: list[str], told: str) -> None:
    result = program(against_commit, *given)
    assert result.code == 2
    assert told in result.err
