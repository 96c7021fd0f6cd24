"""Curriculum over the tasks of text environments.

It prefers tasks of medium difficulty. It can also retry starting points from which some but not all attempts
were successful. A starting point is a task with a seed (`TaskSeed`).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool
from pydantic import Field

from phalanx.config import Config
from phalanx.text.env import TaskSeed, TextVectorEnvironment

_INITIAL_SUCCESS_RATE = 0.5


class TaskCurriculumConfig(Config):
    """Settings for how often each task is sampled and how many starting points are retried."""

    success_rate_ema_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay per update of the exponential moving average of each task's success rate."""
    min_task_weight: float = Field(default=0.1, gt=0, le=1)
    """Lower bound on a task's sampling weight `4 * p * (1 - p)`, where `p` is the task's success rate. The
    weight is 1 for a task that is solved half of the time. Because of the bound, tasks that are always or
    never solved are sampled as well."""
    retry_fraction: float = Field(default=0.0, ge=0, le=1)
    """Fraction of an update's starting points that are repeated from earlier updates. Only starting points
    from which some but not all attempts were successful are repeated."""
    retry_capacity: int = Field(default=256, ge=1)
    """Maximum number of starting points that are kept for retries. The oldest ones are dropped first."""


class TaskCurriculum:
    """Samples the starting points of each update.

    They depend only on the seed, the update number and the results recorded so far.
    """

    def __init__(self, env: TextVectorEnvironment, config: TaskCurriculumConfig, seed: int) -> None:
        self._env, self._config, self._seed = env, config, seed
        self.success_rates = dict.fromkeys(env.tasks, _INITIAL_SUCCESS_RATE)
        """Moving average of each task's success rate, by task name."""
        self._next_seeds = dict.fromkeys(env.tasks, env.first_seed(seed))
        self._retry_episodes: dict[TaskSeed, None] = {}
        """Starting points to retry, oldest first. The dictionary is used as an ordered set."""

    def sample(self, update: int, num_episodes: int) -> list[TaskSeed]:
        """Sample `num_episodes` starting points for an update.

        Retries come first, followed by new starting points grouped by task.
        """
        rng = np.random.default_rng([self._seed, update])
        candidates = list(self._retry_episodes)
        num_retries = min(len(candidates), round(self._config.retry_fraction * num_episodes))
        episodes: list[TaskSeed] = []
        if num_retries:
            chosen = sorted(rng.choice(len(candidates), num_retries, replace=False).tolist())
            episodes = [candidates[index] for index in chosen]
        rates = np.array(list(self.success_rates.values()))
        weights = np.maximum(4 * rates * (1 - rates), self._config.min_task_weight)
        counts = rng.multinomial(num_episodes - num_retries, weights / weights.sum())
        for task, count in zip(self.success_rates, counts.tolist(), strict=True):
            if count:
                seeds = self._env.seeds(task, "train", self._next_seeds[task])
                new = [TaskSeed(task, seed) for seed in itertools.islice(seeds, count)]
                self._next_seeds[task] = new[-1].seed + 1
                episodes += new
        return episodes

    def record(self, episodes: Sequence[TaskSeed], solved: Bool[np.ndarray, "episodes attempts"]) -> None:
        """Update the success rates and the starting points to retry.

        Args:
            episodes: Starting points of an update.
            solved: Entry `[i, j]` is true if attempt `j` from starting point `i` was successful.
        """
        decay = self._config.success_rate_ema_decay
        results = list(zip(episodes, solved, strict=True))
        # Retries are selected based on earlier results, so they would bias the success rate of their task.
        new = [(episode.task, own) for episode, own in results if episode not in self._retry_episodes]
        for task in dict.fromkeys(task for task, _ in new):
            rate = float(np.mean([own for other, own in new if other == task]))
            self.success_rates[task] = decay * self.success_rates[task] + (1 - decay) * rate
        if not self._config.retry_fraction:
            return
        for episode, own in results:
            if own.all():
                self._retry_episodes.pop(episode, None)
            elif own.any():
                self._retry_episodes.setdefault(episode)
        num_dropped = max(len(self._retry_episodes) - self._config.retry_capacity, 0)
        for episode in list(self._retry_episodes)[:num_dropped]:
            del self._retry_episodes[episode]

    def num_retries(self, episodes: Sequence[TaskSeed]) -> int:
        """Return how many of the given starting points are retries.

        Call this method before `record`, which updates the starting points to retry.
        """
        return sum(episode in self._retry_episodes for episode in episodes)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "success_rates": dict(self.success_rates),
            "next_seeds": dict(self._next_seeds),
            "retry_episodes": [list(episode) for episode in self._retry_episodes],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a value that `state_dict` returned."""
        self.success_rates = {task: state["success_rates"][task] for task in self._env.tasks}
        self._next_seeds = dict(state["next_seeds"])
        self._retry_episodes = dict.fromkeys(TaskSeed(*episode) for episode in state["retry_episodes"])
