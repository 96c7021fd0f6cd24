"""The comparison with other environments: ratios, verdicts, how runners are driven; no peer is installed."""

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import arc_report as report
import peers
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"

RUNNER = """
import sys
sys.path.insert(0, {folder!r})
import protocol
arguments = protocol.parse_arguments("three steps a call")
print("a greeting that is no JSON")
calls = []
protocol.serve(lambda: calls.append(1), 3, 0.0, batch=arguments.batch)
"""


def comparison(**rates: float) -> Any:
    """Contenders at 1,024 environments on 30x30, with the native engine also at 16,384."""
    names = {"native": report.NATIVE, "xla": report.XLA, "jaxarc": report.JAXARC, "arcle": report.ARCLE}
    workload = report.Workload("30x30", "bbox", 1024)
    measurements = [
        report.ArcMeasurement(
            workload, names[name], (rate, rate * 2, rate / 2), {"first_batch_step_seconds": 1.5}
        )
        for name, rate in rates.items()
        if name in names
    ]
    if "large" in rates:
        larger = report.Workload("30x30", "bbox", 16_384)
        measurements.append(report.ArcMeasurement(larger, report.NATIVE, (rates["large"],), {}))
    return report.ArcComparison(measurements)


def test_ratios_of_medians_are_held_against_the_targets() -> None:
    verdicts = comparison(native=1_000_000, xla=70_000, jaxarc=10_000, arcle=5_000, large=700_000).verdicts()
    assert [(v.figure, v.measured, v.target, v.passed) for v in verdicts] == [
        ("phalanx native / jaxarc", 100.0, 100.0, True),
        ("phalanx xla / jaxarc", 7.0, 8.0, False),
        ("phalanx native / arcle", 200.0, 1.0, True),
        ("first batch_step, phalanx native (s)", 1.5, 3.0, True),
        ("phalanx native, 16,384 / 1,024", 0.7, 0.8, False),
    ]


def test_figures_without_a_peer_are_left_out() -> None:
    verdicts = comparison(native=1_000_000).verdicts()
    assert [v.figure for v in verdicts] == ["first batch_step, phalanx native (s)"]


def test_a_small_canvas_has_the_lower_target_and_none_for_the_xla_engine() -> None:
    small = report.Workload("5x5", "bbox", 1024)
    targets = {(ours, theirs): target for ours, theirs, target in report._targets(small)}
    assert targets[report.NATIVE, report.JAXARC] == 10.0
    assert targets[report.XLA, report.JAXARC] is None


def test_the_markdown_has_a_row_for_each_workload_and_each_verdict() -> None:
    found = comparison(native=1_000_000, jaxarc=10_000)
    text = report.markdown(found, found.verdicts(), "Conditions.")
    assert "| grid, format, batch | phalanx native | jaxarc |" in text
    assert "| 30x30, bbox, 1,024 | 1,000,000 | 10,000 |" in text
    assert "| phalanx native / jaxarc | 30x30, bbox, 1,024 | 100 | at least 100 | pass |" in text


@pytest.fixture
def script(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    path = tmp_path / "runner.py"
    path.write_text(RUNNER.format(folder=str(FOLDER / "runners")))
    return path


def test_a_runner_says_ready_and_then_measures_as_often_as_asked(script: pathlib.Path) -> None:
    settings = {"task": "none", "batch": 5, "steps": 1}
    with peers.Runner(pathlib.Path(sys.executable), str(script), settings, timeout=30) as runner:
        runner.wait_until_ready()
        assert runner.conditions == {"calls_per_repeat": 1, "batch": 5}
        assert runner.measure() > 0
        assert runner.measure() > 0


def test_a_runner_that_fails_is_reported_with_its_last_message(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise SystemExit('the peer is not installed')")
    with (
        peers.Runner(pathlib.Path(sys.executable), str(path), {}, timeout=30) as runner,
        pytest.raises(peers.RunnerError, match=r"ended with code 1(?s:.)*the peer is not installed"),
    ):
        runner.wait_until_ready()


def test_a_runner_that_does_not_answer_is_given_up(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "silent.py"
    path.write_text("import time; time.sleep(60)")
    with (
        peers.Runner(pathlib.Path(sys.executable), str(path), {}, timeout=0.5) as runner,
        pytest.raises(peers.RunnerError, match=r"ended with code -9 \(-9: no answer in 0.5 s\)"),
    ):
        runner.wait_until_ready()
