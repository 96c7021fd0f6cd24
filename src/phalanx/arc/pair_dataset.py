"""Instances: many pairs of grids of the same tasks in one file, and how many tasks a canvas has room for.

`scripts/generate_rearc.py` writes such files; data sets of whole tasks are read in `readers`.
"""

import dataclasses
import functools
import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, Int8, Integer

from phalanx.arc.tasks import GridPair

_FIELDS = ("names", "task", "sizes", "cells")


@dataclasses.dataclass(frozen=True, eq=False)
class GridPairDataset:
    """Pairs of grids, each of a task that has a name."""

    names: tuple[str, ...]
    """The tasks' ids, by their numbers."""
    task: Int[np.ndarray, " pairs"]
    """The task of each pair."""
    sizes: Int[np.ndarray, "pairs 4"]
    """Input height and width, output height and width."""
    cells: Integer[np.ndarray, " cells"]
    """Inputs and outputs, end to end."""

    def __len__(self) -> int:
        return len(self.task)

    @functools.cached_property
    def _starts(self) -> Int[np.ndarray, " pairs"]:
        lengths = self.sizes[:, 0] * self.sizes[:, 1] + self.sizes[:, 2] * self.sizes[:, 3]
        return np.cumsum(lengths) - lengths

    def pair(self, index: int) -> GridPair:
        """One pair."""
        h, w, rows, columns = self.sizes[index].tolist()
        first = int(self._starts[index])
        grids = self.cells[first : first + h * w + rows * columns].astype(np.int8)
        return GridPair(grids[: h * w].reshape(h, w), grids[h * w :].reshape(rows, columns))

    def padded(
        self, indices: Int[np.ndarray, " some"], side: int
    ) -> tuple[Int8[np.ndarray, "some side side"], Int8[np.ndarray, "some side side"]]:
        """Inputs and outputs on canvases, -1 outside."""
        canvases = np.full((2, len(indices), side, side), -1, np.int8)
        for row, index in enumerate(indices.tolist()):
            pair = self.pair(index)
            for canvas, grid in zip(canvases, (pair.input, pair.output), strict=True):
                assert grid is not None
                canvas[row, : grid.shape[0], : grid.shape[1]] = grid
        return canvases[0], canvases[1]

    def held_out(self, parts: int = 8) -> Bool[np.ndarray, " pairs"]:
        """One of so many parts of all inputs, by their cells: no input is on both sides."""
        return np.array([zlib.crc32(self.pair(n).input.tobytes()) % parts == 0 for n in range(len(self))])


def load_pair_dataset(path: str | Path) -> GridPairDataset:
    """The pairs of a file that `scripts/generate_rearc.py` has written."""
    try:
        with np.load(path) as file:
            names, task, sizes, cells = (file[name] for name in _FIELDS)
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no file of instances: {error}") from error
    sizes = sizes.astype(np.int64)
    needed = int((sizes[:, 0] * sizes[:, 1] + sizes[:, 2] * sizes[:, 3]).sum())
    if needed != len(cells) or len(task) != len(sizes):
        raise ValueError(f"{path}: {len(task)} pairs need {needed} cells, and there are {len(cells)}")
    return GridPairDataset(tuple(map(str, names)), task.astype(np.int64), sizes, cells)
