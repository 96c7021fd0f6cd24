"""Puzzles made in process as episodes that a language model plays.

The kinds are in `phalanx.puzzles`.
"""

from collections.abc import Iterator, Sequence

from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.tasks import PromptTokenizer, Split, TextTask, puzzles_of
from phalanx.text.env import TextVectorEnvironment

_RUN_SEEDS, _OWN = 2**40, 2**61
"""Seeds of a run's puzzles; far from those of the demonstrations of the same run's seed."""


class PuzzleSource(EpisodeSource):
    """Puzzles that are made in process."""

    def __init__(self, tasks: Sequence[TextTask], prompter: PromptTokenizer, *, compact: bool = True) -> None:
        self._tasks, self.prompter, self._compact = {task.name: task for task in tasks}, prompter, compact
        self.tasks = tuple(self._tasks)
        self.fingerprint = " ".join(f"{task.name}@{task.environment().kind.version}" for task in tasks)

    def first_seed(self, run_seed: int) -> int:
        return _OWN + _RUN_SEEDS * run_seed

    def seeds(self, task: str, split: Split, first: int = 0) -> Iterator[int]:
        found = puzzles_of(self._tasks[task], split, first_seed=first)
        return (puzzle.seed for puzzle in found)

    def begin(self, episodes: Sequence[EpisodeId]) -> TextVectorEnvironment:
        made = {}
        for name, task in self._tasks.items():
            seeds = sorted({episode.seed for episode in episodes if episode.task == name})
            puzzles = task.environment().kind.generate_batch(seeds, task.difficulty) if seeds else ()
            made.update({EpisodeId(name, puzzle.seed): puzzle for puzzle in puzzles})
        environments = [
            self._tasks[each.task].environment(prompt_format="compact" if self._compact else "full")
            for each in episodes
        ]
        for environment, episode in zip(environments, episodes, strict=True):
            environment.start(made[episode])
        return TextVectorEnvironment(environments)
