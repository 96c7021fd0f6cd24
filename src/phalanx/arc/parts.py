"""What an ARC environment is put together from: tasks, weights and rewards, and the copies that have others.

How it resets and steps is in `environment`.
"""

import dataclasses
from typing import Any, TypeVar

from jaxtyping import Array, Float32

from phalanx.arc.config import ArcConfig
from phalanx.arc.evaluation_mode import HiddenTestOutputs, hide_answers, split_answers
from phalanx.arc.reward import (
    REWARD_WEIGHTS,
    RewardFunction,
    RewardNumbers,
    as_reward,
    replace_reward_weights,
)
from phalanx.arc.state import ArcState, bound_to
from phalanx.arc.task_buffer import (
    PaddedShape,
    TaskArrays,
    TaskBuffer,
    Tasks,
    UnnamedTasks,
    as_buffer,
    with_answers,
)
from phalanx.arc.task_sampling import uniform_weights, validate_task_weights

Made = TypeVar("Made", bound="ArcParts")
"""An environment of the class that was asked."""


class ArcParts:
    """The parts of an `ArcEnvironment`, whose fields these are: changed copies, whose states are whose."""

    config: ArcConfig
    tasks: TaskBuffer | None
    arrays: TaskArrays
    weights: Float32[Array, "*groups tasks"] | None
    numbers: RewardNumbers
    reward: RewardFunction | None
    answers: HiddenTestOutputs | None

    def with_tasks(self: Made, tasks: Tasks | TaskArrays) -> Made:
        """The same environment over other tasks; weights, where there are any, become equal again.

        Tasks that find place in the room of the present ones get shapes like theirs, and need no new
        compilation; `TaskBuffer.from_tasks` makes room. Episodes that are under way belong to the tasks that
        they began with: start new ones.
        """
        if isinstance(tasks, TaskArrays):
            buffer, arrays, answers = None, tasks, self.answers
            if answers is not None:
                arrays, answers = split_answers(tasks, answers.sizes.shape[-2], self.config.grid_shape[0])
        else:
            buffer = with_answers(as_buffer(tasks))
            buffer.check(self.config)
            room = PaddedShape(*self.arrays.table.shape[-2:-1], *self.arrays.pairs.shape[-4::3])
            buffer = buffer.with_room(room) if buffer.fits(room) else buffer
            arrays, answers = hide_answers(self.config, buffer)
        weights = None if self.weights is None else uniform_weights(arrays)
        return _replace(self, tasks=buffer, arrays=arrays, weights=weights, answers=answers)

    def with_weights(self: Made, weights: object) -> Made:
        """The same environment that draws each task in proportion to its weight; None draws all equally."""
        if weights is None:
            return _replace(self, weights=None)
        room = self.arrays.table.shape[-2]
        known = room if self.tasks is None else len(self.tasks)
        return _replace(self, weights=validate_task_weights(weights, known, room))

    def with_reward(self: Made, function: RewardFunction | None = None, **numbers: Any) -> Made:
        """The same environment that pays otherwise: by a function of the `Transition`, or by other numbers.

        The numbers are `RewardConfig`'s by name, such as `step_penalty=-0.1`; they may be traced.
        """
        if function is not None and numbers:
            raise ValueError("a reward is a function or numbers of the default one; give one of them")
        if function is not None:
            return _replace(self, reward=as_reward(function))
        return _replace(self, numbers=replace_reward_weights(self.numbers, numbers), reward=None)

    @property
    def reward_numbers(self) -> dict[str, Array]:
        """What the default reward pays, by name."""
        return dict(zip(REWARD_WEIGHTS, self.numbers, strict=True))

    @property
    def task_buffer(self) -> TaskBuffer:
        """The tasks that `reset` draws from, with their ids."""
        if self.tasks is None:
            raise ValueError(
                "this environment was an argument of a compiled program (or of a tree.map): it has the "
                "arrays of its tasks, but not their names. Ask the environment that was passed"
            )
        return self.tasks

    @property
    def _shown(self) -> TaskBuffer | None:
        """The tasks that states know."""
        return self.tasks if self.tasks is None or self.answers is None else self.tasks.without_answers

    def attach_names(self, states: ArcState) -> ArcState:
        return bound_to(UnnamedTasks(self.arrays) if self.tasks is None else self._shown, states)

    def reveal(self, states: ArcState) -> ArcState:
        """The same states with the answers: what evaluation keeps from agents, for those who look on."""
        return bound_to(self.task_buffer, states)

    def detach_names(self, states: ArcState) -> ArcState:
        self._check_tasks(states)
        return bound_to(None, states)

    def _check_tasks(self, states: ArcState) -> None:
        """States of other tasks are refused where both are known; the kernels take them for invalid ones."""
        mine = self._shown
        if isinstance(states.tasks, TaskBuffer) and mine is not None and states.tasks != mine:
            raise ValueError(
                f"these states belong to other tasks than this environment's: they refer to {states.tasks}, "
                f"the environment has {mine}; start new episodes after a change of tasks"
            )


def _replace(parts: Any, **changes: Any) -> Any:
    """A copy of the environment, which is a dataclass where its parts are not."""
    return dataclasses.replace(parts, **changes)
