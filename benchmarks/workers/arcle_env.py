"""Step ARCLE environments with random actions in a Python loop, on one core."""

import itertools
import os
import sys

os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
# ARCLE's flood fill is recursive: up to 900 calls deep on a 30x30 grid.
sys.setrecursionlimit(10_000)

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
from arcle.envs import O2ARCEnv  # noqa: E402
from arcle.loaders import Loader  # noqa: E402
from arcle.wrappers import BBoxWrapper, PointWrapper  # noqa: E402

from benchmarks.workers import protocol  # noqa: E402
from benchmarks.workers.arc_task import checkerboard_task  # noqa: E402

# The wrappers access attributes through Gymnasium, which logs a warning each time.
gymnasium.logger.set_level(gymnasium.logger.ERROR)

COPY_FROM_INPUT = 28
SHARED_OPERATIONS = np.array([operation for operation in range(35) if operation != COPY_FROM_INPUT])
"""ARCLE's ids of the operations that all measured environments have."""
NUM_ACTIONS = 65_536
"""Number of random actions that are drawn in advance. They are used again when all have been taken."""


class SingleTask(Loader):
    """A loader that contains one task."""

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
    """Return an environment whose episode ends with the first submission, as in the other libraries."""
    environment = O2ARCEnv(data_loader=SingleTask(task), max_grid_size=grid, max_trial=1)
    wrapper = {"point": PointWrapper, "bbox": BBoxWrapper}.get(selection_format)
    return environment if wrapper is None else wrapper(environment)


def random_actions(rng: np.random.Generator, num_envs: int, grid: tuple[int, int], selection_format: str):
    """Return one random action per environment."""
    operations = rng.choice(SHARED_OPERATIONS, num_envs).tolist()
    if selection_format == "mask":
        masks = rng.integers(0, 2, (num_envs, *grid), np.int8)
        return [{"selection": mask, "operation": o} for mask, o in zip(masks, operations, strict=True)]
    corners = 1 if selection_format == "point" else 2
    cells = rng.integers(0, grid * corners, (num_envs, 2 * corners)).tolist()
    return [(*cell, operation) for cell, operation in zip(cells, operations, strict=True)]


def main() -> None:
    settings = protocol.read_settings(__doc__)
    grid, num_envs, num_steps = tuple(settings["grid"]), settings["num_envs"], settings["num_steps"]
    selection_format = settings.get("selection_format", "bbox")
    max_episode_steps = settings.get("max_episode_steps", 100)
    rng = np.random.default_rng(0)
    np.random.seed(0)  # ARCLE selects pairs with NumPy's global generator.
    environments = [
        make_environment(checkerboard_task(grid[0]), grid, selection_format) for _ in range(num_envs)
    ]
    for environment in environments:
        environment.reset()
    ages = [0] * num_envs
    checksum = 0
    # Drawn in advance: with one environment, drawing takes a third as long as a step.
    actions_of_steps = itertools.cycle(
        [
            random_actions(rng, num_envs, grid, selection_format)
            for _ in range(max(num_steps, NUM_ACTIONS // num_envs))
        ]
    )

    def run() -> None:
        nonlocal checksum
        for actions in itertools.islice(actions_of_steps, num_steps):
            for index, environment in enumerate(environments):
                observation, _, terminated, _, _ = environment.step(actions[index])
                ages[index] += 1
                if terminated or ages[index] >= max_episode_steps:
                    observation, _ = environment.reset()
                    ages[index] = 0
                checksum += int(observation["grid"][0, 0])

    protocol.serve(
        run, num_steps * num_envs, settings["seconds"], gymnasium=gymnasium.__version__, numpy=np.__version__
    )


if __name__ == "__main__":
    main()
