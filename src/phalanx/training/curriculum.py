"""Which episodes a training from reward plays: most of tasks that are solved sometimes, and some once more.

Where episodes come from is in `source`; what is learned from them, in `phalanx.training.lm.grpo`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool
from pydantic import Field

from phalanx.config import Config
from phalanx.lm.episodes.source import EpisodeId, EpisodeSource


class CurriculumConfig(Config):
    """Which puzzles are played: most those that are solved sometimes."""

    memory: float = Field(default=0.9, ge=0, lt=1)
    """How much of a task's solved rate an update leaves as it was."""
    floor: float = Field(default=0.1, gt=0, le=1)
    """The least weight of a task, where 1 is that of one that is solved half of the time."""
    replay: float = Field(default=0.0, ge=0, le=1)
    """Share of the puzzles that come again: such as some attempts solved, and not yet all."""
    replay_size: int = Field(default=256, ge=1)
    """How many of these are remembered; the oldest are forgotten first."""


class Curriculum:
    """What is known of tasks and puzzles, and what is played for it.

    The same answers lead to the same draws: those of an update follow from its number, the seed, and what is
    remembered.
    """

    def __init__(self, source: EpisodeSource, config: CurriculumConfig, seed: int) -> None:
        self._source, self._config, self._seed = source, config, seed
        self.rates = dict.fromkeys(source.tasks, 0.5)
        """How often each task is solved, as far as it is known."""
        self._next = dict.fromkeys(source.tasks, source.first_seed(seed))
        """Where the episodes of each task go on."""
        self._again: dict[EpisodeId, None] = {}
        """Episodes that some attempts solved and others did not, the oldest first."""

    def draw(self, number: int, count: int) -> list[EpisodeId]:
        """The episodes of an update, those that come again first."""
        draws = np.random.default_rng([self._seed, number])
        known = list(self._again)
        replayed = min(len(known), round(self._config.replay * count))
        chosen: list[EpisodeId] = []
        if replayed:
            chosen = [known[at] for at in sorted(draws.choice(len(known), replayed, replace=False).tolist())]
        rates = np.array(list(self.rates.values()))
        weights = np.maximum(4 * rates * (1 - rates), self._config.floor)
        counts = draws.multinomial(count - replayed, weights / weights.sum())
        for task, wanted in zip(self.rates, counts.tolist(), strict=True):
            if wanted:
                seeds = self._source.seeds(task, "training", self._next[task])
                fresh = [EpisodeId(task, seed) for seed in itertools.islice(seeds, wanted)]
                self._next[task] = fresh[-1].seed + 1
                chosen += fresh
        return chosen

    def remember(self, episodes: Sequence[EpisodeId], solved: Bool[np.ndarray, "groups attempts"]) -> None:
        """Take note of what became of the attempts at each episode."""
        memory = self._config.memory
        fresh = [(one.task, own) for one, own in zip(episodes, solved, strict=True) if one not in self._again]
        # Puzzles that come again are chosen for their rate, and say nothing of their task's.
        for task in dict.fromkeys(task for task, _ in fresh):
            now = float(np.mean([own for other, own in fresh if other == task]))
            self.rates[task] = memory * self.rates[task] + (1 - memory) * now
        if not self._config.replay:
            return
        for episode, own in zip(episodes, solved, strict=True):
            if own.all():
                self._again.pop(episode, None)
            elif own.any():
                self._again.setdefault(episode)
        for episode in list(self._again)[: max(len(self._again) - self._config.replay_size, 0)]:
            del self._again[episode]

    def known_again(self, episodes: Sequence[EpisodeId]) -> int:
        """How many of these were played before."""
        return sum(episode in self._again for episode in episodes)

    def save(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return {
            "rates": dict(self.rates),
            "seeds": dict(self._next),
            "again": [list(episode) for episode in self._again],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.rates = {task: float(saved["rates"][task]) for task in self._source.tasks}
        self._next = {task: int(saved["seeds"][task]) for task in self._source.tasks}
        self._again = {EpisodeId(str(task), int(seed)): None for task, seed in saved["again"]}
