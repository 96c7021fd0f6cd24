"""`PuzzleKind`, the base class for puzzle kinds such as sudoku, and `Puzzle`, the data of one puzzle."""

import abc
import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from phalanx.native import require_native
from phalanx.text.answers import quote

State = TypeVar("State", bound=Sized)
Move = TypeVar("Move")

_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Puzzle:
    """One puzzle. The same kind, seed and difficulty give the same puzzle on every machine."""

    kind: str
    """Name of the puzzle kind."""
    seed: int
    """Seed from which the puzzle was generated."""
    difficulty: str
    """Name of the difficulty, such as `easy`. It is a key of `PuzzleKind.difficulties`."""
    size: int
    """Side length of the board in cells. For kinds without a board, the number of people (knights) or of
    numbers (countdown)."""
    given: tuple[int, ...]
    """Initial contents of the cells, in row-major order. What the integers mean depends on the kind. In most
    kinds, 0 is a blank cell. In countdown, these are the numbers to combine."""
    clues: tuple[Any, ...]
    """Additional data for this puzzle, such as inequality signs, in a format that depends on the kind. It may
    be empty."""
    solution: tuple[int, ...]
    """Solution that the generator found, in a format that depends on the kind. It is empty if the generator
    does not provide one. Any solution that satisfies the rules is accepted, not only this one."""


class PuzzleKind(abc.ABC, Generic[State, Move]):
    """A kind of puzzle, such as sudoku: its generator, rules, moves, verifier and solver.

    A state is the current position of a puzzle, and a move changes it. Their types depend on the kind. States
    are immutable, so `apply` returns a new state.
    """

    name: ClassVar[str]
    """Name of the kind in environment names, such as `sudoku`."""
    description: ClassVar[str]
    """One-line description for listings."""
    version: ClassVar[int] = 1
    """Version of the kind. Increment it when the same seeds and answers no longer give the same episodes."""
    has_unique_solution: ClassVar[bool] = True
    """True if every generated puzzle has exactly one solution."""
    difficulties: ClassVar[Mapping[str, Mapping[str, int]]]
    """For each difficulty, the parameters of the generator by name, in the order in which the generator takes
    them."""

    def generate(self, seed: int, difficulty: str = "easy") -> Puzzle:
        """Generate the puzzle for a seed, which is an integer from 0 to 2**63 - 1."""
        return self.generate_batch([seed], difficulty)[0]

    def generate_batch(self, seeds: Sequence[int], difficulty: str = "easy") -> list[Puzzle]:
        """Generate one puzzle per seed with a single call to the generator, which is faster than a loop."""
        self.check_difficulty(difficulty)
        for seed in seeds:
            if not 0 <= seed <= _MAX_SEED:
                raise ValueError(f"seed must be an integer from 0 to {_MAX_SEED}, got {seed}")
        records = self._generate_records(seeds, self.parameters(difficulty))
        return [
            self._from_record(seed, difficulty, record) for seed, record in zip(seeds, records, strict=True)
        ]

    def check_difficulty(self, difficulty: str) -> None:
        """Raise `ValueError` if the kind has no such difficulty."""
        if difficulty not in self.difficulties:
            known = ", ".join(self.difficulties)
            raise ValueError(f"{self.name} has no difficulty {difficulty!r}; choose from {known}")

    def parameters(self, difficulty: str) -> list[int]:
        """Return the generator parameters of a difficulty, in the order of its entry in `difficulties`."""
        return list(self.difficulties[difficulty].values())

    def _generate_records(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        """Call the generator, and return one record per seed.

        A record is the raw output of the generator for one puzzle, which `_from_record` converts to a
        `Puzzle`. By default, the compiled generator is called, whose records are bytes. Override this method
        for a generator that is written in Python.
        """
        native = require_native("puzzle generation")
        records: list[bytes] = native.generate_puzzles(self.name, list(seeds), list(parameters))
        return records

    @abc.abstractmethod
    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        """Convert a record from the generator to a puzzle."""

    @abc.abstractmethod
    def rules(self, puzzle: Puzzle) -> str:
        """Return the rules as text for the model. They may contain clues of this puzzle."""

    @abc.abstractmethod
    def move_format(self, puzzle: Puzzle) -> str:
        """Return instructions for the model on how to write one move. They begin with "Answer with"."""

    @abc.abstractmethod
    def answer_format(self, puzzle: Puzzle) -> str:
        """Return instructions for the model on how to write a solution. They begin with "Answer with"."""

    def initial_state(self, puzzle: Puzzle) -> State:
        """Return the state before the first move. By default, it is `puzzle.given`."""
        return puzzle.given  # type: ignore[return-value]

    @abc.abstractmethod
    def draw_board(self, puzzle: Puzzle, state: State) -> str:
        """Draw the current state as text."""

    @abc.abstractmethod
    def parse_move(self, puzzle: Puzzle, state: State, text: str) -> Move:
        """Parse one move.

        Raises:
            ValueError: If the text is not a legal move. The message is shown to the model.
        """

    @abc.abstractmethod
    def legal_moves(self, puzzle: Puzzle, state: State) -> list[str]:
        """Return all moves that are legal in this state, as strings that `parse_move` accepts.

        Each move is listed once, in the notation that `solve` uses.
        """

    @abc.abstractmethod
    def apply(self, puzzle: Puzzle, state: State, move: Move) -> State:
        """Return the state after a move."""

    @abc.abstractmethod
    def is_solved(self, puzzle: Puzzle, state: State) -> bool:
        """Return whether a state is a solution.

        Any state that satisfies the rules is a solution, not only the one that the generator found.
        """

    def is_lost(self, puzzle: Puzzle, state: State) -> bool:
        """Return True if it is known that the puzzle can no longer be solved from this state.

        The default implementation returns False.
        """
        return False

    @abc.abstractmethod
    def solve(self, puzzle: Puzzle, state: State) -> list[str] | None:
        """Return moves that solve the puzzle from this state, or None if no solution is found.

        The moves are strings that `parse_move` accepts.
        """

    def parse_answer(self, puzzle: Puzzle, text: str) -> State:
        """Parse a complete solution and return the state that it leads to. The solution may be wrong.

        By default, each line of a solution is a move. The number of lines must not exceed the length of the
        initial state, which is the number of cells in most kinds.

        Raises:
            ValueError: If the text cannot be parsed. The message is shown to the model.
        """
        state = self.initial_state(puzzle)
        for line in split_lines(text, len(state)):
            state = self.apply(puzzle, state, self.parse_move(puzzle, state, line))
        return state

    def solution_text(self, puzzle: Puzzle) -> str:
        """Return a correct solution in the format that `answer_format` describes.

        By default, it has one move per line.
        """
        return "\n".join(self.solve(puzzle, self.initial_state(puzzle)) or ())

    def compact_board(self, puzzle: Puzzle, state: State) -> str:
        """Draw the puzzle and its state compactly and without the rules, for small models.

        If two drawings are equal, their puzzles and states are equivalent. The drawing of the initial state
        therefore determines whether a puzzle is in the train, validation or test split.
        """
        return self.draw_board(puzzle, state).replace(" ", "")

    def compact_answer(self, answer: str) -> str:
        """Shorten a move or solution such that `parse_move` or `parse_answer` still accepts it.

        By default, it is returned unchanged.
        """
        return answer

    def compact_solution(self, puzzle: Puzzle) -> str:
        """Return a correct solution in the format that is easiest for a small model to learn."""
        return self.compact_answer(self.solution_text(puzzle))

    def solve_as_expert(self, puzzle: Puzzle, state: State) -> list[str] | None:
        """Return moves that solve the puzzle and that a small model can learn to predict from the board.

        If no solution is found, the result is None. The default implementation returns the result of `solve`.
        """
        return self.solve(puzzle, state)

    def verify(self, puzzle: Puzzle, text: str) -> bool:
        """Return whether `text` is a complete and correct solution of the puzzle."""
        try:
            return self.is_solved(puzzle, self.parse_answer(puzzle, text))
        except ValueError:
            return False

    def count_solutions(self, puzzle: Puzzle, limit: int = 2) -> int:
        """Return the number of solutions. Counting stops at `limit`, so the result is at most `limit`.

        Raises:
            ValueError: If `has_unique_solution` is False for this kind.
        """
        if not self.has_unique_solution:
            raise ValueError(
                f"{self.name} puzzles may have several solutions; only unique solutions can be counted"
            )
        parameters = self.parameters(puzzle.difficulty)
        return len(solve_puzzle(self.name, self._solver_input(puzzle), parameters, limit))

    def _solver_input(self, puzzle: Puzzle) -> bytes:
        """Encode the puzzle, without its solution, as input for the compiled solver."""
        return bytes([*puzzle.given, *puzzle.clues])


def split_lines(text: str, max_lines: int) -> list[str]:
    """Return the nonempty lines of a string, without surrounding whitespace.

    Raises:
        ValueError: If there are more than `max_lines` such lines.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > max_lines:
        raise ValueError(f"a whole answer has at most {max_lines} lines here, got {len(lines)}")
    return lines


def match_move(pattern: re.Pattern[str], text: str, expected: str) -> re.Match[str]:
    """Match the text of a move with a regular expression.

    Raises:
        ValueError: If the text does not match. The message starts with `expected`, which should describe a
            valid move.
    """
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"{expected}, got {quote(text)}")
    return found


def solve_puzzle(kind: str, puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Call the compiled solver of a puzzle kind and return the encoded solutions.

    Args:
        kind: Name of the kind.
        puzzle: Encoded puzzle, in a format that depends on the kind.
        parameters: Generator parameters of the puzzle's difficulty.
        limit: Maximum number of solutions to find. For sokoban, at most one solution is returned, and `limit`
            is the maximum number of boards to search.
    """
    native = require_native("solving puzzles")
    solutions: list[bytes] = native.solve_puzzle(kind, puzzle, list(parameters), limit)
    return solutions
