"""One puzzle being played: every act is a step of the environment, and undo goes back to the state before.

The screen is in `application`; how an episode becomes samples is in `demonstrations`.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from phalanx.arc.actions import Action, create_bbox_action, create_mask_action, create_point_action
from phalanx.arc.config import ActionConfig, ArcConfig, EpisodeConfig, RewardConfig, SelectionFormat
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.functional import arc_reset, arc_step
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.rendering.snapshot import StateSnapshot, snapshot
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask

Cells = Bool[np.ndarray, "rows columns"]
"""Which cells of the canvas are meant."""


class PlayError(Exception):
    """Something that cannot be done now; its text says so to the player."""


class PlayTask(NamedTuple):
    """One test pair of a task."""

    task: ArcTask
    test: int = 0
    """Counted from 0."""


class _Step(NamedTuple):
    """An act, the state that followed, and what it paid."""

    action: Action
    state: ArcState
    reward: float


def play_config(
    selection_format: SelectionFormat = "bbox", *, require_submit: bool = True, max_steps: int = 500
) -> ArcConfig:
    """The environment that people play: one pair on the full canvas, and nothing paid before the end.

    The screen keeps the output from the player, who may take a submission back.
    """
    return ArcConfig(
        episode=EpisodeConfig(require_submit=require_submit, max_episode_steps=max_steps),
        action=ActionConfig(selection_format=selection_format),
        reward=RewardConfig(similarity_weight=0.0),
    )


def starting_key(seed: int) -> jax.Array:
    """The key that the first episode of an `EnvironmentStream` of this seed starts from."""
    return jax.random.fold_in(jax.random.key(seed), 0)


@dataclasses.dataclass
class PlaySession:
    """A puzzle and what was done so far. States are kept, so undo is exact and costs nothing.

    Undone steps are not part of the episode; until the next act they can be done again.
    """

    puzzle: PlayTask
    config: ArcConfig = dataclasses.field(default_factory=play_config)

    def __post_init__(self) -> None:
        if self.config.episode.mode != "training":
            raise ValueError("people play one pair at a time: episode.mode must be 'training'")
        task, test = self.puzzle
        if not 0 <= test < len(task.tests):
            raise ValueError(f"task {task.id!r} has {len(task.tests)} test pairs, there is no number {test}")
        # The pair by itself: without demonstrations an episode starts from a test.
        self.environment = ArcEnvironment.create(
            self.config, ArcTask(task.id, (), (task.tests[test],), task.family)
        )
        self.seed = 0
        """The seed of an `EnvironmentStream` whose first episode starts here."""
        self._start, _ = arc_reset(starting_key(self.seed), self.config, self.environment.task_buffer)
        self._steps: list[_Step] = []
        self._undone: list[_Step] = []
        self._view: tuple[ArcState, StateSnapshot] | None = None

    @property
    def state(self) -> ArcState:
        """Where the episode stands."""
        return self._steps[-1].state if self._steps else self._start

    @property
    def view(self) -> StateSnapshot:
        """The same on the host, to be drawn."""
        if self._view is None or self._view[0] is not self.state:
            task, test = self.puzzle
            title = f"{task.id} · test {test + 1} of {len(task.tests)}"
            self._view = (self.state, dataclasses.replace(snapshot(self.state), title=title))
        return self._view[1]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The episode so far, without what was undone."""
        return tuple(step.action for step in self._steps)

    @property
    def rewards(self) -> tuple[float, ...]:
        """What each step of the episode paid."""
        return tuple(step.reward for step in self._steps)

    @property
    def ended(self) -> bool:
        """Whether the episode is over: submitted, solved or out of steps."""
        return self.view.done

    @property
    def solved(self) -> bool:
        """Whether it ended with the right grid."""
        return self.view.solved

    @property
    def can_undo(self) -> bool:
        """Whether there is a step to take back."""
        return bool(self._steps)

    @property
    def can_redo(self) -> bool:
        """Whether there is an undone step to do again."""
        return bool(self._undone)

    def act(self, operation: int, cells: Cells) -> float:
        """Take one step with an operation on some cells of the canvas; what it paid."""
        if self.ended:
            raise PlayError("the episode is over: u takes the last step back, r starts again, n is the next")
        if not 0 <= operation < NUM_OPERATIONS:
            raise ValueError(f"operations are 0 to {NUM_OPERATIONS - 1}, got {operation}")
        action = self._action(operation, cells)
        state, _, reward, _, _ = arc_step(self.state, action, self.config)
        self._steps.append(_Step(action, state, float(reward)))
        self._undone.clear()
        return float(reward)

    def submit(self) -> bool:
        """Hand the grid in; whether it was right."""
        corner = np.zeros(self.config.grid_shape, bool)
        corner[0, 0] = True
        self.act(Operation.SUBMIT, corner)
        return self.solved

    def undo(self) -> None:
        """Go back to the state before the last step, a submission included."""
        if not self._steps:
            raise PlayError("there is nothing to undo")
        self._undone.append(self._steps.pop())

    def redo(self) -> None:
        """Do the last undone step again."""
        if not self._undone:
            raise PlayError("there is nothing to do again")
        self._steps.append(self._undone.pop())

    def restart(self) -> None:
        """Undo every step."""
        while self._steps:
            self.undo()

    def _action(self, operation: int, cells: Cells) -> Action:
        """The action in the config's format; a selection that the format cannot name is refused."""
        if cells.shape != self.config.grid_shape:
            raise ValueError(f"cells are a mask of {self.config.grid_shape}, got {cells.shape}")
        selection_format = self.config.action.selection_format
        if selection_format == "mask":
            return create_mask_action(operation, cells)
        places = np.argwhere(cells)
        if not len(places):
            raise PlayError("no cell is selected")
        (r1, c1), (r2, c2) = places.min(axis=0).tolist(), places.max(axis=0).tolist()
        if selection_format == "point":
            if len(places) > 1:
                raise PlayError("this play takes single cells (--format point); esc drops the selection")
            return create_point_action(operation, r1, c1)
        if not cells[r1 : r2 + 1, c1 : c2 + 1].all():
            raise PlayError("this play takes boxes; loose cells need --format mask")
        return create_bbox_action(operation, r1, c1, r2, c2)
