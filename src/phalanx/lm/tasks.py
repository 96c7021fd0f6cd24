"""What a language model plays: puzzles by kind, difficulty and turns, its prompts, and the splits.

Demonstrations as token samples are in `demonstrations`, playing with a model in `playing`.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from phalanx.data.tokenizers import Tokenizer, load_tokenizer
from phalanx.puzzles.env import PuzzleEnvironment
from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds import KINDS
from phalanx.text import splits
from phalanx.text.env import PromptFormat

Split = Literal["training", "valid", "held-out"]
OLD_SPLITS: dict[splits.Split, Split] = {"train": "training", "validation": "valid", "test": "held-out"}
NEW_SPLITS: dict[Split, splits.Split] = {old: new for new, old in OLD_SPLITS.items()}
ALL_PUZZLES = "puzzles"
"""The name of all kinds together."""
_AT_ONCE = 32
_UNREAD = "?"


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


def read_shares(text: str, tasks: Sequence[TextTask]) -> dict[str, int]:
    """How many samples of a kind there are for one of another.

    >>> read_shares("sokoban=2", read_tasks("sudoku,sokoban"))
    {'sokoban': 2}
    """
    shares: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        kind, _, count = part.strip().partition("=")
        if kind not in {task.kind for task in tasks}:
            raise ValueError(f"{text!r} has a share for {kind!r}, which is not learned")
        if not count.isdecimal() or not int(count):
            raise ValueError(f"a share reads KIND=COUNT with a count of at least 1, got {part!r}")
        shares[kind] = int(count)
    return shares


def split_of(prompt: str) -> Split:
    """Which split a puzzle belongs to, by what it looks like: equal puzzles of different seeds stay together.

    One in sixteen is held out and one in sixteen is for choosing settings; nobody learns from either.
    """
    return OLD_SPLITS[splits.split_of(prompt)]


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


class PromptTokenizer:
    """Prompts and answers as tokens, and back."""

    def __init__(self, tokenizer: str | Tokenizer) -> None:
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        if self.tokenizer.eos_token_id is None:
            raise ValueError("answers end with the end of text, and this tokenizer has none")
        self.end: int = self.tokenizer.eos_token_id

    def prompt(self, text: str) -> list[int]:
        """What a model reads before it answers."""
        return self.tokenizer.encode(f"{text}>")

    def answer(self, text: str) -> list[int]:
        """An answer, and the end of it."""
        return [*self.tokenizer.encode(text), self.end]

    def text(self, tokens: Sequence[int]) -> str:
        """What a model wrote."""
        return self.tokenizer.decode([token for token in tokens if token != self.end])


class ReadablePromptTokenizer(PromptTokenizer):
    """Prompts of any text: a character that the tokenizer has no token for is read as a question mark."""

    def __init__(self, prompter: PromptTokenizer) -> None:
        super().__init__(prompter.tokenizer)
        self._known: dict[str, bool] = {}

    def prompt(self, text: str) -> list[int]:
        return super().prompt(self._readable(text))

    def _readable(self, text: str) -> str:
        for character in set(text) - self._known.keys():
            try:
                self._known[character] = bool(self.tokenizer.encode(character))
            except ValueError:
                self._known[character] = False
        return "".join(c if self._known[c] else _UNREAD for c in text)


class PuzzleServerPromptTokenizer(ReadablePromptTokenizer):
    """Prompts as samples of a server have them: the picture, and a command that ends with its line."""

    def __init__(self, prompter: PromptTokenizer) -> None:
        super().__init__(prompter)
        [self.end] = self.tokenizer.encode("\n")

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.encode(self._readable(text))
