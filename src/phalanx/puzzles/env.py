"""Puzzles as text environments."""

from collections.abc import Sequence
from typing import Any, Literal

from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.kinds import puzzle_kind
from phalanx.text.env import (
    PromptFormat,
    TextEnvironment,
    TextInfo,
    TextRewards,
    TextStep,
    TextVectorEnvironment,
    extract_answer,
    finished_step,
)


class PuzzleEnvironment(TextEnvironment):
    """One puzzle per episode.

    - **Prompt**: the rules, the board and the answer format. With `prompt_format="compact"`, only the kind
      and the board, in as few characters as possible, for small models; the expert answers are shortened too.
    - **Answer**: one move (`turns="multi"`) or the complete solution (`turns="single"`), optionally in
      `<answer>` tags.
    - **Reward**: `rewards.solved` for the answer that solves the puzzle, `rewards.invalid` for an answer that
      is not a legal move, `rewards.valid` otherwise.
    - **End**: the puzzle is solved or can no longer be solved. With `turns="single"`, the only answer ends
      the episode. With `turns="multi"`, it is truncated after `max_steps` answers, including invalid ones.

    Args:
        kind: Name of a kind, or a kind of your own.
        difficulty: One of `kind.difficulties`.
        turns: `multi` for one move per answer, `single` for one answer with the complete solution.
        max_steps: Maximum number of answers. None: twice the number of the solver's moves, plus ten.
        rewards: Rewards by outcome.
        prompt_format: `full` or `compact`.
    """

    # A step takes microseconds, less than handing it to a thread.
    blocking = False

    def __init__(
        self,
        kind: str | PuzzleKind[Any, Any],
        difficulty: str = "easy",
        *,
        turns: Literal["multi", "single"] | str = "multi",
        max_steps: int | None = None,
        rewards: TextRewards = TextRewards(),  # noqa: B008 - frozen
        prompt_format: PromptFormat = "full",
    ) -> None:
        self.kind = puzzle_kind(kind) if isinstance(kind, str) else kind
        if difficulty not in self.kind.difficulties:
            known = ", ".join(self.kind.difficulties)
            raise ValueError(f"{self.kind.name} has no difficulty {difficulty!r}; choose from {known}")
        if turns not in ("multi", "single"):
            raise ValueError(f"turns must be 'multi' or 'single', got {turns!r}")
        if prompt_format not in ("full", "compact"):
            raise ValueError(f"prompt_format must be 'full' or 'compact', got {prompt_format!r}")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.difficulty, self.turns, self.max_steps, self.rewards = difficulty, turns, max_steps, rewards
        self.prompt_format = prompt_format
        self._puzzle: Puzzle | None = None
        self._state: Any = None
        self._info = TextInfo()
        self._num_answers = self._max_answers = 0

    @property
    def puzzle(self) -> Puzzle:
        """The puzzle of the current episode."""
        if self._puzzle is None:
            raise ValueError("there is no episode yet; call reset")
        return self._puzzle

    @property
    def state(self) -> Any:
        """The current state of the puzzle."""
        return self._state

    @property
    def state_key(self) -> str:
        """The compact board. It is the same for equal states, whichever seed they come from."""
        return self.kind.compact_board(self.puzzle, self._state)

    @property
    def done(self) -> bool:
        """True after the end of the episode."""
        return self._info.terminated or self._info.truncated

    def reset(self, seed: int) -> str:
        return self.start(self.kind.generate(seed, self.difficulty))

    def start(self, puzzle: Puzzle) -> str:
        """Start an episode with an existing puzzle and return the prompt."""
        if puzzle.kind != self.kind.name:
            raise ValueError(f"this environment is for {self.kind.name} puzzles, got a {puzzle.kind} puzzle")
        self._puzzle, self._state = puzzle, self.kind.initial_state(puzzle)
        self._info, self._num_answers = TextInfo(), 0
        if self.turns == "single":
            self._max_answers = 1
        elif self.max_steps is not None:
            self._max_answers = self.max_steps
        else:
            self._max_answers = 10 + 2 * len(self.kind.solve(puzzle, self._state) or ())
        return self.prompt

    @property
    def prompt(self) -> str:
        puzzle, kind = self.puzzle, self.kind
        if self.prompt_format == "compact":
            return f"{kind.name[:2]}\n{self.state_key}\n"
        answer_format = kind.move_format(puzzle) if self.turns == "multi" else kind.answer_format(puzzle)
        return f"{kind.rules(puzzle)}\n\n{kind.draw_board(puzzle, self._state)}\n\n{answer_format}"

    def step(self, answer: str) -> TextStep:
        puzzle, kind = self.puzzle, self.kind
        if self.done:
            return finished_step(self._info)
        self._num_answers += 1
        error, solved, lost = "", False, False
        try:
            text = extract_answer(answer)
            if self.turns == "multi":
                self._state = kind.apply(puzzle, self._state, kind.parse_move(puzzle, self._state, text))
            else:
                self._state = kind.parse_answer(puzzle, text)
        except ValueError as invalid:
            error = str(invalid)
        else:
            solved = kind.is_solved(puzzle, self._state)
            lost = not solved and (self.turns == "single" or kind.is_lost(puzzle, self._state))
        terminated = solved or lost or (self.turns == "single")
        truncated = not terminated and self._num_answers >= self._max_answers
        self._info = TextInfo(error, solved, terminated, truncated)
        rewards = self.rewards
        reward = rewards.invalid if error else rewards.solved if solved else rewards.valid
        return TextStep(self._outcome_text(), reward, terminated or truncated, self._info)

    def _outcome_text(self) -> str:
        error, solved, terminated, truncated = self._info
        if solved:
            outcome = "Solved."
        elif error:
            outcome = f"Not possible: {error}."
        else:
            outcome = "Not solved." if terminated else "Done."
        end = " No answers are left." if truncated else ""
        return f"{outcome}{end}\n\n{self.kind.draw_board(self.puzzle, self._state)}"

    def expert_actions(self) -> list[str] | None:
        if self.done:
            return []
        kind, puzzle = self.kind, self.puzzle
        compact = self.prompt_format == "compact"
        if self.turns == "single":
            return [kind.compact_solution(puzzle) if compact else kind.solution_text(puzzle)]
        moves = kind.solve_as_expert(puzzle, self._state) if compact else kind.solve(puzzle, self._state)
        return None if moves is None else self._format_moves(moves)

    def legal_actions(self) -> list[str] | None:
        if self.turns == "single":
            return None
        if self.done:
            return []
        return self._format_moves(self.kind.legal_moves(self.puzzle, self._state))

    def _format_moves(self, moves: list[str]) -> list[str]:
        if self.prompt_format == "compact":
            return [self.kind.compact_answer(move) for move in moves]
        return moves


class PuzzleVectorEnvironment(TextVectorEnvironment):
    """Puzzles of one kind and difficulty that are made together, in one call, and answered together."""

    environments: list[PuzzleEnvironment]  # type: ignore[assignment]

    def __init__(
        self, kind: str | PuzzleKind[Any, Any], difficulty: str = "easy", *, size: int, **settings: Any
    ) -> None:
        super().__init__([PuzzleEnvironment(kind, difficulty, **settings) for _ in range(size)])

    def _start(self, places: list[int], seeds: list[int]) -> list[str]:
        first = self.environments[0]
        puzzles: Sequence[Puzzle] = first.kind.generate_batch(seeds, first.difficulty)
        return [self.environments[n].start(puzzle) for n, puzzle in zip(places, puzzles, strict=True)]
