"""`jaxarc.envs.functional`: functions that reset and step one environment or a batch of environments."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from phalanx.arc import functional as arc_functional
from phalanx.arc.actions import (
    check_bounds as check_bounds_jax,  # noqa: F401
    validate_action as validate_action_jax,
)
from phalanx.arc.config import ArcConfig
from phalanx.arc.observation import create_observation as create_observation
from phalanx.arc.operations import NUM_OPERATIONS as NUM_OPERATIONS
from phalanx.arc.state import ArcState, StepInfo as StepInfo
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from phalanx.compat.jaxarc.batch_processing import *  # noqa: F403
from phalanx.core.environment import Key, Keys
from phalanx.core.episodes import AgentFunction
from phalanx.core.vector import select_rows

arc_step = arc_functional.arc_step
batch_step = arc_functional.batch_step
run_episode_batch = arc_functional.run_episode_batch


def arc_reset(key: Key, config: ArcConfig, task_data: Any = None) -> tuple[ArcState, Any]:
    """Start one episode. `task_data` can be a task, several tasks or a task buffer."""
    return arc_functional.arc_reset(key, config, task_data)


def batch_reset(keys: Keys, config: Any, task_data: Any = None) -> tuple[PyTree, PyTree]:
    """Start one episode per key. `task_data` can be a task, several tasks or a task buffer."""
    return arc_functional.batch_reset(keys, config, task_data)


def safe_arc_step(state: ArcState, action: Any, config: ArcConfig) -> tuple[Any, ...]:
    """Take a step. If the action is invalid, return the state unchanged, with reward -1.

    The observation, the done flag and the info always describe the returned state. In contrast, `arc_step`
    counts an invalid action as a step, and its reward is `config.reward.invalid_action_penalty`. Neither
    function raises an error.
    """
    after, _, reward, _, info = arc_step(state, action, config)
    valid = validate_action_jax(action, state, config)
    kept = select_rows(valid, after, state)
    info = StepInfo.after_step(state.similarity, kept, jnp.asarray(info.operation_type))
    observation = create_observation(kept, config)
    return kept, observation, jnp.where(valid, reward, -1.0), kept.episode_done, info


def create_batch_episode_runner(
    agent_fn: AgentFunction, max_steps: int, config: arc_functional.Configured
) -> Callable[..., tuple[Any, ...]]:
    """Return a function `runner(states, agent_state=None, key=None)` that calls `run_episode_batch`."""

    def runner(states: PyTree, agent_state: PyTree = None, key: Key | None = None) -> tuple[Any, ...]:
        return run_episode_batch(states, agent_fn, max_steps, config, agent_state=agent_state, key=key)

    return runner


def create_mock_task() -> ArcTask:
    """Create a task with one demonstration pair and no test pairs.

    The input grid is a black 16x16 square. In the output grid, column 7 (counted from 0) is blue.
    """
    before = np.zeros((16, 16), np.int8)
    after = before.copy()
    after[:, 7] = 1
    return ArcTask(id="mock", demos=(GridPair(as_grid(before), as_grid(after)),), tests=())
