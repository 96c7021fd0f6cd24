"""Text environments in which a model solves generated puzzles."""

import collections
import copy
import functools
from collections.abc import Sequence
from typing import Any, Literal

from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.kinds import puzzle_kind
from phalanx.text.answers import extract_answer
from phalanx.text.env import (
    PromptFormat,
    TaskSeed,
    TextEnvironment,
    TextInfo,
    TextRewardValues,
    TextStep,
    TextVectorEnvironment,
    finished_step,
)

_PUZZLE_CACHE_SIZE = 4096


class PuzzleEnvironment(TextEnvironment):
    """Text environment with one puzzle per episode.

    - **Prompt**: the rules, the board and the answer format. With `prompt_format="compact"`, the prompt
      consists only of the first two letters of the kind's name and a compact drawing of the board, and the
      expert's answers are compact, too. This format is easier for small models.
    - **Answer**: one move (`turns="multi"`) or the complete solution (`turns="single"`), optionally in
      `<answer>` tags.
    - **Reward**: `rewards.solved` for the answer that solves the puzzle, `rewards.invalid` for an answer that
      is not a legal move or cannot be parsed, and `rewards.valid` otherwise.
    - **End**: the episode terminates when the puzzle is solved or can no longer be solved. With
      `turns="single"`, the first answer ends the episode. With `turns="multi"`, the episode is truncated
      after `max_steps` answers, including invalid ones.

    Args:
        kind: Name of a puzzle kind, or an instance of your own `PuzzleKind`.
        difficulty: One of `kind.difficulties`.
        turns: `multi` for one move per answer, `single` for one answer with the complete solution.
        max_steps: Maximum number of answers in multi-turn episodes. Defaults to twice the number of moves in
            the solver's solution, plus ten.
        rewards: Reward for each possible outcome of an answer.
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
        rewards: TextRewardValues = TextRewardValues(),  # noqa: B008 - frozen
        prompt_format: PromptFormat = "full",
    ) -> None:
        self.kind = puzzle_kind(kind) if isinstance(kind, str) else kind
        self.kind.check_difficulty(difficulty)
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
        """Puzzle of the current episode."""
        if self._puzzle is None:
            raise ValueError("there is no episode yet; call reset")
        return self._puzzle

    @property
    def state(self) -> Any:
        """Current state of the puzzle. The type of the state depends on the kind of puzzle."""
        return self._state

    @property
    def state_key(self) -> str:
        """Compact text drawing of the puzzle and its current state, which identifies both.

        Equal states have equal keys, even if their puzzles were generated from different seeds.
        """
        return self.kind.compact_board(self.puzzle, self._state)

    @property
    def episode_key(self) -> str:
        """Compact text drawing of the puzzle in its initial state, which identifies the puzzle."""
        return self.kind.compact_board(self.puzzle, self.kind.initial_state(self.puzzle))

    @property
    def done(self) -> bool:
        """True if the episode has ended."""
        return self._info.done

    def reset(self, seed: int) -> str:
        return self.start(self.kind.generate(seed, self.difficulty))

    def start(self, puzzle: Puzzle) -> str:
        """Start an episode with an existing puzzle and return the prompt."""
        if puzzle.kind != self.kind.name:
            raise ValueError(f"this environment is for {self.kind.name} puzzles, got a {puzzle.kind} puzzle")
        self._puzzle, self._state = puzzle, self.kind.initial_state(puzzle)
        self._info, self._num_answers = TextInfo(), 0
        if self.max_steps is not None or self.turns == "single":
            self._max_answers = self.max_steps or 1
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
            lost = not solved and kind.is_lost(puzzle, self._state)
        terminated = solved or lost or self.turns == "single"
        truncated = not terminated and self._num_answers >= self._max_answers
        self._info = TextInfo(error, solved, terminated, truncated)
        rewards = self.rewards
        reward = rewards.invalid if error else rewards.solved if solved else rewards.valid
        return TextStep(self._outcome_text(), reward, self._info.done, self._info)

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
        if self.prompt_format == "full":
            return moves
        return [self.kind.compact_answer(move) for move in moves]


class PuzzleVectorEnvironment(TextVectorEnvironment):
    """A batch of episodes with puzzles of one or several kinds.

    Each combination of kind, difficulty and turns is a task, named `KIND:DIFFICULTY:TURNS`. When
    episodes start, all puzzles of a task are generated in one call, which is faster than one call per puzzle.

    Args:
        kinds: Names of puzzle kinds separated by commas, or a sequence of names or kinds. A name may be
            followed by the difficulty and the turns, as in `sudoku,sokoban:easy:multi`. Such a suffix applies
            only to its own kind.
        difficulty: Difficulty of the kinds for which `kinds` does not specify a difficulty.
        turns: `multi` or `single`. Used for the kinds for which `kinds` does not specify the turns. See
            `PuzzleEnvironment`.
        max_steps: Maximum number of answers in multi-turn episodes. See `PuzzleEnvironment`.
        rewards: Reward for each possible outcome of an answer.
        prompt_format: `full` or `compact`.
    """

    environments: Sequence[PuzzleEnvironment]
    unknown_characters = "error"

    def __init__(
        self,
        kinds: str | PuzzleKind[Any, Any] | Sequence[str | PuzzleKind[Any, Any]],
        difficulty: str = "easy",
        *,
        turns: str = "multi",
        max_steps: int | None = None,
        rewards: TextRewardValues = TextRewardValues(),  # noqa: B008 - frozen
        prompt_format: PromptFormat = "full",
    ) -> None:
        self._prototypes: dict[str, PuzzleEnvironment] = {}
        if isinstance(kinds, str):
            kinds = kinds.split(",")
        for name in [kinds] if isinstance(kinds, PuzzleKind) else kinds:
            parts: list[Any] = [name] if isinstance(name, PuzzleKind) else name.strip().split(":")
            kind, own_difficulty, own_turns, *rest = [*parts, "", ""]
            if any(rest):
                raise ValueError(f"expected KIND[:DIFFICULTY[:TURNS]], got {name!r}")
            prototype = PuzzleEnvironment(
                kind,
                own_difficulty or difficulty,
                turns=own_turns or turns,
                max_steps=max_steps,
                rewards=rewards,
                prompt_format=prompt_format,
            )
            task = f"{prototype.kind.name}:{prototype.difficulty}:{prototype.turns}"
            if task in self._prototypes:
                raise ValueError(f"the task {task} appears twice")
            self._prototypes[task] = prototype
        super().__init__(
            {task: functools.partial(copy.copy, each) for task, each in self._prototypes.items()},
            " ".join(f"{task}@{each.kind.version}" for task, each in self._prototypes.items()),
        )
        # Puzzles are generated when their split is computed, and reused when their episode starts.
        self._puzzles: collections.OrderedDict[TaskSeed, Puzzle] = collections.OrderedDict()

    def first_seed(self, run_seed: int) -> int:
        # Far from the seeds of the expert episodes of the same run.
        return 2**61 + self.first_expert_seed(run_seed)

    def first_expert_seed(self, run_seed: int) -> int:
        return run_seed * 2**40

    def _reset_environments(self, episodes: Sequence[TaskSeed]) -> list[str]:
        pairs = zip(self.environments, self._generate(episodes), strict=True)
        return [environment.start(puzzle) for environment, puzzle in pairs]

    def _episode_keys_of(self, task: str, seeds: Sequence[int]) -> list[str]:
        kind = self._prototypes[task].kind
        puzzles = self._generate([TaskSeed(task, seed) for seed in seeds])
        return [kind.compact_board(puzzle, kind.initial_state(puzzle)) for puzzle in puzzles]

    def _generate(self, episodes: Sequence[TaskSeed]) -> list[Puzzle]:
        """Return the puzzles of episodes, and generate those that are not in the cache."""
        missing = collections.defaultdict(list)
        for task, seed in dict.fromkeys(episodes):
            if (task, seed) not in self._puzzles:
                missing[task].append(seed)
        for task, seeds in missing.items():
            environment = self._prototypes[task]
            for puzzle in environment.kind.generate_batch(seeds, environment.difficulty):
                self._puzzles[TaskSeed(task, puzzle.seed)] = puzzle
        puzzles = [self._puzzles[episode] for episode in episodes]
        while len(self._puzzles) > _PUZZLE_CACHE_SIZE:
            self._puzzles.popitem(last=False)
        return puzzles
