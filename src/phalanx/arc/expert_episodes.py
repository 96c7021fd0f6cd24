"""Planned episodes as labeled steps, for imitation learning."""

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


class PlannedEpisodeSteps(eqx.Module):
    """The steps of a batch of complete episodes, as arrays. The steps of each episode are consecutive and in
    order."""

    observation: Any
    """Observation before each step, with leading axis [steps]."""
    action: Action
    """Action of each step, with leading axis [steps]."""
    episode: Int32[np.ndarray, " steps"]
    """For each step, the index of its episode in `PlannedEpisodes.plans`."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedEpisodes:
    """Episodes with planned actions that lead to the correct grid. Call `batches` to replay the episodes and
    get their steps."""

    environment: ArcEnvironment
    """Environment in which the episodes are replayed."""
    tasks: Int32[np.ndarray, " episodes"]
    """Index of each episode's task in `environment.task_buffer`."""
    pairs: Int32[np.ndarray, " episodes"]
    """Index of each episode's pair; see the `pairs` argument of `ArcEnvironment.batch_reset_to`."""
    plans: tuple[ActionPlan, ...]
    """Planned actions of each episode."""
    dropped: int
    """Number of pairs that were omitted because their plans exceed the step limit."""

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def num_steps(self) -> int:
        """Total number of steps in all episodes."""
        return sum(map(len, self.plans))

    def batches(self, batch_size: int = 256) -> Iterator[PlannedEpisodeSteps]:
        """Replay the episodes in batches and yield the steps of each batch.

        Episodes are sorted by length, so that the episodes in a batch have similar lengths.

        Args:
            batch_size: Number of episodes per batch. The last batch may be smaller.
        """
        order = np.argsort([len(plan) for plan in self.plans], kind="stable")
        step = jax.jit(self.environment.batch_step)
        for first in range(0, len(order), batch_size):
            yield self._replay(order[first : first + batch_size], batch_size, step)

    def _replay(self, episodes: np.ndarray, batch_size: int, step: Any) -> PlannedEpisodeSteps:
        # The last batch is padded with copies of its episodes, so that one compilation serves all batches.
        slots = np.resize(episodes, batch_size)
        plans = [self.plans[slot] for slot in slots]
        shape, cells = (len(plans), max(map(len, plans))), plans[0].selections
        operations = np.full(shape, -1, np.int32)  # -1 after the end of a plan
        selections = np.zeros((*shape, *cells.shape[1:]), cells.dtype)
        for row, plan in enumerate(plans):
            operations[row, : len(plan)] = plan.operations
            selections[row, : len(plan)] = plan.selections
        valid = operations >= 0
        valid[len(episodes) :] = False
        starts = jnp.asarray(self.tasks[slots]), jnp.asarray(self.pairs[slots])
        states, observations = self.environment.batch_reset_to(*starts)
        observed = []
        for time in range(operations.shape[1]):
            observed.append(jax.tree.map(np.asarray, observations))
            actions = action_from_arrays(operations[:, time], selections[:, time])
            states, observations, *_ = step(states, actions)
        for episode in episodes[~np.asarray(states.solved)[: len(episodes)]]:
            name = self.environment.task_buffer[int(self.tasks[episode])].id
            raise RuntimeError(
                f"task {name!r}: the plan for pair {self.pairs[episode]} does not end with the output"
            )
        return PlannedEpisodeSteps(
            jax.tree.map(lambda *leaves: np.stack(leaves, axis=1)[valid], *observed),
            action_from_arrays(operations[valid], selections[valid]),
            np.broadcast_to(slots[:, None], valid.shape)[valid].astype(np.int32),
        )


def plan_expert_episodes(environment: ArcEnvironment) -> PlannedEpisodes:
    """Plan an episode for every pair with which an episode of the environment can start.

    If a pair has a known solution, the solution is used; otherwise, the actions are planned. Pairs that need
    no action are omitted. Pairs whose plans exceed `max_episode_steps` are also omitted, and are counted in
    `PlannedEpisodes.dropped`. Plans end with Submit if `episode.require_submit` is set.

    Args:
        environment: Environment in training mode.

    Raises:
        ValueError: If a pair cannot be solved with the allowed operations. The message names the pair.
    """
    config = environment.config
    if config.episode.mode != "training":
        raise ValueError("expert episodes need an environment in training mode: set episode.mode=training")
    episodes: list[tuple[int, int, ActionPlan]] = []
    dropped = 0
    for index, task in enumerate(environment.task_buffer):
        for pair in range(len(task.demos or task.tests)):
            plan = solution_plan(task, pair, config, submit=config.episode.require_submit)
            if len(plan) > config.episode.max_episode_steps:
                dropped += 1
            elif len(plan):
                episodes.append((index, pair, plan))
    tasks, pairs, plans = zip(*episodes, strict=True) if episodes else ((), (), ())
    return PlannedEpisodes(
        environment, np.array(tasks, np.int32), np.array(pairs, np.int32), tuple(plans), dropped
    )
