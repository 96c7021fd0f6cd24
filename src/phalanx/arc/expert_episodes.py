"""Demonstrations: what an environment shows while plans solve its pairs, for learning by imitation.

Plans themselves are made in `plans`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from phalanx.arc.actions import Action
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.planner import ActionPlan, action_from_arrays, solution_plan


class ExpertEpisodeBatch(eqx.Module):
    """Steps of whole episodes, one episode after the other."""

    observation: Any
    """What the agent sees before each step, [steps, ...]."""
    action: Action
    """What the plan does then, [steps]."""
    episode: Int32[np.ndarray, " steps"]
    """Which episode each step belongs to."""


@dataclasses.dataclass(frozen=True, eq=False)
class ExpertEpisodes:
    """Episodes that end with the right grid, ready to be replayed."""

    environment: ArcEnvironment
    """Where they are replayed."""
    tasks: Int32[np.ndarray, " episodes"]
    """Each episode's task, by its index in the environment's buffer."""
    pairs: Int32[np.ndarray, " episodes"]
    """Its pair, counted as `batch_reset_to` does."""
    plans: tuple[ActionPlan, ...]
    """Its actions."""
    dropped: int
    """How many pairs were left out because their plans are longer than an episode may be."""

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def num_steps(self) -> int:
        """Steps of all episodes."""
        return sum(map(len, self.plans))

    def batches(self, batch_size: int = 256) -> Iterator[ExpertEpisodeBatch]:
        """Replay the episodes, so many side by side; each batch has all the steps of its episodes.

        Short episodes come first, so that those of a batch are about equally long.
        """
        order = np.argsort([len(plan) for plan in self.plans], kind="stable")
        step = jax.jit(self.environment.batch_step)
        for first in range(0, len(order), batch_size):
            yield self._replay(order[first : first + batch_size], batch_size, step)

    def _replay(self, episodes: np.ndarray, batch_size: int, step: Any) -> ExpertEpisodeBatch:
        # The last batch is filled up with episodes of its own, so that all compile to one program.
        slots = np.resize(episodes, batch_size)
        operations, selections = self._padded(slots)
        wanted = operations >= 0
        wanted[len(episodes) :] = False
        states, observations = self.environment.batch_reset_to(
            jnp.asarray(self.tasks[slots]), jnp.asarray(self.pairs[slots])
        )
        seen = []
        for time in range(operations.shape[1]):
            seen.append(jax.tree.map(np.asarray, observations))
            actions = action_from_arrays(operations[:, time], selections[:, time])
            states, observations, *_ = step(states, actions)
        self._check(np.asarray(states.working_grid)[: len(episodes)], episodes)
        return ExpertEpisodeBatch(
            jax.tree.map(lambda *leaves: np.stack(leaves, axis=1)[wanted], *seen),
            action_from_arrays(operations[wanted], selections[wanted]),
            np.broadcast_to(slots[:, None], wanted.shape)[wanted].astype(np.int32),
        )

    def _padded(self, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Operations and cells, [episodes, steps, ...]; where a plan has ended, an invalid operation."""
        plans = [self.plans[episode] for episode in episodes]
        shape = len(plans), max(map(len, plans))
        cells = plans[0].selections
        operations = np.full(shape, -1, np.int32)
        selections = np.zeros((*shape, *cells.shape[1:]), cells.dtype)
        for row, plan in enumerate(plans):
            operations[row, : len(plan)] = plan.operations
            selections[row, : len(plan)] = plan.selections
        return operations, selections

    def _check(self, grids: np.ndarray, episodes: np.ndarray) -> None:
        """A demonstration that ends with a wrong grid would teach what is wrong."""
        for grid, episode in zip(grids, episodes, strict=True):
            task = self.environment.task_buffer[int(self.tasks[episode])]
            output = (task.demos or task.tests)[int(self.pairs[episode])].output
            assert output is not None  # the environment refuses such tasks
            expected = np.full_like(grid, -1)
            expected[: output.shape[0], : output.shape[1]] = output
            if not np.array_equal(grid, expected):
                raise RuntimeError(f"task {task.id!r}: the plan for pair {self.pairs[episode]} is wrong")


def plan_expert_episodes(environment: ArcEnvironment, *, submit: bool | None = None) -> ExpertEpisodes:
    """Plan every pair that the environment's episodes start from, in its action format and operations.

    Tasks that bring solutions are solved by them, other pairs by `plan_pair`. Pairs whose plans take more
    than `max_episode_steps` are dropped and counted; pairs that need no step at all are left out. Where a
    pair cannot be solved with the operations that the config allows, an error names it.

    Args:
        environment: over any tasks, in training mode.
        submit: whether plans hand their grid in; None does so where the config requires it.
    """
    config = environment.config
    if config.episode.mode != "training":
        raise ValueError(
            f"demonstrations come from an environment in training mode, not {config.episode.mode!r}"
        )
    hand_in = config.episode.require_submit if submit is None else submit
    found: list[tuple[int, int, ActionPlan]] = []
    dropped = 0
    for index, task in enumerate(environment.task_buffer):
        for pair in range(len(task.demos or task.tests)):
            plan = solution_plan(task, pair, config, submit=hand_in)
            if len(plan) > config.episode.max_episode_steps:
                dropped += 1
            elif len(plan):
                found.append((index, pair, plan))
    tasks, pairs, plans = zip(*found, strict=True) if found else ((), (), ())
    return ExpertEpisodes(
        environment, np.array(tasks, np.int32), np.array(pairs, np.int32), tuple(plans), dropped
    )
