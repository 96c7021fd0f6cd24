"""The ARC expert, which follows the known solution of a pair. If an episode has deviated from the solution,
the expert plans actions that lead from the current grid to the output."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Bool, Int

from phalanx.arc.actions import Action
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import Operation
from phalanx.arc.planner import ActionPlan, action_from_arrays, plan_grids, solution_plan
from phalanx.arc.state import ArcState, state_fields
from phalanx.arc.tasks import ArcTask
from phalanx.core.expert import ExpertLabels

NUM_CHOICES = 4
"""Maximum number of equally good actions with which the expert labels a state."""
Progress = Int[np.ndarray, " batch"]
"""For each episode, the number of solution steps taken so far; -1 if the episode has deviated from the
solution."""


def num_interchangeable_steps(plan: ActionPlan, at: int) -> int:
    """Count how many consecutive steps of a plan, starting with step `at`, can be executed in any order.
    Steps are interchangeable if each of them fills a different single cell. The result is at least 1 and at
    most `NUM_CHOICES`.

    >>> operations, cells = np.array([3, 1, 34], np.int32), np.array([[0, 0], [0, 1], [0, 0]], np.int32)
    >>> num_interchangeable_steps(ActionPlan(operations, cells), 0)
    2
    """
    cells: set[tuple[int, ...]] = set()
    for operation, corners in zip(plan.operations[at:].tolist(), plan.selections[at:].tolist(), strict=True):
        single = corners[:2] == corners[-2:]
        if operation > Operation.FILL_9 or not single or tuple(corners) in cells:
            break
        cells.add(tuple(corners))
    return max(1, min(len(cells), NUM_CHOICES))


@dataclasses.dataclass
class ArcExpert:
    """Labels states with the actions that an expert would take.

    While an episode follows the solution of its pair, the expert continues the solution. Once the episode
    deviates, the expert plans actions that turn the current grid into the output. When the grid is correct,
    the expert submits it. The expert must remember how many solution steps have been taken, because some
    steps, such as Copy, leave the grid unchanged. Without this memory, the expert would repeat these steps
    forever.
    """

    config: ArcConfig
    tasks: Sequence[ArcTask]
    """Tasks of the environment, in the order of their indices."""
    solutions: dict[tuple[int, int], ActionPlan] = dataclasses.field(default_factory=dict)
    """Cache of solutions, keyed by (task index, pair index)."""

    def __post_init__(self) -> None:
        episode, allowed = self.config.episode, self.config.action.operations
        if episode.mode != "training":
            raise ValueError("the expert needs the outputs: set env.episode.mode=training")
        if not episode.require_submit:
            raise ValueError("the expert submits its grid: set env.episode.require_submit=true")
        if Operation.SUBMIT not in allowed:
            hint = "add 34 (Submit) to env.action.allowed_operations"
            raise ValueError(f"the expert submits its grid: {hint}, got {allowed}")

    def solution(self, task: int, pair: int) -> ActionPlan:
        """Return the solution of a pair as a plan that ends with Submit.

        Args:
            task: Index of the task.
            pair: Index of the pair in `ArcTask.pairs`.
        """
        if (task, pair) not in self.solutions:
            self.solutions[task, pair] = solution_plan(self.tasks[task], pair, self.config, submit=True)
        return self.solutions[task, pair]

    def init(self, states: ArcState) -> Progress:
        return np.zeros(len(states.task_index), np.int64)

    def label(self, states: ArcState, memory: Progress) -> ExpertLabels:
        tasks, pairs, grids = jax.device_get(
            state_fields(states, ("task_index", "pair_index", "working_grid"))
        )
        corners = 2 if self.config.action.selection_format == "point" else 4
        operations = np.full((len(tasks), NUM_CHOICES), -1, np.int32)
        cells = np.zeros((len(tasks), NUM_CHOICES, corners), np.int32)
        inside = grids >= 0
        heights, widths = inside.any(axis=2).sum(axis=1), inside.any(axis=1).sum(axis=1)
        episodes = zip(tasks.tolist(), pairs.tolist(), memory.tolist(), strict=True)
        for row, (task, pair, at) in enumerate(episodes):
            if at >= 0:
                plan = self.solution(task, pair)
            else:
                output = self.tasks[task].pairs[pair].output
                assert output is not None  # the environment rejects such tasks
                grid = np.ascontiguousarray(grids[row, : heights[row], : widths[row]])
                plan, at = plan_grids(grid, output, self.config), 0
            if at < len(plan):
                good = num_interchangeable_steps(plan, at)
                operations[row, :good] = plan.operations[at : at + good]
                cells[row, :good] = plan.selections[at : at + good]
            else:
                operations[row, 0] = Operation.SUBMIT
        return ExpertLabels(action_from_arrays(operations, cells), operations >= 0)

    def must_act(self, actions: Action, labels: ExpertLabels) -> Bool[np.ndarray, " batch"]:
        """Return a mask of the episodes in which the expert must act, because the policy would submit a wrong
        grid. A wrong submission ends the episode, and the policy learns more if the episode continues."""
        submits = np.asarray(actions.operation) == Operation.SUBMIT
        return submits & (np.asarray(labels.actions.operation)[:, 0] != Operation.SUBMIT)

    def advance(
        self, memory: Progress, labels: ExpertLabels, actions: Action, reset: Bool[np.ndarray, " batch"]
    ) -> Progress:
        """Return the updated progress of each episode; see `Progress`. If an episode has followed the
        solution so far and the action equals the expert's first choice, its progress increases by one;
        otherwise, it becomes -1. The progress of a new episode is 0."""
        expected = jax.tree.map(lambda field: np.asarray(field)[:, 0], labels.actions)
        equal = jax.tree.map(lambda own, other: np.asarray(own) == other, actions, expected)
        same = np.logical_and.reduce(jax.tree.leaves(equal))
        return np.where(reset, 0, np.where(same & (memory >= 0), memory + 1, -1))
