"""Games of a live puzzle server as episodes that a language model plays.

Connections and commands are in `phalanx.puzzles.server`.
"""

import itertools
from collections.abc import Iterator, Sequence

from pydantic import Field

from phalanx.config import Config
from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.tasks import PromptTokenizer, PuzzleServerPromptTokenizer, Split
from phalanx.puzzles.server.client import PuzzleClientConfig
from phalanx.puzzles.server.env import PuzzleServerVectorEnvironment
from phalanx.puzzles.server.episodes import move_prompt
from phalanx.puzzles.server.protocol import PuzzleDifficulty, game_id
from phalanx.text.env import TextVectorEnvironment

_FIRST: dict[Split, int] = {"held-out": 1_000_000, "valid": 2_000_000, "training": 3_000_000}
"""Where the seeds of a server's puzzles begin."""
_RUN_SEEDS = 1_000_000


class PuzzleServerConfig(Config):
    """The games of a live puzzle server."""

    address: str = ""
    """HOST:PORT of the server; without one, nothing is played there."""
    games: tuple[str, ...] = ("lights",)
    """Games by name, as `lights` or `lights:medium`."""
    connections: int = Field(default=32, ge=1)
    """Puzzles that are played at once."""
    max_steps: int = Field(default=40, ge=1)
    """Answers after which a puzzle is left."""
    max_invalid_answers: int = Field(default=3, ge=1)
    """Refused answers in a row after which it is left."""

    def client(self) -> PuzzleClientConfig:
        """Where the server is."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{self.address!r} is no HOST:PORT, as localhost:8023")
        return PuzzleClientConfig(host=host, port=int(port))


class PuzzleServerSource(EpisodeSource):
    """Games of a live server, asked as `phalanx train lm --arcade` learns them.

    Connections are made when the first puzzles begin, and stay. Splits are ranges of seeds, for to look at a
    puzzle is to ask the server for it.
    """

    def __init__(
        self, config: PuzzleServerConfig, prompter: PromptTokenizer, difficulty: str = "easy"
    ) -> None:
        self._config, self._client = config, config.client()
        self._games: dict[str, tuple[str, str]] = {}
        for named in config.games:
            game, _, level = named.partition(":")
            told = (game_id(game), PuzzleDifficulty(level or difficulty).value)
            self._games[f"{':'.join(told)}:arcade"] = told
        if len(self._games) < max(len(config.games), 1):
            raise ValueError(f"{','.join(config.games)!r} names no game, or one twice")
        self.tasks, self.most = tuple(self._games), config.connections
        self.prompter = PuzzleServerPromptTokenizer(prompter)
        self.fingerprint = f"arcade {' '.join(self.tasks)} {config.max_steps} {config.max_invalid_answers}"
        self._batch: PuzzleServerVectorEnvironment | None = None

    def first_seed(self, run_seed: int) -> int:
        return _FIRST["training"] + _RUN_SEEDS * run_seed

    def seeds(self, task: str, split: Split, first: int = 0) -> Iterator[int]:
        return itertools.count(max(first, _FIRST[split]))

    def begin(self, episodes: Sequence[EpisodeId]) -> TextVectorEnvironment:
        if self._batch is None:
            self._batch = PuzzleServerVectorEnvironment(
                next(iter(self._games.values()))[0],
                size=self.most,
                client=self._client,
                max_steps=self._config.max_steps,
                max_invalid_answers=self._config.max_invalid_answers,
                prompt=move_prompt,
            )
        self._batch.begin([(*self._games[episode.task], episode.seed) for episode in episodes])
        return self._batch

    def close(self) -> None:
        if self._batch is not None:
            self._batch.close()
            self._batch = None
