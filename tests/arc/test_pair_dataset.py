"""Grid pair datasets: loading, held-out masks and invalid files."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.arc import ArcTask, GridPair, load_pair_dataset
from phalanx.arc.evaluation import canvas_note


def write_dataset(path: Path, pairs: list[tuple[int, np.ndarray, np.ndarray]], **overrides) -> Path:
    fields = {
        "names": np.array(["a", "b"]),
        "task": np.array([task for task, _, _ in pairs], np.int16),
        "sizes": np.array(
            [(*input_grid.shape, *output_grid.shape) for _, input_grid, output_grid in pairs], np.uint8
        ),
        "cells": np.concatenate([grid.ravel() for pair in pairs for grid in pair[1:]]).astype(np.uint8),
    }
    np.savez_compressed(path, **{**fields, **overrides})
    return path


def random_pairs(count: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    grids = [[rng.integers(0, 10, rng.integers(1, 5, 2)) for _ in range(2)] for _ in range(count)]
    return [(n % 2, *pair) for n, pair in enumerate(grids)]


def test_dataset_round_trips(tmp_path: Path):
    pairs = random_pairs(9)
    dataset = load_pair_dataset(write_dataset(tmp_path / "some.npz", pairs))
    assert dataset.names == ("a", "b")
    inputs, outputs = dataset.pad(np.arange(9), 6)
    for n, (task, input_grid, output_grid) in enumerate(pairs):
        assert dataset.task[n] == task
        assert np.array_equal(dataset.pair(n).input, input_grid)
        assert np.array_equal(outputs[n, : output_grid.shape[0], : output_grid.shape[1]], output_grid)
        assert (inputs[n] >= 0).sum() == input_grid.size


def test_held_out_inputs_do_not_occur_in_training(tmp_path: Path):
    pairs = random_pairs(300)
    dataset = load_pair_dataset(write_dataset(tmp_path / "some.npz", pairs))
    held_out = dataset.held_out_mask(4)
    inputs = [input_grid.astype(np.int8).tobytes() for _, input_grid, _ in pairs]
    held_out_inputs, training_inputs = (
        {inputs[n] for n in np.flatnonzero(held_out == side)} for side in (True, False)
    )
    assert not held_out_inputs & training_inputs
    assert 40 < held_out.sum() < 120


def test_invalid_files_are_rejected(tmp_path: Path):
    short = write_dataset(tmp_path / "short.npz", random_pairs(3), cells=np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="the file has 2"):
        load_pair_dataset(short)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="is not a grid pair dataset"):
        load_pair_dataset(tmp_path / "other.npz")


def test_canvas_note_counts_tasks_that_fit():
    tasks = [ArcTask(f"{n}", (GridPair(np.zeros((n, 2), int), np.zeros((1, 1), int)),), ()) for n in (1, 4)]
    assert canvas_note(tasks, (3, 3)) == "1 of 2 tasks fit a canvas of 3x3"
