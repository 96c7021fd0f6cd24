"""The comparison with other libraries: verdicts, tables and the plain references; no peer is installed."""

import importlib
import shutil
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tokens_report as report
from rich.console import Console

from phalanx.tokens import pack_lengths


def measured(work: Any, contender: str, rate: float, **facts: Any) -> Any:
    return report.TokensMeasurement(work, contender, (rate, rate * 2, rate / 2), facts)


def test_ratios_of_medians_are_held_against_the_targets() -> None:
    plan = report.Work("plan predictable", 1000)
    assign = report.Work("assign", 1000)
    comparison = report.TokensComparison(
        [
            measured(plan, report.PHALANX, 3000, memory_peak_mb=80, efficiency=0.7),
            measured(plan, report.LAZARUS, 100, memory_peak_mb=100, efficiency=0.7),
            measured(assign, report.PHALANX, 1000, bins=11),
            measured(assign, report.PLAIN, 4000, bins=10),
        ]
    )
    assert [(v.figure, v.measured, v.passed) for v in comparison.verdicts()] == [
        ("speed over chuk-lazarus", 30.0, True),
        ("peak memory over chuk-lazarus's", 0.8, True),
        ("efficiency over chuk-lazarus's", 1.0, True),
        ("speed over plain reference", 0.25, False),
        ("bins over plain reference's", 1.1, False),
    ]


def test_a_figure_whose_peer_was_not_measured_is_left_out() -> None:
    alone = report.TokensComparison([measured(report.Work("assign", 1000), report.PHALANX, 1000, bins=11)])
    assert alone.verdicts() == []


def test_seconds_and_rates_tell_the_same() -> None:
    work = report.Work("pack tokens", 10, unit="tokens")
    measurement = measured(work, report.TRL, 500, tokens=1000)
    assert measurement.seconds == 2
    record = measurement.record()
    assert (record["tokens_per_second_median"], record["tokens_per_second_worst"]) == (500, 250)


def test_the_tables_have_a_row_for_each_work_and_each_verdict() -> None:
    work = report.Work("save plan", 1000)
    comparison = report.TokensComparison(
        [measured(work, report.PHALANX, 100, bytes=8), measured(work, report.LAZARUS, 50, bytes=16)]
    )
    text = report.markdown(comparison, comparison.verdicts(), "Conditions.")
    assert text.splitlines()[0] == "Conditions."
    assert "| save plan, 1,000 lognormal | 10 | 20 |" in text
    assert "| bytes over chuk-lazarus's | save plan, 1,000 lognormal | 0.5 | at most 1 | pass |" in text
    console = Console(width=120, record=True, file=None, quiet=True)
    report.print_tables(comparison, comparison.verdicts(), console)


@pytest.fixture(scope="module")
def plain() -> Any:
    """The plain references, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    # The protocol takes standard output for itself, which only a runner's process wants.
    sys.modules["protocol"] = ModuleType("protocol")
    try:
        module = importlib.import_module("plain_tokens_runner")
    finally:
        del sys.modules["protocol"]
    return module, module.library()


@pytest.mark.parametrize("seed", range(5))
def test_the_plain_c_packing_is_best_fit_decreasing(plain: Any, seed: int) -> None:
    module, library = plain
    lengths = np.random.default_rng(seed).integers(1, 65, 500).astype(np.int32)
    bins = module.best_fit_decreasing(library, lengths, 64)
    assert np.bincount(bins, weights=lengths).max() <= 64
    assert bins.max() == pack_lengths(lengths, 64).max()


def test_the_plain_filling_sorts_and_stays_within_the_budget(plain: Any) -> None:
    module, library = plain
    lengths = np.array([3, 1, 2, 2, 1, 4], np.int32)
    rows, ends = module.fairseq_batches(library, lengths, 6, seed=0)
    # 1 1 2 | 2 3 | 4: three times 2 is 6, two times 3 is 6.
    assert lengths[rows].tolist() == [1, 1, 2, 2, 3, 4]
    assert ends.tolist() == [3, 5, 6]
    assert module.padded_facts(lengths, rows, ends) == {"batches": 3, "efficiency": round(13 / 16, 6)}
