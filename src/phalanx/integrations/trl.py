"""Text environments for TRL's `GRPOTrainer`, as tool environments or as prompts with a reward function.

This module does not import TRL.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.extras import require_extra
from phalanx.puzzles.env import PuzzleEnvironment, PuzzleVectorEnvironment
from phalanx.text.env import PromptFormat, TextEnvironment
from phalanx.text.names import TextFactory, text_env_factory
from phalanx.text.splits import Split

if TYPE_CHECKING:
    import datasets


class ToolEnvironment:
    """Tool environment for TRL that runs one episode of a text environment per rollout.

    `reset` returns the first prompt, and the model calls the `move` tool with its answers. TRL offers every
    public method except `reset` and `get_reward` to the model as a tool, so `move` is the only other public
    method. The reward is the sum of the episode's rewards.
    """

    def __init__(self, environment: TextEnvironment) -> None:
        self._environment = environment
        self._reward = 0.0

    def reset(self, seed: int = 0, **row: Any) -> str:
        """Start the episode with the seed of a dataset row, and return the first prompt.

        TRL appends the returned prompt to the row's prompt. Columns of the row other than `seed` are ignored,
        except that `kind` and `difficulty` are checked if the environment is a puzzle.

        Raises:
            ValueError: If the environment is a puzzle, and the row is for a different kind or difficulty.
        """
        if isinstance(self._environment, PuzzleEnvironment):
            _check_row(row, self._environment)
        self._reward = 0.0
        return self._environment.reset(int(seed))

    def move(self, answer: str) -> str:
        """Make one move of the puzzle, and see what becomes of it.

        Args:
            answer: The move, written as the puzzle asks for it.

        Returns:
            What became of the move, and how the puzzle stands.
        """
        # TRL shows the docstring to the model, so its wording is part of the prompt.
        step = self._environment.step(answer)
        self._reward += step.reward
        return step.text

    def get_reward(self) -> float:
        """Return the sum of the episode's rewards so far."""
        return self._reward


def environment_factory(name: str | TextFactory, **settings: Any) -> Callable[[], ToolEnvironment]:
    """Return a factory for `GRPOTrainer(environment_factory=...)`.

    The training dataset needs a `seed` column. If it also has the columns `kind` and `difficulty`, as in
    `prompt_dataset`, these must match the environment's puzzles.

    Args:
        name: Spec of a text environment, or a function that creates one.
        settings: Additional arguments to `text_env_factory`, such as `difficulty` for puzzles.
    """
    factory = text_env_factory(name, **settings)
    return lambda: ToolEnvironment(factory())


def _check_row(row: Mapping[str, Any], environment: PuzzleEnvironment) -> None:
    for column, expected in (("kind", environment.kind.name), ("difficulty", environment.difficulty)):
        value = row.get(column)
        if value is not None and value != expected:
            raise ValueError(
                f"a row of the dataset has {column} {value!r}, but the environment has {expected!r}; "
                "create the dataset and the environment with the same kind and difficulty"
            )


def prompt_dataset(
    kinds: str | Sequence[str],
    seeds: Sequence[int] | None = None,
    difficulty: str = "easy",
    *,
    split: Split | str | None = None,
    num_prompts: int | None = None,
    turns: str = "single",
    prompt_format: PromptFormat = "full",
) -> "datasets.Dataset":
    """Create a dataset for `GRPOTrainer(train_dataset=...)`, with one row per puzzle.

    The columns are `prompt` (messages), `kind`, `difficulty` and `seed`. Pass either `seeds`, or
    `split` and `num_prompts`.

    Args:
        kinds: Names of puzzle kinds, as a list or separated by commas.
        seeds: Seeds of the puzzles of each kind. The puzzles can belong to any split.
        difficulty: Difficulty of the puzzles.
        split: `train`, `validation` or `test`. Splits never share a puzzle, even if a kind has few puzzles.
        num_prompts: Number of prompts per kind. The first puzzles in the split are used, in order of seed.
        turns: "single" for prompts that ask for the complete solution, or "multi" for empty prompts, because
            `ToolEnvironment.reset` returns the prompt.
        prompt_format: `full` or `compact`. This has no effect on empty prompts.
    """
    with require_extra("prompt_dataset", "trl", "datasets"):
        import datasets
    names = [name.strip() for name in kinds.split(",")] if isinstance(kinds, str) else kinds
    if (seeds is None) == (num_prompts is None) or (split is None) != (num_prompts is None):
        raise ValueError("pass either seeds, or split and num_prompts")
    if num_prompts is not None and num_prompts < 1:
        raise ValueError(f"num_prompts must be at least 1, got {num_prompts}")
    if not names or (seeds is not None and not len(seeds)):
        raise ValueError("a dataset needs at least one kind and one seed")
    rows = []
    for kind in names:
        environment = PuzzleEnvironment(kind, difficulty, turns=turns, prompt_format=prompt_format)
        if split is not None:
            vector = PuzzleVectorEnvironment(kind, difficulty)
            seeds = list(itertools.islice(vector.seeds(vector.tasks[0], split), num_prompts))
        assert seeds is not None
        for puzzle in environment.kind.generate_batch(seeds, difficulty):
            content = environment.start(puzzle) if turns == "single" else ""
            prompt = [{"role": "user", "content": content}]
            rows.append({"prompt": prompt, "kind": kind, "difficulty": difficulty, "seed": puzzle.seed})
    return datasets.Dataset.from_list(rows)


def solved_reward(
    completions: Sequence[Any],
    kind: Sequence[str],
    difficulty: Sequence[str],
    seed: Sequence[int],
    **columns: Any,
) -> list[float]:
    """Compute rewards for completions. Pass this function to `GRPOTrainer(reward_funcs=...)`.

    The reward is 1 if the completion solves its puzzle, and 0 otherwise. Invalid answers also get 0, whereas
    the environment gives them -0.1 by default. All arguments except `completions` are columns of
    `prompt_dataset`.

    Raises:
        ValueError: If the arguments have different lengths.
    """
    lengths = {"completions": completions, "kind": kind, "difficulty": difficulty, "seed": seed}
    if len({len(column) for column in lengths.values()}) > 1:
        given = ", ".join(f"{len(column)} in {name}" for name, column in lengths.items())
        raise ValueError(f"completions, kind, difficulty and seed must have the same length, got {given}")
    rewards = []
    for completion, name, level, row_seed in zip(completions, kind, difficulty, seed, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        environment = PuzzleEnvironment(name, level, turns="single")
        environment.reset(int(row_seed))
        rewards.append(float(environment.step(text or "").info.solved))
    return rewards
