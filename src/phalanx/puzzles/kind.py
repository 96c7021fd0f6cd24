"""What a kind of puzzle is: a maker, rules in words, moves, a verifier and a solver; and one puzzle as data.

The kinds themselves are in `phalanx.puzzles.kinds`, episodes in `environment`.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from phalanx.puzzles import engines

State = TypeVar("State")
Move = TypeVar("Move")

MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Puzzle:
    """One puzzle; the same kind, seed and difficulty give the same one on every machine and engine."""

    kind: str
    seed: int
    difficulty: str
    size: int
    """Cells along a side; people, numbers or the like where there is no board."""
    given: tuple[int, ...]
    """What is there from the start; 0 is a blank."""
    clues: tuple[Any, ...]
    """What else the rules speak of."""
    solution: tuple[int, ...]
    """What the maker knows; a verifier accepts every answer that keeps the rules."""


class PuzzleKind(abc.ABC, Generic[State, Move]):
    """A kind of puzzle. States are values: `apply` returns another one."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for lists."""
    version: ClassVar[int] = 1
    """Raised whenever the same seeds and answers no longer give the same episodes."""
    unique: ClassVar[bool] = True
    """Whether every puzzle has one solution."""
    difficulties: ClassVar[Mapping[str, Mapping[str, int]]]
    """The parameters of each difficulty, in the order in which makers take them."""

    def generate(self, seed: int, difficulty: str = "easy") -> Puzzle:
        """The puzzle of a seed."""
        return self.generate_many([seed], difficulty)[0]

    def generate_many(self, seeds: Sequence[int], difficulty: str = "easy") -> list[Puzzle]:
        """A puzzle for each seed, in one call of the engine."""
        if difficulty not in self.difficulties:
            known = ", ".join(self.difficulties)
            raise ValueError(f"{self.name} has no difficulty {difficulty!r}; there are {known}")
        for seed in seeds:
            if not 0 <= seed <= MOST_SEED:
                raise ValueError(f"a seed is a whole number from 0 to {MOST_SEED}, got {seed}")
        made = self._make(seeds, self.parameters(difficulty))
        return [self._puzzle(seed, difficulty, record) for seed, record in zip(seeds, made, strict=True)]

    def parameters(self, difficulty: str) -> list[int]:
        """The numbers that a difficulty stands for."""
        return list(self.difficulties[difficulty].values())

    def _make(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        """What the engine makes; kinds that need none make it themselves."""
        return engines.records(self.name, seeds, parameters)

    @abc.abstractmethod
    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        """The puzzle that a record of the engine stands for."""

    @abc.abstractmethod
    def rules(self, puzzle: Puzzle) -> str:
        """The rules, with all of the puzzle that does not change."""

    @abc.abstractmethod
    def moves(self, puzzle: Puzzle) -> str:
        """How one move is written, as a sentence that begins with 'Answer with'."""

    @abc.abstractmethod
    def whole(self, puzzle: Puzzle) -> str:
        """How a whole answer is written, as a sentence that begins with 'Answer with'."""

    @abc.abstractmethod
    def start(self, puzzle: Puzzle) -> State:
        """The puzzle before the first move."""

    @abc.abstractmethod
    def draw(self, puzzle: Puzzle, state: State) -> str:
        """How things stand."""

    @abc.abstractmethod
    def parse(self, puzzle: Puzzle, state: State, text: str) -> Move:
        """The move that a text names; a `ValueError` says in words why it names none."""

    @abc.abstractmethod
    def legal_moves(self, puzzle: Puzzle, state: State) -> list[str]:
        """All moves that `parse` takes here, each written once, as `solve` writes them."""

    @abc.abstractmethod
    def apply(self, puzzle: Puzzle, state: State, move: Move) -> State:
        """The state after a move."""

    @abc.abstractmethod
    def is_solved(self, puzzle: Puzzle, state: State) -> bool:
        """Whether the rules are kept and nothing is left to do."""

    def is_lost(self, puzzle: Puzzle, state: State) -> bool:
        """Whether no move is left although the puzzle is not solved; most kinds can always be mended."""
        return False

    @abc.abstractmethod
    def solve(self, puzzle: Puzzle, state: State) -> list[str] | None:
        """Moves, as text, that solve the puzzle from a state; None where none can or none are found."""

    @abc.abstractmethod
    def read(self, puzzle: Puzzle, text: str) -> State:
        """The state that a whole answer leads to; a `ValueError` says in words why it leads to none."""

    @abc.abstractmethod
    def answer(self, puzzle: Puzzle) -> str:
        """A whole answer that is right."""

    def compact(self, puzzle: Puzzle, state: State) -> str:
        """All of the puzzle, as it stands, in few characters and without rules: what a small model reads."""
        return self.draw(puzzle, state).replace(" ", "")

    def compact_answer(self, answer: str) -> str:
        """A move or a whole answer in as few characters as `parse` and `read` take."""
        return answer

    def compact_whole(self, puzzle: Puzzle) -> str:
        """A whole answer that is right, in the form that a small model learns soonest."""
        return self.compact_answer(self.answer(puzzle))

    def teach(self, puzzle: Puzzle, state: State) -> list[str] | None:
        """As `solve`, but by moves that a small model learns soonest: they follow from what it can see."""
        return self.solve(puzzle, state)

    def verify(self, puzzle: Puzzle, text: str) -> bool:
        """Whether a whole answer is right; one that cannot be read is not."""
        try:
            return self.is_solved(puzzle, self.read(puzzle, text))
        except ValueError:
            return False

    def count_solutions(self, puzzle: Puzzle, limit: int = 2) -> int:
        """How many solutions there are, counted up to `limit`; for kinds whose puzzles have one."""
        if not self.unique:
            raise ValueError(f"the rules of {self.name} do not ask for a single solution")
        return len(
            engines.solutions(self.name, self._question(puzzle), self.parameters(puzzle.difficulty), limit)
        )

    def _question(self, puzzle: Puzzle) -> bytes:
        """What the engine's solver is told: all but the solution."""
        return bytes([*puzzle.given, *puzzle.clues])
