"""Base class of puzzle kinds, and a puzzle as data."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from phalanx.native import require_native

State = TypeVar("State")
Move = TypeVar("Move")

_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Puzzle:
    """One puzzle. The same kind, seed and difficulty give the same puzzle on every machine."""

    kind: str
    seed: int
    difficulty: str
    size: int
    """Side length of the board in cells, or the number of people or numbers if there is no board."""
    given: tuple[int, ...]
    """Initial contents of the cells; 0 is a blank cell."""
    clues: tuple[Any, ...]
    """Further constraints of this puzzle, in a format that depends on the kind."""
    solution: tuple[int, ...]
    """The generator's solution. The verifier accepts every answer that satisfies the rules."""


class PuzzleKind(abc.ABC, Generic[State, Move]):
    """A kind of puzzle: generator, rules text, moves, verifier and solver.

    States are immutable: `apply` returns a new state.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    """One line for listings."""
    version: ClassVar[int] = 1
    """Incremented whenever the same seeds and answers no longer give the same episodes."""
    has_unique_solution: ClassVar[bool] = True
    """True if every generated puzzle has exactly one solution."""
    difficulties: ClassVar[Mapping[str, Mapping[str, int]]]
    """Generator parameters of each difficulty, in the order in which the generator takes them."""

    def generate(self, seed: int, difficulty: str = "easy") -> Puzzle:
        """Generate the puzzle of a seed."""
        return self.generate_batch([seed], difficulty)[0]

    def generate_batch(self, seeds: Sequence[int], difficulty: str = "easy") -> list[Puzzle]:
        """Generate one puzzle per seed, in a single call to the generator."""
        if difficulty not in self.difficulties:
            known = ", ".join(self.difficulties)
            raise ValueError(f"{self.name} has no difficulty {difficulty!r}; choose from {known}")
        for seed in seeds:
            if not 0 <= seed <= _MAX_SEED:
                raise ValueError(f"seed must be an integer from 0 to {_MAX_SEED}, got {seed}")
        records = self._generate_records(seeds, self.parameters(difficulty))
        return [
            self._from_record(seed, difficulty, record) for seed, record in zip(seeds, records, strict=True)
        ]

    def parameters(self, difficulty: str) -> list[int]:
        """Return the generator parameters of a difficulty."""
        return list(self.difficulties[difficulty].values())

    def _generate_records(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        """Return one raw record per seed; kinds with a Python generator override this."""
        records: list[bytes] = require_native("puzzle generation").generate_puzzles(
            self.name, list(seeds), list(parameters)
        )
        return records

    @abc.abstractmethod
    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        """Convert a record of the generator to a puzzle."""

    @abc.abstractmethod
    def rules(self, puzzle: Puzzle) -> str:
        """Return the rules, including everything about this puzzle that never changes."""

    @abc.abstractmethod
    def move_format(self, puzzle: Puzzle) -> str:
        """Describe how to write one move, as a sentence that begins with 'Answer with'."""

    @abc.abstractmethod
    def answer_format(self, puzzle: Puzzle) -> str:
        """Describe how to write a complete solution, as a sentence that begins with 'Answer with'."""

    @abc.abstractmethod
    def initial_state(self, puzzle: Puzzle) -> State:
        """Return the state before the first move."""

    @abc.abstractmethod
    def draw_board(self, puzzle: Puzzle, state: State) -> str:
        """Draw the current state as text."""

    @abc.abstractmethod
    def parse_move(self, puzzle: Puzzle, state: State, text: str) -> Move:
        """Parse a move.

        Raises:
            ValueError: If the text is not a legal move. The message is shown to the model.
        """

    @abc.abstractmethod
    def legal_moves(self, puzzle: Puzzle, state: State) -> list[str]:
        """List every move that `parse_move` accepts, each once, in the notation of `solve`."""

    @abc.abstractmethod
    def apply(self, puzzle: Puzzle, state: State, move: Move) -> State:
        """Return the state after a move."""

    @abc.abstractmethod
    def is_solved(self, puzzle: Puzzle, state: State) -> bool:
        """Check the state against the rules, without using the generator's solution."""

    def is_lost(self, puzzle: Puzzle, state: State) -> bool:
        """Return True if no sequence of moves can solve the puzzle any more. By default, never."""
        return False

    @abc.abstractmethod
    def solve(self, puzzle: Puzzle, state: State) -> list[str] | None:
        """Return moves that solve the puzzle from this state, or None if there are none or none are found."""

    @abc.abstractmethod
    def parse_answer(self, puzzle: Puzzle, text: str) -> State:
        """Parse a complete solution and return the state it leads to.

        Raises:
            ValueError: If the text cannot be parsed. The message is shown to the model.
        """

    @abc.abstractmethod
    def solution_text(self, puzzle: Puzzle) -> str:
        """Write a correct solution in the format of `answer_format`."""

    def compact_board(self, puzzle: Puzzle, state: State) -> str:
        """Draw the puzzle and its state in few characters, without rules, for small models.

        Equal strings mean equal puzzles, so this is also the key that assigns a puzzle to a split.
        """
        return self.draw_board(puzzle, state).replace(" ", "")

    def compact_answer(self, answer: str) -> str:
        """Shorten a move or solution as far as `parse_move` and `parse_answer` still accept it."""
        return answer

    def compact_solution(self, puzzle: Puzzle) -> str:
        """Write a correct solution in the format that is easiest for a small model to learn."""
        return self.compact_answer(self.solution_text(puzzle))

    def solve_as_expert(self, puzzle: Puzzle, state: State) -> list[str] | None:
        """Like `solve`, but with moves that a small model can infer from what it sees."""
        return self.solve(puzzle, state)

    def verify(self, puzzle: Puzzle, text: str) -> bool:
        """Return True if the text is a correct complete solution."""
        try:
            return self.is_solved(puzzle, self.parse_answer(puzzle, text))
        except ValueError:
            return False

    def count_solutions(self, puzzle: Puzzle, limit: int = 2) -> int:
        """Count the solutions, up to `limit`. Only for kinds with a unique solution."""
        if not self.has_unique_solution:
            raise ValueError(
                f"{self.name} puzzles may have several solutions; only unique solutions can be counted"
            )
        parameters = self.parameters(puzzle.difficulty)
        return len(solve_puzzle(self.name, self._solver_input(puzzle), parameters, limit))

    def _solver_input(self, puzzle: Puzzle) -> bytes:
        """Encode the puzzle without its solution for the compiled solver."""
        return bytes([*puzzle.given, *puzzle.clues])


def solve_puzzle(kind: str, puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Call the compiled solver of a kind.

    Args:
        puzzle: Encoded puzzle, in the format of the kind.
        limit: Number of solutions after which to stop (for sokoban: number of boards to search).
    """
    solutions: list[bytes] = require_native("solving puzzles").solve_puzzle(
        kind, puzzle, list(parameters), limit
    )
    return solutions
