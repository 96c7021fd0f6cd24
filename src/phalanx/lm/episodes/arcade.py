"""Games of a live puzzle server as episodes that a language model plays.

Connections and commands are in `phalanx.puzzles.server`.
"""

from collections.abc import Iterator, Sequence

from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.tasks import NEW_SPLITS, PromptTokenizer, PuzzleServerPromptTokenizer, Split
from phalanx.puzzles.server.env import PuzzleServerConfig as PuzzleServerConfig
from phalanx.text.env import TextVectorEnvironment


class PuzzleServerSource(EpisodeSource):
    """Games of a live server, asked as `phalanx train lm --arcade` learns them."""

    def __init__(
        self, config: PuzzleServerConfig, prompter: PromptTokenizer, difficulty: str = "easy"
    ) -> None:
        self._batch = config.model_copy(update={"difficulty": difficulty}).make()
        self.tasks, self.most = self._batch.tasks, config.num_connections
        self.prompter = PuzzleServerPromptTokenizer(prompter)
        self.fingerprint = self._batch.fingerprint

    def first_seed(self, run_seed: int) -> int:
        return self._batch.first_seed(run_seed)

    def seeds(self, task: str, split: Split, first: int = 0) -> Iterator[int]:
        return self._batch.seeds(task, NEW_SPLITS[split], first)

    def begin(self, episodes: Sequence[EpisodeId]) -> TextVectorEnvironment:
        self._batch.start(episodes)
        return self._batch

    def close(self) -> None:
        self._batch.close()
