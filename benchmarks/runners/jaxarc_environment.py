"""JaxARC's environment over one task, as every runner of it plays it.

Runs in JaxARC's own virtual environment; what is done with it is in the runners.
"""

import jax
from jaxarc.configs import JaxArcConfig
from jaxarc.configs.dataset_config import DatasetConfig
from jaxarc.configs.environment_config import EnvironmentConfig
from jaxarc.configs.grid_initialization_config import GridInitializationConfig
from jaxarc.envs import BboxActionWrapper, Environment, PointActionWrapper
from jaxarc.parsers.base_parser import ArcDataParserBase
from jaxarc.utils.buffer import stack_task_list
from loguru import logger

logger.remove()


def make_environment(task: dict, grid: tuple[int, int], selection_format: str, max_episode_steps: int):
    """The environment over one task, with buffers no larger than the task needs."""
    dataset = DatasetConfig(
        max_grid_height=grid[0],
        max_grid_width=grid[1],
        min_grid_height=1,
        min_grid_width=1,
        max_train_pairs=len(task["train"]),
        max_test_pairs=len(task["test"]),
    )
    config = JaxArcConfig(
        environment=EnvironmentConfig(max_episode_steps=max_episode_steps, debug_level="off"),
        dataset=dataset,
        grid_initialization=GridInitializationConfig(
            demo_weight=1.0, permutation_weight=0.0, empty_weight=0.0, random_weight=0.0
        ),
    )
    parser = ArcDataParserBase(dataset)
    buffer = stack_task_list([parser.preprocess_task_data(task, jax.random.PRNGKey(0), "task")])
    environment = Environment(config, buffer)
    wrapper = {"point": PointActionWrapper, "bbox": BboxActionWrapper}.get(selection_format)
    return environment if wrapper is None else wrapper(environment)
