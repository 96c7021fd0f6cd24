"""Datasets with many pairs per task, such as RE-ARC. Each dataset is stored in one `.npz` file."""

import dataclasses
import functools
import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, Int8, Integer

from phalanx.arc.tasks import GridPair


@dataclasses.dataclass(frozen=True, eq=False)
class GridPairDataset:
    """A dataset of input-output grid pairs, each of which belongs to a task."""

    names: tuple[str, ...]
    """Names of the tasks, such as the ids of ARC tasks."""
    task: Int[np.ndarray, " pairs"]
    """Index of each pair's task in `names`."""
    sizes: Int[np.ndarray, "pairs 4"]
    """Input height, input width, output height and output width of each pair."""
    cells: Integer[np.ndarray, " cells"]
    """Colors of all grids as one flat array: for each pair, the cells of the input, row by row, followed by
    the cells of the output."""

    def __len__(self) -> int:
        return len(self.task)

    @functools.cached_property
    def _starts(self) -> Int[np.ndarray, " pairs"]:
        lengths = self.sizes[:, 0] * self.sizes[:, 1] + self.sizes[:, 2] * self.sizes[:, 3]
        return np.cumsum(lengths) - lengths

    def pair(self, index: int) -> GridPair:
        """Return the pair with the given index."""
        h, w, rows, columns = self.sizes[index].tolist()
        first = int(self._starts[index])
        grids = self.cells[first : first + h * w + rows * columns].astype(np.int8)
        return GridPair(grids[: h * w].reshape(h, w), grids[h * w :].reshape(rows, columns))

    def pad(
        self, indices: Int[np.ndarray, " some"], side: int
    ) -> tuple[Int8[np.ndarray, "some side side"], Int8[np.ndarray, "some side side"]]:
        """Return the inputs and the outputs of the given pairs, padded with -1 to `side` x `side` cells."""
        canvases = np.full((2, len(indices), side, side), -1, np.int8)
        for row, index in enumerate(indices.tolist()):
            pair = self.pair(index)
            for canvas, grid in zip(canvases, (pair.input, pair.output), strict=True):
                assert grid is not None
                canvas[row, : grid.shape[0], : grid.shape[1]] = grid
        return canvases[0], canvases[1]

    def held_out_mask(self, num_parts: int = 8) -> Bool[np.ndarray, " pairs"]:
        """Return a mask of the held-out pairs, about one in every `num_parts` pairs. The selection is based
        on a hash of the input, so if several pairs have equal inputs, either all or none of these pairs are
        held out."""
        return np.array([zlib.crc32(self.pair(n).input.tobytes()) % num_parts == 0 for n in range(len(self))])


def load_pair_dataset(path: str | Path) -> GridPairDataset:
    """Load a file written by `scripts/generate_rearc.py`."""
    try:
        with np.load(path) as file:
            names, task, sizes, cells = (file[name] for name in ("names", "task", "sizes", "cells"))
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a grid pair dataset: {error}") from error
    sizes = sizes.astype(np.int64)
    needed = int((sizes[:, 0] * sizes[:, 1] + sizes[:, 2] * sizes[:, 3]).sum())
    if needed != len(cells) or len(task) != len(sizes):
        raise ValueError(f"{path}: {len(task)} pairs need {needed} cells, but the file has {len(cells)}")
    return GridPairDataset(tuple(map(str, names)), task.astype(np.int64), sizes, cells)
