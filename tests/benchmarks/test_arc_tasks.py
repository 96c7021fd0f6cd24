"""The benchmark over all tasks of ARC-AGI-1: a training of seconds on two small tasks, and its budget."""

import json
import signal
import sys
from pathlib import Path

import arc_tasks as benchmark
import numpy as np
import pytest

NAMES = ("007bbfb7", "67a3c6ac")
"""Tasks that have official test pairs; the instances here are other ones."""


def instances(path: Path, side: int = 3) -> Path:
    """Copying for the one task and mirroring for the other."""
    rng = np.random.default_rng(0)
    grids = rng.integers(0, 10, (48, side, side)).astype(np.uint8)
    outputs = [grid if n % 2 else grid[:, ::-1] for n, grid in enumerate(grids)]
    cells = np.concatenate([side.ravel() for pair in zip(grids, outputs, strict=True) for side in pair])
    task = (1 - np.arange(48) % 2).astype(np.int16)
    np.savez(path, names=np.array(NAMES), task=task, sizes=np.full((48, 4), side, np.uint8), cells=cells)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["arc_tasks.py", *map(str, arguments)])
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        benchmark.main()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def test_a_training_is_measured_saved_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "POOL", 256)
    monkeypatch.setitem(benchmark.SIDES, 8, 16)
    for batch_size in ("arc_tasks.ANSWERED", "phalanx.arc.submission._GRIDS_BATCH_SIZE"):
        monkeypatch.setattr(batch_size, 4)  # some are answered in more batches than one
    data, out = instances(tmp_path / "small.npz"), tmp_path / "run"
    small = (data, "--out", out, "--points", 1, "--width", 4, "--depth", 1, "--held-out", 3)
    run(monkeypatch, *small, "--cpu-minutes", 0.001, "--learning-rate", 1e-3, "--seed", 1)
    point, end = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert point["samples"] == end["samples"] > 0 and end["fresh"]["tasks"] == 2
    assert "official_tests" not in end, "only where they are asked for"
    with pytest.raises(SystemExit):
        run(monkeypatch, *small, "--cpu-minutes", 1)
    assert "has a checkpoint: give --resume" in capsys.readouterr().err
    again = ("--resume", "--minutes", point["minutes"] + 0.01, "--hard", data, "--official")
    run(monkeypatch, *small, *again)
    results = json.loads((out / "results.json").read_text())
    assert results["samples"] > end["samples"]
    assert results["hard"]["copy_input"]["tasks_all_right"] == 1, "copying is what one of the two asks for"
    assert results["official_tests"]["answers"] == 2
    first, _ = (out / "curve.jsonl").read_text().splitlines()
    assert json.loads(first)["samples"] == end["samples"]


def test_a_budget_is_of_wall_or_processor_minutes_or_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = instances(tmp_path / "small.npz")
    config = benchmark.TransductionNetworkConfig(hidden_dim=4, num_layers=1)
    training = benchmark.Training(benchmark.load_pair_dataset(data), config, 0, 1e-3)
    training.seconds, training.cpu_seconds = 60.0, 30.0
    assert training.progress((2.0, None)) == 0.5
    assert training.progress((None, 2.0)) == 0.25
    assert training.progress((2.0, 0.5)) == 1.0
    with pytest.raises(SystemExit):
        run(monkeypatch, data, "--out", tmp_path / "run")
    assert "give --minutes, --cpu-minutes or both" in capsys.readouterr().err


def test_larger_instances_have_their_share_and_what_is_asked_at_the_end_is_not_learned(
    tmp_path: Path,
) -> None:
    usual, wide = (benchmark.load_pair_dataset(instances(tmp_path / f"{side}.npz", side)) for side in (3, 9))
    asked = frozenset(benchmark.input_of(wide.pair(row)) for row in range(24))
    config = benchmark.TransductionNetworkConfig(hidden_dim=4, num_layers=1)
    training = benchmark.Training(usual, config, 0, 1e-3, (wide, 0.25), asked)
    training._draw()
    small, large = training.queues[8], training.queues[10]
    assert len(small) + len(large) == benchmark.POOL
    assert 0.2 < len(large) / benchmark.POOL < 0.3
    assert min(large) >= len(usual) + 24, "the first 24 of the larger ones are asked at the end"
    held = set(training.held.tolist())
    assert held and max(held) < len(usual), "answers are measured on the usual ones"
    assert not held & set(small)
    kept = np.flatnonzero(wide.held_out_mask()) + len(usual)
    assert not set(kept.tolist()) & set(large)


def test_instances_of_other_tasks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, other = instances(tmp_path / "small.npz"), tmp_path / "other.npz"
    with np.load(data) as file:
        np.savez(other, **{**file, "names": np.array(["a", "b"])})
    with pytest.raises(SystemExit):
        run(monkeypatch, data, "--out", tmp_path / "run", "--minutes", 1, "--wide", other)
    assert "has other tasks than" in capsys.readouterr().err
