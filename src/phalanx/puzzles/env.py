"""Puzzles as text environments: one puzzle an episode, answered move by move or as a whole; and many at once.

The protocol is `phalanx.text.env`; what the puzzles are is in `kinds`.
"""

from collections.abc import Sequence
from typing import Any

from phalanx.puzzles.catalog import puzzle_kind
from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.text.env import (
    TextEnvironment,
    TextInfo,
    TextRewards,
    TextStep,
    TextVectorEnvironment,
    extract_answer,
    finished_step,
)


class PuzzleEnvironment(TextEnvironment):
    """Puzzles of a kind and difficulty.

    With `turns="multi"` each answer is a move; the episode ends when the puzzle is solved or lost, and is
    truncated after `max_steps` answers, refused ones among them (None: twice the solver's moves, and ten).
    With `turns="single"` the one answer is the whole solution, and it is verified. `compact` asks without
    rules, in as few characters as hold the puzzle, and demonstrates as briefly: for models that are small.
    """

    def __init__(
        self,
        kind: str | PuzzleKind[Any, Any],
        difficulty: str = "easy",
        *,
        turns: str = "multi",
        max_steps: int | None = None,
        rewards: TextRewards = TextRewards(),  # noqa: B008 - frozen
        compact: bool = False,
    ) -> None:
        self.kind = puzzle_kind(kind) if isinstance(kind, str) else kind
        if difficulty not in self.kind.difficulties:
            known = ", ".join(self.kind.difficulties)
            raise ValueError(f"{self.kind.name} has no difficulty {difficulty!r}; there are {known}")
        if turns not in ("multi", "single"):
            raise ValueError(f"turns are 'multi' or 'single', got {turns!r}")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.difficulty, self.turns, self.max_steps, self.rewards = difficulty, turns, max_steps, rewards
        self.compact = compact
        self._puzzle: Puzzle | None = None
        self._state: Any = None
        self._info = TextInfo()
        self._taken = self._most = 0

    @property
    def puzzle(self) -> Puzzle:
        """The puzzle of this episode."""
        if self._puzzle is None:
            raise ValueError("there is no episode yet; call reset")
        return self._puzzle

    @property
    def state(self) -> Any:
        """The puzzle as it stands."""
        return self._state

    @property
    def board(self) -> str:
        """The puzzle as it stands, in few characters; equal where another seed made or led to the same."""
        return self.kind.compact(self.puzzle, self._state)

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self._info.terminated or self._info.truncated

    def reset(self, seed: int) -> str:
        return self.begin(self.kind.generate(seed, self.difficulty))

    def begin(self, puzzle: Puzzle) -> str:
        """Start the episode of a puzzle that is made already."""
        if puzzle.kind != self.kind.name:
            raise ValueError(f"this environment is for {self.kind.name}, got a puzzle of {puzzle.kind}")
        self._puzzle, self._state = puzzle, self.kind.start(puzzle)
        self._info, self._taken = TextInfo(), 0
        if self.turns == "single":
            self._most = 1
        elif self.max_steps is not None:
            self._most = self.max_steps
        else:
            self._most = 10 + 2 * len(self.kind.solve(puzzle, self._state) or ())
        return self.prompt

    @property
    def prompt(self) -> str:
        puzzle = self.puzzle
        if self.compact:
            return f"{self.kind.name[:2]}\n{self.board}\n"
        form = self.kind.moves(puzzle) if self.turns == "multi" else self.kind.whole(puzzle)
        return f"{self.kind.rules(puzzle)}\n\n{self.kind.draw(puzzle, self._state)}\n\n{form}"

    def step(self, answer: str) -> TextStep:
        puzzle, kind = self.puzzle, self.kind
        if self.done:
            return finished_step(self._info)
        self._taken += 1
        refused, solved, lost = "", False, False
        try:
            meant = extract_answer(answer)
            if self.turns == "multi":
                self._state = kind.apply(puzzle, self._state, kind.parse(puzzle, self._state, meant))
            else:
                self._state = kind.read(puzzle, meant)
        except ValueError as error:
            refused = str(error)
        else:
            solved = kind.is_solved(puzzle, self._state)
            lost = not solved and (self.turns == "single" or kind.is_lost(puzzle, self._state))
        ended = solved or lost or (self.turns == "single")
        truncated = not ended and self._taken >= self._most
        self._info = TextInfo(refused, solved, ended, truncated)
        reward = self.rewards.refused if refused else self.rewards.solved if solved else self.rewards.accepted
        return TextStep(self._text(), reward, ended or truncated, self._info)

    def _text(self) -> str:
        refused, solved, terminated, truncated = self._info
        if solved:
            said = "Solved."
        elif refused:
            said = f"Not possible: {refused}."
        else:
            said = "Not solved." if terminated else "Done."
        end = " No answers are left." if truncated else ""
        return f"{said}{end}\n\n{self.kind.draw(self.puzzle, self._state)}"

    def demonstration(self) -> list[str] | None:
        if self.done:
            return []
        kind, puzzle = self.kind, self.puzzle
        if self.turns == "single":
            return [kind.compact_whole(puzzle) if self.compact else kind.answer(puzzle)]
        found = kind.teach(puzzle, self._state) if self.compact else kind.solve(puzzle, self._state)
        return None if found is None else self._written(found)

    def legal_moves(self) -> list[str] | None:
        if self.turns == "single":
            return None
        if self.done:
            return []
        return self._written(self.kind.legal_moves(self.puzzle, self._state))

    def _written(self, answers: list[str]) -> list[str]:
        return [self.kind.compact_answer(answer) for answer in answers] if self.compact else answers


class PuzzleVectorEnvironment(TextVectorEnvironment):
    """Puzzles of one kind and difficulty that are made together, in one call, and answered together."""

    environments: list[PuzzleEnvironment]  # type: ignore[assignment]

    def __init__(
        self, kind: str | PuzzleKind[Any, Any], difficulty: str = "easy", *, size: int, **settings: Any
    ) -> None:
        super().__init__([PuzzleEnvironment(kind, difficulty, **settings) for _ in range(size)])

    def _start(self, places: list[int], seeds: list[int]) -> list[str]:
        first = self.environments[0]
        puzzles: Sequence[Puzzle] = first.kind.generate_many(seeds, first.difficulty)
        return [self.environments[n].begin(puzzle) for n, puzzle in zip(places, puzzles, strict=True)]
