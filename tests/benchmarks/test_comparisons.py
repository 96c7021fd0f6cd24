"""Comparisons with other libraries: ratios, verdicts, tables, how runners are driven. No peer is needed."""

import importlib
import json
import pathlib
import shutil
import subprocess
import sys
from types import ModuleType
from typing import Any

import compare_arc as arc
import compare_replay
import compare_tokens as tokens
import compare_training as training
import numpy as np
import pytest
from measuring import peers
from measuring.verdicts import Measurement

from phalanx.data import pack_lengths

RUNNER = """
import sys
sys.path.insert(0, {folder!r})
import protocol
arguments = protocol.parse_arguments("three steps a call")
print("a greeting that is no JSON")
calls = []
protocol.serve(lambda: calls.append(1), 3, 0.0, batch=arguments.batch)
"""


def arc_comparison(**rates: float) -> Any:
    """Contenders at 1,024 environments on 30x30, with the native engine also at 16,384."""
    names = {"native": arc.NATIVE, "xla": arc.XLA, "jaxarc": arc.JAXARC, "arcle": arc.ARCLE}
    workload = arc.Workload("30x30", "bbox", 1024)
    measurements = [
        Measurement(workload, names[name], (rate, rate * 2, rate / 2), {"first_batch_step_seconds": 1.5})
        for name, rate in rates.items()
        if name in names
    ]
    if "large" in rates:
        larger = arc.Workload("30x30", "bbox", 16_384)
        measurements.append(Measurement(larger, arc.NATIVE, (rates["large"],), {}))
    return arc.ArcComparison(measurements)


def test_ratios_of_medians_are_held_against_the_targets() -> None:
    verdicts = arc_comparison(
        native=1_000_000, xla=70_000, jaxarc=10_000, arcle=5_000, large=700_000
    ).verdicts()
    assert [(v.figure, v.measured, v.target, v.passed) for v in verdicts] == [
        ("phalanx native / jaxarc", 100.0, 100.0, True),
        ("phalanx xla / jaxarc", 7.0, 8.0, False),
        ("phalanx native / arcle", 200.0, 1.0, True),
        ("first batch_step, phalanx native (s)", 1.5, 3.0, True),
        ("phalanx native, 16,384 / 1,024", 0.7, 0.8, False),
    ]


def test_figures_without_a_peer_are_left_out() -> None:
    verdicts = arc_comparison(native=1_000_000).verdicts()
    assert [v.figure for v in verdicts] == ["first batch_step, phalanx native (s)"]


def test_a_small_canvas_has_the_lower_target_and_none_for_the_xla_engine() -> None:
    small = arc.Workload("5x5", "bbox", 1024)
    targets = {(ours, theirs): target for ours, theirs, target in arc._targets(small)}
    assert targets[arc.NATIVE, arc.JAXARC] == 10.0
    assert targets[arc.XLA, arc.JAXARC] is None


def test_the_markdown_has_a_row_for_each_workload_and_each_verdict() -> None:
    found = arc_comparison(native=1_000_000, jaxarc=10_000)
    text = found.markdown("Conditions.")
    assert "| grid, format, batch | phalanx native | jaxarc |" in text
    assert "| 30x30, bbox, 1,024 | 1,000,000 | 10,000 |" in text
    assert "| phalanx native / jaxarc | 30x30, bbox, 1,024 | 100 | at least 100 | pass |" in text


def training_comparison(batch: int, share: float | None, **rates: float) -> Any:
    work = training.Work("ppo" if share is not None else "rollout", batch, 16, "small" if share else None)
    names = {"ours": training.PHALANX, "jaxarc": training.JAXARC, "spared": training.JAXARC_SPARED}
    facts = {} if share is None else {"environment_share": share}
    return training.TrainingComparison(
        [
            training.TrainingMeasurement(work, names[name], (rate, rate * 2, rate / 2), facts)
            for name, rate in rates.items()
        ]
    )


def test_ratios_of_whole_updates_are_told_with_the_bound_that_the_network_sets() -> None:
    verdicts = training_comparison(1024, 0.2, ours=800.0, jaxarc=200.0, spared=400.0).verdicts()
    assert [(v.figure, v.measured, v.target, v.passed) for v in verdicts] == [
        ("phalanx / jaxarc", 4.0, 3.0, True),
        ("the same with a free environment / jaxarc", 5.0, None, None),
        ("phalanx / jaxarc, ended only", 2.0, None, None),
        ("the same with a free environment / jaxarc, ended only", 2.5, None, None),
    ]


def test_a_rollout_without_a_network_must_be_a_hundred_times_as_fast() -> None:
    (verdict,) = training_comparison(1024, None, ours=9_900.0, jaxarc=100.0).verdicts()
    assert (verdict.measured, verdict.target, verdict.passed) == (99.0, 100.0, False)


def test_other_numbers_of_environments_are_shown_without_a_target() -> None:
    assert all(v.target is None for v in training_comparison(64, 0.5, ours=100.0, jaxarc=100.0).verdicts())


def measured(work: Any, contender: str, rate: float, **facts: Any) -> Any:
    return tokens.TokensMeasurement(work, contender, (rate, rate * 2, rate / 2), facts)


def test_ratios_over_several_peers_are_held_against_the_targets() -> None:
    plan = tokens.Work("plan predictable", 1000)
    assign = tokens.Work("assign", 1000)
    comparison = tokens.TokensComparison(
        [
            measured(plan, tokens.PHALANX, 3000, memory_peak_mb=80, efficiency=0.7),
            measured(plan, tokens.LAZARUS, 100, memory_peak_mb=100, efficiency=0.7),
            measured(assign, tokens.PHALANX, 1000, bins=11),
            measured(assign, tokens.PLAIN, 4000, bins=10),
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
    alone = tokens.TokensComparison([measured(tokens.Work("assign", 1000), tokens.PHALANX, 1000, bins=11)])
    assert alone.verdicts() == []


def test_seconds_and_rates_tell_the_same() -> None:
    work = tokens.Work("pack tokens", 10, unit="tokens")
    measurement = measured(work, tokens.TRL, 500, tokens=1000)
    assert measurement.seconds == 2
    record = measurement.record("compare_tokens")
    assert (record["work"], record["seconds_median"]) == ("pack tokens", 2)
    assert (record["tokens_per_second_median"], record["tokens_per_second_worst"]) == (500, 250)


def test_the_tables_have_a_row_for_each_work_and_each_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    work = tokens.Work("save plan", 1000)
    comparison = tokens.TokensComparison(
        [measured(work, tokens.PHALANX, 100, bytes=8), measured(work, tokens.LAZARUS, 50, bytes=16)]
    )
    text = comparison.markdown("Conditions.")
    assert text.splitlines()[0] == "Conditions."
    assert "| save plan, 1,000 lognormal | 10 | 20 |" in text
    assert "| bytes over chuk-lazarus's | save plan, 1,000 lognormal | 0.5 | at most 1 | pass |" in text
    comparison.show()
    assert "save plan, 1,000 lognormal" in capsys.readouterr().out


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


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "runner.py"
    path.write_text(RUNNER.format(folder=str(peers.RUNNERS)))
    return path


def runner_of(script: pathlib.Path, timeout: float = 30, **settings: Any) -> peers.Runner:
    return peers.Runner(peers.Peer("this", str(script)), script.parent, settings, timeout)


def test_a_runner_says_ready_and_then_measures_as_often_as_asked(script: pathlib.Path) -> None:
    with runner_of(script, task="none", batch=5, steps=1) as runner:
        runner.wait_until_ready()
        assert runner.conditions == {"calls_per_repeat": 1, "batch": 5}
        assert min(runner.measure()) > 0
        assert min(runner.measure()) > 0


def test_a_runner_that_fails_is_reported_with_its_last_message(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise SystemExit('the peer is not installed')")
    with (
        runner_of(path) as runner,
        pytest.raises(peers.RunnerError, match=r"ended with code 1(?s:.)*the peer is not installed"),
    ):
        runner.wait_until_ready()


def test_a_runner_that_does_not_answer_is_given_up(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "silent.py"
    path.write_text("import time; time.sleep(60)")
    with (
        runner_of(path, timeout=0.5) as runner,
        pytest.raises(peers.RunnerError, match=r"ended with code -9 \(-9: no answer in 0.5 s\)"),
    ):
        runner.wait_until_ready()


def test_the_replay_buffer_alone_tells_memory_adding_and_drawing() -> None:
    command = [
        sys.executable,
        compare_replay.__file__,
        "--alone",
        "--json",
        "--samples",
        "2000",
        "--tokens",
        "20",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (told,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert told["contender"] == "phalanx" and told["samples"] == 2000
    times = ("filling_make", "filling_add", "full_make", "full_add", "draw", "hard", "snapshot")
    assert all(0 < told[f"{name}_seconds"] < 1 for name in times)
    assert told["token_mb"] == round(4 * 20 * 2000 / 2**20, 1)
