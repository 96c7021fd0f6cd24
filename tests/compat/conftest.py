"""What the seeds' code blocks leave behind for one another: a config, a task and a batch of states."""

import jax
import pytest

from phalanx.arc import (
    ArcEnvState,
    EpisodeConfig,
    JaxArcConfig,
    JaxArcTask,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
)
from phalanx.core import batch_reset
from tests.compat.mock_task import create_mock_task


@pytest.fixture(scope="session")
def config() -> JaxArcConfig:
    return JaxArcConfig(
        episode=EpisodeConfig(max_episode_steps=100),
        dataset=UnifiedDatasetConfig(max_grid_height=30, max_grid_width=30),
        action=UnifiedActionConfig(selection_format="point"),
    )


@pytest.fixture(scope="session")
def task() -> JaxArcTask:
    return create_mock_task()


@pytest.fixture(scope="session")
def batch_size() -> int:
    return 16


@pytest.fixture(scope="session")
def batch_states(config: JaxArcConfig, task: JaxArcTask, batch_size: int) -> ArcEnvState:
    return batch_reset(jax.random.split(jax.random.PRNGKey(42), batch_size), config, task)[0]
