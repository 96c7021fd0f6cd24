"""ARCLE in a plain Python loop over its environments, faster than Gymnasium's vector wrappers around it.

Runs in ARCLE's own virtual environment; see `protocol.py` for how it is driven.
"""

import json
import os
import pathlib
import sys

import protocol

os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
# ARCLE's flood fill recurses once for every cell of the region: up to 900 deep on a 30x30 grid.
sys.setrecursionlimit(10_000)

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
from arcle.envs import O2ARCEnv  # noqa: E402
from arcle.loaders import Loader  # noqa: E402
from arcle.wrappers import BBoxWrapper, PointWrapper  # noqa: E402

# Its wrappers read attributes through Gymnasium, which warns (slowly) at every access.
gymnasium.logger.set_level(gymnasium.logger.ERROR)

COPY_FROM_INPUT = 28
SHARED_OPERATIONS = np.array([operation for operation in range(35) if operation != COPY_FROM_INPUT])
"""ARCLE's ids of the operations that all three environments have (it has neither Cut nor their Clear)."""


class OneTask(Loader):
    """A loader that holds the one task it was given."""

    def __init__(self, task: dict) -> None:
        self._task = task
        super().__init__()

    def get_path(self, **kwargs):
        return []

    def parse(self, **kwargs):
        def grids(split: str, side: str) -> list[np.ndarray]:
            return [np.array(pair[side], dtype=np.int8) for pair in self._task[split]]

        pairs = [grids(split, side) for split in ("train", "test") for side in ("input", "output")]
        return [(*pairs, {"id": "task"})]


def make_environment(task: dict, grid: tuple[int, int], selection_format: str) -> gymnasium.Env:
    """One environment whose episode ends with the first submission, as in the other two."""
    environment = O2ARCEnv(data_loader=OneTask(task), max_grid_size=grid, max_trial=1)
    wrapper = {"point": PointWrapper, "bbox": BBoxWrapper}.get(selection_format)
    return environment if wrapper is None else wrapper(environment)


def draw(rng: np.random.Generator, batch: int, grid: tuple[int, int], selection_format: str) -> list:
    """One random action for each environment, drawn for the whole batch at once."""
    operations = rng.choice(SHARED_OPERATIONS, batch).tolist()
    if selection_format == "mask":
        masks = rng.integers(0, 2, (batch, *grid), np.int8)
        return [{"selection": mask, "operation": o} for mask, o in zip(masks, operations, strict=True)]
    corners = 1 if selection_format == "point" else 2
    cells = rng.integers(0, grid * corners, (batch, 2 * corners)).tolist()
    return [(*cell, operation) for cell, operation in zip(cells, operations, strict=True)]


def main() -> None:
    arguments = protocol.parse_arguments("ARCLE runner")
    task = json.loads(pathlib.Path(arguments.task).read_text())
    rng = np.random.default_rng(arguments.seed)
    np.random.seed(arguments.seed)  # ARCLE draws its pairs from NumPy's global state
    environments = [make_environment(task, arguments.grid, arguments.format) for _ in range(arguments.batch)]
    for environment in environments:
        environment.reset()
    ages = [0] * arguments.batch
    checksum = 0

    def call() -> None:
        nonlocal checksum
        for _ in range(arguments.steps):
            actions = draw(rng, arguments.batch, arguments.grid, arguments.format)
            for index, environment in enumerate(environments):
                observation, _, terminated, _, _ = environment.step(actions[index])
                ages[index] += 1
                if terminated or ages[index] >= arguments.max_episode_steps:
                    observation, _ = environment.reset()
                    ages[index] = 0
                checksum += int(observation["grid"][0, 0])

    protocol.serve(
        call,
        arguments.steps * arguments.batch,
        arguments.seconds,
        peer="arcle",
        steps_per_call=arguments.steps,
        compile_seconds=0.0,
        python=sys.version.split()[0],
        gymnasium=gymnasium.__version__,
        numpy=np.__version__,
    )


main()
