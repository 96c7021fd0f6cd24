"""Handing whole answers in: the actions of an agent that knows the grid it wants, in any ARC environment.

A network that gives such answers is in `networks.arc_answers`.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int8

from phalanx.arc.actions import MaskAction, create_mask_action
from phalanx.arc.config import MAX_GRID_SIDE, ActionConfig, ArcConfig, EpisodeConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.operations import NUM_COLORS, Operation
from phalanx.arc.state import ArcState
from phalanx.arc.task_buffer import TaskBuffer
from phalanx.arc.tasks import ArcTask, GridPair

HAND_IN = ArcConfig(
    episode=EpisodeConfig(max_episode_steps=NUM_COLORS + 2, require_submit=True),
    action=ActionConfig(selection_format="mask"),
)
"""The full canvas and masks: an answer takes a resize, a fill for each color, and Submit."""
_BATCH_SIZE = 512


def submit_grids(
    pairs: Sequence[GridPair], answers: Int8[np.ndarray, "pairs 30 30"]
) -> Bool[np.ndarray, " pairs"]:
    """Which answers (-1 outside their areas) are right.

    Each is painted in an episode of its own, that begins with the pair's input, and submitted; the
    environment says at the end whether it is solved. Nothing of what it says before is looked at.
    """
    solved = np.zeros(len(pairs), bool)
    for first in range(0, len(pairs), _BATCH_SIZE):
        rows = np.arange(first, first + _BATCH_SIZE) % len(pairs)
        # The last batch is filled up, so that all compile to one program.
        tasks = [
            ArcTask(f"{n}", (), (GridPair(pairs[row].input, pairs[row].output),))
            for n, row in enumerate(rows.tolist())
        ]
        buffer = TaskBuffer.from_tasks(tasks, num_rows=MAX_GRID_SIDE)
        solved[rows] = _handed_in(ArcEnvironment.create(HAND_IN, buffer), answers[rows])
    return solved


def _handed_in(
    environment: ArcEnvironment, answers: Int8[np.ndarray, "batch 30 30"]
) -> Bool[np.ndarray, " batch"]:
    count = len(answers)
    states = _started(environment, count)
    # A resize names the last cell of the new area; the action of who has nothing to do is an invalid one.
    inside = answers >= 0
    corner = inside & (np.cumsum(inside[:, ::-1, ::-1], axis=1)[:, ::-1, ::-1] == 1)
    corner &= np.cumsum(inside[:, ::-1, ::-1], axis=2)[:, ::-1, ::-1] == 1
    states, _ = _step(environment, states, np.full(count, Operation.RESIZE), corner)
    for color in range(NUM_COLORS):
        cells = (np.asarray(states.working_grid) != answers) & (answers == color)
        operations = np.where(cells.any(axis=(1, 2)), color, -1)
        states, _ = _step(environment, states, operations, cells)
    nowhere = np.zeros(answers.shape, bool)
    return np.asarray(_step(environment, states, np.full(count, Operation.SUBMIT), nowhere)[1])


@eqx.filter_jit
def _started(environment: ArcEnvironment, count: int) -> ArcState:
    """An episode of each task's only pair."""
    states, _ = environment.batch_reset_to(jnp.arange(count), jnp.zeros(count, jnp.int32))
    return environment.detach_names(states)


def _step(
    environment: ArcEnvironment, states: ArcState, operations: np.ndarray, cells: np.ndarray
) -> tuple[ArcState, Array]:
    return _stepped(environment, states, create_mask_action(operations, cells))


@eqx.filter_jit
def _stepped(environment: ArcEnvironment, states: ArcState, action: MaskAction) -> tuple[ArcState, Array]:
    """The next states, and what the environment calls solved: never so before the hand-in."""
    states, _, _, _, info = environment.batch_step(states, action)
    return environment.detach_names(states), jnp.asarray(info.solved)
