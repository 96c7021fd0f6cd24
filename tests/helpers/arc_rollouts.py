"""Run a backend or the reference implementation on batches and return NumPy arrays."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import batch_reset, batch_step
from phalanx.arc.actions import BboxAction, MaskAction, PointAction
from phalanx.arc.config import ArcConfig
from phalanx.arc.task_buffer import TaskBuffer
from phalanx.arc.tasks import ArcTask
from phalanx.native import is_native_available, native_unavailable_reason
from tests.helpers.arc_grids import mask, text
from tests.reference.arc import OracleState, reset_oracle, start_candidates, step_oracle, views_of

BACKENDS = ("native", "xla")
FORMATS = ("point", "bbox", "mask")
STATE_FIELDS = (
    *("working_grid", "target_grid", "input_grid"),
    *("working_grid_mask", "target_grid_mask", "input_grid_mask"),
    *("selected", "clipboard", "similarity_score", "step_count", "episode_done", "terminated", "truncated"),
    *("solved", "solved_pairs", "last_operation", "pair_index", "height", "width"),
)
INFO_FIELDS = (
    *("similarity", "similarity_improvement", "operation_type", "step_count"),
    *("episode_done", "terminated", "truncated", "solved"),
)


def skip_without(backend: str) -> None:
    """Skip the calling test if the native backend is unavailable, with the reason."""
    if backend == "native" and not is_native_available():
        pytest.skip(f"native backend: {native_unavailable_reason()}")


def batch_action(
    action_format: str, operations: Any, selections: Any
) -> PointAction | BboxAction | MaskAction:
    """Create a batch of actions; selections are [B, 2], [B, 4] or [B, H, W]."""
    ids = np.asarray(operations, np.int32)
    if action_format == "mask":
        return MaskAction(*jax.device_put((ids, np.asarray(selections, bool))))
    columns = jax.device_put((ids, *np.asarray(selections, np.int32).T))
    return PointAction(*columns) if action_format == "point" else BboxAction(*columns)


@jax.jit
def _view(states: Any) -> dict[str, jax.Array]:
    return {field: getattr(states, field) for field in (*STATE_FIELDS, "task_index")}


def view(states: Any) -> dict[str, np.ndarray]:
    """Return all public properties of a state or a batch of states."""
    return jax.tree.map(np.asarray, _view(states))


@functools.partial(jax.jit, static_argnums=1)
def _property(states: Any, name: str) -> jax.Array:
    return getattr(states, name)


def read(states: Any, name: str) -> np.ndarray:
    """Return one property of a state or a batch of states, computed by compiled code."""
    return np.asarray(_property(states, name))


def info_view(info: Any) -> dict[str, np.ndarray]:
    return {field: np.asarray(getattr(info, field)) for field in INFO_FIELDS}


@jax.jit
def _rows(states: Any, rows: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[rows], states)


class Starts:
    """Return initial states with the given tasks and pairs.

    Task and pair are drawn from the key, so a large batch is drawn and the requested states are selected.
    """

    def __init__(self, config: ArcConfig, tasks: TaskBuffer) -> None:
        self.states, _ = batch_reset(jax.random.split(jax.random.PRNGKey(0), 4096), config, tasks)
        starts = zip(
            np.asarray(self.states.task_index).tolist(),
            np.asarray(self.states.pair_index).tolist(),
            strict=True,
        )
        self.rows = {start: row for row, start in enumerate(starts)}

    def at(self, starts: Sequence[tuple[int, int]]) -> Any:
        """Return a batch of states; state i has the task and pair `starts[i]`."""
        return _rows(self.states, np.array([self.rows[start] for start in starts], np.int32))


class Player:
    """Runs one environment as a batch of one, so that all its tests share one compilation."""

    def __init__(self, backend: str, config: ArcConfig, tasks: Sequence[ArcTask]) -> None:
        skip_without(backend)
        self.config = config.model_copy(update={"backend": backend})
        self.tasks = TaskBuffer.from_tasks(tasks)
        self.starts = Starts(self.config, self.tasks)

    def start(self, task_id: str, pair: int = 0) -> Any:
        """Return the initial state of a pair of a task."""
        return self.starts.at([(self.tasks.index_of(task_id), pair)])

    def play(self, state: Any, *steps: tuple[int, Any]) -> tuple[Any, Any, float, bool, Any]:
        """Take steps (operation, selection) and return the result of the last one.

        Selections have the format of the config; a mask may be text.
        """
        result: Any = None
        for operation, cells in steps:
            selection = mask(cells, self.config.grid_shape) if isinstance(cells, str) else np.asarray(cells)
            action = batch_action(self.config.action.selection_format, [operation], selection[None])
            result = batch_step(state, action, self.config)
            state = result[0]
        state, observation, reward, done, info = result
        return state, observation, float(reward[0]), bool(done[0]), info


def working(state: Any) -> str:
    """Format the working grid of a batch of one."""
    return text(read(state, "working_grid")[0])


_draw_bits = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32)))


def oracle_starts(
    keys: jax.Array, tasks: Sequence[ArcTask], config: ArcConfig, weights: Sequence[int] | None = None
) -> list[OracleState]:
    """Return the expected initial states of keys. Weights are integers, so that nothing is rounded."""
    bits = np.asarray(_draw_bits(keys))
    states = []
    for for_task, for_pair in bits.tolist():
        if weights is None:
            task = tasks[for_task % len(tasks)]
        else:
            position = (for_task >> 8) * sum(weights) / 2**24
            ends = np.cumsum(weights)
            task = next(task for task, end in zip(tasks, ends, strict=True) if position < end)
        candidates = start_candidates(task, config)
        noise = (for_task * 0x85EBCA6B % 2**32) ^ for_pair
        # In evaluation mode, a task starts with its first test pair.
        chosen = 0 if config.episode.mode == "evaluation" else for_pair % len(candidates)
        states.append(reset_oracle(task, candidates[chosen], config, noise))
    return states


def oracle_batch_step(
    states: Sequence[OracleState], action_format: str, operations: Any, selections: Any, config: ArcConfig
) -> tuple[list[OracleState], np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Step a batch with the reference implementation: states, rewards, dones and the fields of `StepInfo`."""
    results = [
        step_oracle(state, action_format, int(operation), selection, config)
        for state, operation, selection in zip(states, operations, selections, strict=True)
    ]
    infos = {field: np.array([info[field] for *_, info in results]) for field in INFO_FIELDS}
    rewards = np.array([reward for _, reward, _, _ in results], np.float32)
    return [after for after, *_ in results], rewards, np.array([done for _, _, done, _ in results]), infos


def oracle_view(states: Sequence[OracleState], config: ArcConfig) -> dict[str, np.ndarray]:
    """Return a batch of the reference implementation in the format of `view`."""
    views = views_of(states, config)
    return {field: views[field] for field in STATE_FIELDS}
