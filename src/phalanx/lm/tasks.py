"""Puzzle tasks by name, and splits by content hash."""

import itertools
import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from phalanx.puzzles.env import PuzzleEnvironment, PuzzleVectorEnvironment
from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds import KINDS
from phalanx.text.env import PromptFormat

Split = Literal["training", "valid", "held-out"]
ALL_PUZZLES = "puzzles"
"""The name of all kinds together."""
_PARTS = 16
_AT_ONCE = 32


class TextTask(NamedTuple):
    """Puzzles of a kind and difficulty, answered as a whole or move by move."""

    kind: str
    difficulty: str = "easy"
    turns: str = "single"

    @property
    def name(self) -> str:
        return ":".join(self)

    def environment(self, *, prompt_format: PromptFormat = "compact") -> PuzzleEnvironment:
        """One environment; a `ValueError` says what there is not."""
        return PuzzleEnvironment(self.kind, self.difficulty, turns=self.turns, prompt_format=prompt_format)

    def batch(self, size: int, *, prompt_format: PromptFormat = "compact") -> PuzzleVectorEnvironment:
        """As many environments."""
        return PuzzleVectorEnvironment(
            self.kind, self.difficulty, size=size, turns=self.turns, prompt_format=prompt_format
        )


def is_puzzles(text: str) -> bool:
    """Whether an environment's name is one or several kinds of puzzles, and not `arc` or `proofs`."""
    return all(name.partition(":")[0] in (*KINDS, ALL_PUZZLES) for name in text.split(","))


def read_tasks(text: str, difficulty: str = "easy", turns: str = "single") -> tuple[TextTask, ...]:
    """Tasks by name, `KIND[:DIFFICULTY[:TURNS]]` with commas between them; `puzzles` are all kinds.

    >>> [task.name for task in read_tasks("sudoku,sokoban:medium:multi")]
    ['sudoku:easy:single', 'sokoban:medium:multi']
    """
    tasks = []
    for part in text.split(","):
        kind, *given = part.strip().split(":")
        # What is left out between colons is as it is without them.
        rest = [word or default for word, default in zip((*given, "", ""), (difficulty, turns), strict=False)]
        for each in KINDS if kind == ALL_PUZZLES else (kind,):
            task = TextTask(each, *rest)
            task.environment()
            tasks.append(task)
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"{text!r} names a task twice")
    return tuple(tasks)


def split_of(prompt: str) -> Split:
    """Which split a puzzle belongs to, by what it looks like: equal puzzles of different seeds stay together.

    One in sixteen is held out and one in sixteen is for choosing settings; nobody learns from either.
    """
    return ("held-out", "valid", "training")[min(zlib.crc32(prompt.encode()) % _PARTS, 2)]


def puzzles_of(task: TextTask, split: Split, *, first_seed: int = 0) -> Iterator[Puzzle]:
    """The puzzles of a split, without end, in the order of their seeds."""
    environment = task.environment()
    for seed in itertools.count(first_seed, _AT_ONCE):
        for puzzle in environment.kind.generate_batch(range(seed, seed + _AT_ONCE), task.difficulty):
            if (
                split_of(environment.kind.compact_board(puzzle, environment.kind.initial_state(puzzle)))
                == split
            ):
                yield puzzle
