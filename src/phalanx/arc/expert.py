"""The expert that a policy is cloned from: the task's own solution, or a plan from any grid to the output.

How plans are found is in `phalanx.arc`; learning from them is in `training`.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int8, Int32

from phalanx.arc.actions import Action
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import Operation
from phalanx.arc.planner import ActionPlan, action_from_arrays, plan_grids, solution_plan
from phalanx.arc.tasks import ArcTask

NUM_CHOICES = 4
"""How many actions that are equally good a label names at most."""


class ArcLabels(NamedTuple):
    """What an expert does in each of a batch of states: one of some actions that are equally good."""

    operations: Int32[np.ndarray, "batch choices"]
    """-1 where there are no more choices; the first is what the expert does itself."""
    cells: Int32[np.ndarray, "batch choices corners"]
    """Row and column of a point, or the corners of a box."""

    def firsts(self) -> Action:
        """As a batch of actions, the first choice of each."""
        return action_from_arrays(self.operations[:, 0], self.cells[:, 0])

    def choices(self) -> Action:
        """As a batch of actions, [batch, choices]."""
        return action_from_arrays(self.operations, self.cells)


def num_interchangeable_steps(plan: ActionPlan, at: int) -> int:
    """How many of the next steps of a plan may come in any order: fills of one cell each, all different.

    >>> equally_good(Plan(np.array([3, 1, 34], np.int32), np.array([[0, 0], [0, 1], [0, 0]], np.int32)), 0)
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
    """Knows what to do next in a batch of episodes.

    As long as an episode follows the solution of its pair, the solution goes on; from where it has left it, a
    plan leads from the grid as it stands to the output. A grid that is right is handed in.
    """

    config: ArcConfig
    tasks: tuple[ArcTask, ...]
    """The environment's, by index."""
    solutions: dict[tuple[int, int], ActionPlan] = dataclasses.field(default_factory=dict)
    """Those that were asked for, by task and pair."""

    def solution(self, task: int, pair: int) -> ActionPlan:
        """A pair's solution, with the hand-in."""
        if (task, pair) not in self.solutions:
            self.solutions[task, pair] = solution_plan(self.tasks[task], pair, self.config, submit=True)
        return self.solutions[task, pair]

    def labels(
        self,
        tasks: Int[np.ndarray, " batch"],
        pairs: Int[np.ndarray, " batch"],
        grids: Int8[np.ndarray, "batch rows columns"],
        followed: Int[np.ndarray, " batch"],
    ) -> ArcLabels:
        """The next step of each episode.

        Args:
            tasks: each episode's task.
            pairs: its pair, demonstrations counted first.
            grids: its working grid, -1 outside the area.
            followed: how many steps of the solution it has followed; -1 where it has left it.
        """
        corners = 2 if self.config.action.selection_format == "point" else 4
        operations = np.full((len(tasks), NUM_CHOICES), -1, np.int32)
        cells = np.zeros((len(tasks), NUM_CHOICES, corners), np.int32)
        inside = grids >= 0
        heights, widths = inside.any(axis=2).sum(axis=1), inside.any(axis=1).sum(axis=1)
        for row, (task, pair, at) in enumerate(
            zip(tasks.tolist(), pairs.tolist(), followed.tolist(), strict=True)
        ):
            if at >= 0:
                plan = self.solution(task, pair)
            else:
                output = self.tasks[task].pairs[pair].output
                assert output is not None  # the environment refuses such tasks
                grid = np.ascontiguousarray(grids[row, : heights[row], : widths[row]])
                plan, at = plan_grids(grid, output, self.config), 0
            if at < len(plan):
                good = num_interchangeable_steps(plan, at)
                operations[row, :good] = plan.operations[at : at + good]
                cells[row, :good] = plan.selections[at : at + good]
            else:
                operations[row, 0] = Operation.SUBMIT
        return ArcLabels(operations, cells)

    def follow(
        self,
        followed: Int[np.ndarray, " batch"],
        right: Bool[np.ndarray, " batch"],
        fresh: Bool[np.ndarray, " batch"],
    ) -> Int[np.ndarray, " batch"]:
        """How far solutions are followed after a step that was `right` or not; 0 for a new episode."""
        return np.where(fresh, 0, np.where(right & (followed >= 0), followed + 1, -1))
