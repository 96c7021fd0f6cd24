"""Curriculum for text environments, which prefers tasks of medium difficulty."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool
from pydantic import Field

from phalanx.config import Config
from phalanx.text.env import EpisodeId, TextVectorEnvironment

_INITIAL_SUCCESS_RATE = 0.5


class CurriculumConfig(Config):
    """Settings for sampling tasks and episodes."""

    renamed_settings: ClassVar[Mapping[str, str]] = {
        "memory": "success_rate_ema_decay",
        "floor": "min_task_weight",
    }

    success_rate_ema_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay per update of the exponential moving average of each task's success rate."""
    min_task_weight: float = Field(default=0.1, gt=0, le=1)
    """Lower bound on a task's sampling weight `4 * p * (1 - p)`, where `p` is the task's success rate. The
    weight is 1 for a task that is solved half of the time. Because of the bound, tasks that are always or
    never solved are sampled as well."""


class Curriculum:
    """Samples the episodes of each update.

    The episodes depend only on the seed, the update number and the results recorded so far.
    """

    def __init__(self, env: TextVectorEnvironment, config: CurriculumConfig, seed: int) -> None:
        self._env, self._config, self._seed = env, config, seed
        self.success_rates = dict.fromkeys(env.tasks, _INITIAL_SUCCESS_RATE)
        """Moving average of each task's success rate, by task name."""
        self._next_seeds = dict.fromkeys(env.tasks, env.first_seed(seed))

    def sample(self, update: int, num_episodes: int) -> list[EpisodeId]:
        """Sample the episodes of an update, grouped by task. No episode is sampled twice."""
        rng = np.random.default_rng([self._seed, update])
        episodes: list[EpisodeId] = []
        rates = np.array(list(self.success_rates.values()))
        weights = np.maximum(4 * rates * (1 - rates), self._config.min_task_weight)
        counts = rng.multinomial(num_episodes, weights / weights.sum())
        for task, count in zip(self.success_rates, counts.tolist(), strict=True):
            if count:
                seeds = self._env.seeds(task, "train", self._next_seeds[task])
                new = [EpisodeId(task, seed) for seed in itertools.islice(seeds, count)]
                self._next_seeds[task] = new[-1].seed + 1
                episodes += new
        return episodes

    def record(self, episodes: Sequence[EpisodeId], solved: Bool[np.ndarray, "episodes attempts"]) -> None:
        """Update the success rates.

        Args:
            episodes: Episodes of an update.
            solved: Entry `[i, j]` is true if attempt `j` solved episode `i`.
        """
        decay = self._config.success_rate_ema_decay
        tasks = np.array([episode.task for episode in episodes])
        for task in dict.fromkeys(tasks.tolist()):
            rate = float(np.mean(solved[tasks == task]))
            self.success_rates[task] = decay * self.success_rates[task] + (1 - decay) * rate

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"success_rates": dict(self.success_rates), "next_seeds": dict(self._next_seeds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a value that `state_dict` returned."""
        self.success_rates = {task: float(state["success_rates"][task]) for task in self._env.tasks}
        self._next_seeds = {task: int(state["next_seeds"][task]) for task in self._env.tasks}
