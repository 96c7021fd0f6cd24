"""Text environments by spec, as training and evaluation configs name them."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from phalanx.config import Config
from phalanx.lm.episodes.environments import EnvironmentSource
from phalanx.lm.episodes.puzzle_server import PuzzleServerConfig, PuzzleServerSource
from phalanx.lm.episodes.puzzles import PuzzleSource
from phalanx.lm.episodes.source import EpisodeSource
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.lm.tasks import is_puzzles, read_tasks

PUZZLE_SERVER = "puzzle_server"


class TextEnvConfig(Config):
    """A text environment."""

    renamed_settings: ClassVar[Mapping[str, str]] = {
        "connections": "num_connections",
        "max_refused": "max_invalid_answers",
    }

    id: str = ""
    """Environment spec: puzzle kinds with optional difficulty and turns (`sudoku,sokoban:easy:multi`),
    `puzzles` for all kinds, the id of a registered environment with text (`arc`, `proofs`, `arc-v2`), or
    `puzzle_server`."""
    difficulty: str = "easy"
    """Difficulty of puzzles and games whose spec does not name one."""
    turns: Literal["single", "multi"] = "single"
    """Whether puzzles are answered at once or move by move, unless the spec says so."""
    overrides: tuple[str, ...] = ()
    """Settings of a registered environment, such as `environment.max_episode_steps=20`."""
    address: str = "localhost:8023"
    """HOST:PORT of the puzzle server."""
    games: tuple[str, ...] = ("lights",)
    """Games of the puzzle server, such as `lights` or `binary:medium`."""
    num_connections: int = Field(default=32, ge=1)
    """Connections to the puzzle server: the number of episodes at the same time."""
    max_steps: int = Field(default=40, ge=1)
    """Answers after which an episode on the puzzle server is truncated."""
    max_invalid_answers: int = Field(default=3, ge=1)
    """Invalid answers in a row after which an episode on the puzzle server is truncated."""

    @property
    def is_puzzle_server(self) -> bool:
        """Whether the episodes are games of a puzzle server."""
        return self.id == PUZZLE_SERVER

    @property
    def is_puzzles(self) -> bool:
        """Whether the spec names puzzle kinds."""
        return is_puzzles(self.id)

    @property
    def spec(self) -> str:
        """The spec with the difficulty and turns of all tasks."""
        if self.is_puzzle_server or is_registered(self.id):
            return self.id
        return ",".join(task.name for task in read_tasks(self.id, self.difficulty, self.turns))

    def open(self, tokenizer: PromptTokenizer, prompt_format: str = "compact") -> EpisodeSource:
        """Open the environment."""
        if self.is_puzzle_server:
            server = PuzzleServerConfig(
                address=self.address,
                games=self.games,
                num_connections=self.num_connections,
                max_steps=self.max_steps,
                max_invalid_answers=self.max_invalid_answers,
            )
            return PuzzleServerSource(server, tokenizer, self.difficulty)
        compact = prompt_format == "compact"
        if is_registered(self.id):
            return EnvironmentSource(self.id, tokenizer, compact=compact, overrides=self.overrides)
        if self.overrides:
            raise ValueError(f"{self.id!r} are puzzles; env.overrides needs a registered id such as arc-v2")
        return PuzzleSource(read_tasks(self.id, self.difficulty, self.turns), tokenizer, compact=compact)


def is_registered(spec: str) -> bool:
    """Return whether a spec is the id of a registered environment rather than puzzle kinds."""
    return spec in ("arc", "proofs") or re.search(r"-v\d+$", spec) is not None
