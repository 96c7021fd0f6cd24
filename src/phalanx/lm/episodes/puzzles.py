"""Puzzles made in process as episodes that a language model plays.

The kinds are in `phalanx.puzzles`.
"""

from collections.abc import Iterator, Sequence

from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.tasks import NEW_SPLITS, PromptTokenizer, Split, TextTask
from phalanx.text.env import TextVectorEnvironment
from phalanx.text.env_spec import make_text_vector_env


class PuzzleSource(EpisodeSource):
    """Puzzles that are made in process."""

    def __init__(self, tasks: Sequence[TextTask], prompter: PromptTokenizer, *, compact: bool = True) -> None:
        self._batch = make_text_vector_env(
            ",".join(task.name for task in tasks), prompt_format="compact" if compact else "full"
        )
        self.tasks, self.prompter, self.fingerprint = self._batch.tasks, prompter, self._batch.fingerprint

    def first_seed(self, run_seed: int) -> int:
        return self._batch.first_seed(run_seed)

    def seeds(self, task: str, split: Split, first: int = 0) -> Iterator[int]:
        return self._batch.seeds(task, NEW_SPLITS[split], first)

    def begin(self, episodes: Sequence[EpisodeId]) -> TextVectorEnvironment:
        self._batch.start(episodes)
        return self._batch
