"""A session in which a player edits the grid of one test pair, with undo and redo."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from phalanx.arc.actions import Action, create_bbox_action, create_mask_action, create_point_action
from phalanx.arc.config import ActionConfig, ArcConfig, EpisodeConfig, RewardConfig, SelectionFormat
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.functional import arc_reset, arc_step
from phalanx.arc.operations import Operation
from phalanx.arc.rendering.snapshot import StateSnapshot, snapshot
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask

Cells = Bool[np.ndarray, "rows columns"]
"""Boolean mask over the cells of the canvas."""


class PlayError(Exception):
    """Raised when an action is impossible in the current state. The message is shown to the player."""


class PlayTestPair(NamedTuple):
    """A test pair to solve."""

    task: ArcTask
    """Task to which the test pair belongs."""
    test: int = 0
    """Index of the test pair."""


class _Step(NamedTuple):
    """A step taken by the player. The first step of a session is the initial state, without an action."""

    state: ArcState
    """State after the step."""
    view: StateSnapshot
    """The same state, for drawing."""
    action: Action | None = None
    reward: float = 0.0


def play_config(
    selection_format: SelectionFormat = "bbox", *, require_submit: bool = True, max_steps: int = 500
) -> ArcConfig:
    """Create the environment settings for a player: one pair on a 30x30 canvas, without a reward for
    similarity.

    The environment is in training mode, so the output is accessible, but the application does not show it.

    Args:
        selection_format: `point`, `bbox` or `mask`.
        require_submit: Require the player to submit the solved grid. If false, the episode ends as soon as
            the grid is solved.
        max_steps: Maximum number of steps.
    """
    return ArcConfig(
        episode=EpisodeConfig(require_submit=require_submit, max_episode_steps=max_steps),
        action=ActionConfig(selection_format=selection_format),
        reward=RewardConfig(similarity_weight=0.0),
    )


@dataclasses.dataclass
class PlaySession:
    """A test pair and the steps that the player has taken. All states are kept, so undoing a step restores
    the exact state.

    Undone steps do not belong to the episode. They can be redone until the player takes a new step.
    """

    task: PlayTestPair
    config: ArcConfig = dataclasses.field(default_factory=play_config)

    def __post_init__(self) -> None:
        if self.config.episode.mode != "training":
            raise ValueError("episode.mode must be 'training' for playing")
        task, test = self.task
        if not 0 <= test < len(task.tests):
            raise ValueError(f"task {task.id!r} has {len(task.tests)} test pairs, got index {test}")
        # A task without demonstrations, so that the episode starts on the test pair.
        self.environment = ArcEnvironment.create(
            self.config, ArcTask(task.id, (), (task.tests[test],), task.family)
        )
        start, _ = arc_reset(jax.random.key(0), self.config, self.environment.task_buffer)
        self._steps = [_Step(start, self._snapshot(start))]
        self._undone: list[_Step] = []

    @property
    def state(self) -> ArcState:
        """Current state."""
        return self._steps[-1].state

    @property
    def states(self) -> tuple[ArcState, ...]:
        """States of the episode from the initial to the current state. Undone steps are not included."""
        return tuple(step.state for step in self._steps)

    @property
    def view(self) -> StateSnapshot:
        """Current state as NumPy arrays, for drawing."""
        return self._steps[-1].view

    @property
    def actions(self) -> tuple[Action, ...]:
        """Actions taken in the episode, except those that were undone."""
        return tuple(step.action for step in self._steps if step.action is not None)

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the episode, without undone steps."""
        return tuple(step.reward for step in self._steps[1:])

    @property
    def ended(self) -> bool:
        """True if the episode has ended, because the grid was submitted or solved or the step limit was
        reached."""
        return self.view.done

    @property
    def solved(self) -> bool:
        """True if the episode ended with the correct grid."""
        return self.view.solved

    def act(self, operation: int, cells: Cells) -> float:
        """Apply an operation to the selected cells, and return the reward.

        Args:
            operation: Id of the operation.
            cells: Mask of the selected cells of the canvas.

        Raises:
            PlayError: If the episode has ended, or if the selection format cannot express the cells.
        """
        if self.ended:
            raise PlayError("the episode has ended. u: undo the last step, r: restart, n: next task")
        action = self._action(operation, cells)
        state, _, reward, _, _ = arc_step(self.state, action, self.config)
        self._steps.append(_Step(state, self._snapshot(state), action, float(reward)))
        self._undone.clear()
        return float(reward)

    def submit(self) -> bool:
        """Submit the grid, and return whether it is correct."""
        corner = np.zeros(self.config.grid_shape, bool)
        corner[0, 0] = True
        self.act(Operation.SUBMIT, corner)
        return self.solved

    def undo(self) -> None:
        """Undo the last step, which may be a submission. Raises `PlayError` if there is no step to undo."""
        if len(self._steps) == 1:
            raise PlayError("there is nothing to undo")
        self._undone.append(self._steps.pop())

    def redo(self) -> None:
        """Redo the last undone step. Raises `PlayError` if there is no undone step."""
        if not self._undone:
            raise PlayError("there is nothing to redo")
        self._steps.append(self._undone.pop())

    def restart(self) -> None:
        """Undo all steps."""
        while len(self._steps) > 1:
            self.undo()

    def _snapshot(self, state: ArcState) -> StateSnapshot:
        task, test = self.task
        title = f"{task.id} · test {test + 1} of {len(task.tests)}"
        return dataclasses.replace(snapshot(state), title=title)

    def _action(self, operation: int, cells: Cells) -> Action:
        """Create an action in the config's selection format. Raises `PlayError` if the format cannot express
        the selected cells."""
        if cells.shape != self.config.grid_shape:
            raise ValueError(f"cells must be a mask of shape {self.config.grid_shape}, got {cells.shape}")
        selection_format = self.config.action.selection_format
        if selection_format == "mask":
            return create_mask_action(operation, cells)
        positions = np.argwhere(cells)
        if not len(positions):
            raise PlayError("no cell is selected")
        (r1, c1), (r2, c2) = positions.min(axis=0).tolist(), positions.max(axis=0).tolist()
        if selection_format == "point":
            if len(positions) > 1:
                raise PlayError("--format point selects single cells only; esc clears the selection")
            return create_point_action(operation, r1, c1)
        if not cells[r1 : r2 + 1, c1 : c2 + 1].all():
            raise PlayError("only boxes can be selected; use --format mask for single cells")
        return create_bbox_action(operation, r1, c1, r2, c2)
