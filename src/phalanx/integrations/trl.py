"""Text environments for TRL's `GRPOTrainer`, as tool environments or as prompts with a reward function.

This module does not import TRL.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.extras import require_extra
from phalanx.puzzles.env import PuzzleEnvironment
from phalanx.text.env import TextEnvironment
from phalanx.text.env_spec import TextFactory, text_env_factory

if TYPE_CHECKING:
    import datasets


class ToolEnvironment:
    """Tool environment for TRL, which runs one episode of a text environment per rollout.

    `reset` returns the first prompt, and the model calls the tool `move` with its answers. TRL offers public
    methods to the model as tools, so this class has no further public methods. The reward is the sum of the
    episode's rewards.
    """

    def __init__(self, environment: TextEnvironment) -> None:
        self._environment = environment
        self._reward = 0.0

    def reset(self, seed: int = 0, **row: Any) -> str:
        """Start the episode with the seed of a dataset row, and return the first prompt.

        TRL appends it to the row's prompt. Other columns of the row are ignored.
        """
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


def environment_factory(
    name: str | TextFactory, difficulty: str | None = None, **settings: Any
) -> Callable[[], ToolEnvironment]:
    """Return a factory for `GRPOTrainer(environment_factory=...)`.

    Rows of the training dataset need a column `seed`.

    Args:
        name: Spec of a text environment, or a function that creates one.
        difficulty: Difficulty of a puzzle. None uses the default of the environment.
        settings: Further arguments of `text_env_factory`.
    """
    if difficulty is not None:
        settings["difficulty"] = difficulty
    factory = text_env_factory(name, **settings)
    return lambda: ToolEnvironment(factory())


def prompt_rows(
    kinds: Sequence[str], seeds: Sequence[int], difficulty: str = "easy", *, turns: str = "single"
) -> list[dict[str, Any]]:
    """Create one row per puzzle kind and seed, with `prompt` (messages), `kind`, `difficulty` and `seed`.

    Args:
        kinds: Names of puzzle kinds.
        seeds: Seeds of the puzzles.
        difficulty: Difficulty of the puzzles.
        turns: "single" for prompts that ask for the complete solution, or "multi" for empty prompts, because
            `ToolEnvironment.reset` returns the prompt.
    """
    if turns not in ("multi", "single"):
        raise ValueError(f"turns must be 'multi' or 'single', got {turns!r}")
    rows = []
    for kind in kinds:
        environment = PuzzleEnvironment(kind, difficulty, turns="single")
        for puzzle in environment.kind.generate_batch(seeds, difficulty):
            content = environment.start(puzzle) if turns == "single" else ""
            prompt = [{"role": "user", "content": content}]
            rows.append({"prompt": prompt, "kind": kind, "difficulty": difficulty, "seed": puzzle.seed})
    return rows


def prompt_dataset(
    kinds: Sequence[str], seeds: Sequence[int], difficulty: str = "easy", *, turns: str = "single"
) -> "datasets.Dataset":
    """Return the rows of `prompt_rows` as a Hugging Face dataset, for `GRPOTrainer(train_dataset=...)`."""
    with require_extra("prompt_dataset", "trl", "datasets"):
        import datasets
    return datasets.Dataset.from_list(prompt_rows(kinds, seeds, difficulty, turns=turns))


def solved_reward(
    completions: Sequence[Any],
    kind: Sequence[str],
    difficulty: Sequence[str],
    seed: Sequence[int],
    **columns: Any,
) -> list[float]:
    """Compute the rewards for completions, for `GRPOTrainer(reward_funcs=...)`.

    The reward is 1 if the completion solves its puzzle, and 0 otherwise. All arguments except `completions`
    are columns of `prompt_rows`.
    """
    rewards = []
    for completion, name, level, row_seed in zip(completions, kind, difficulty, seed, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        environment = PuzzleEnvironment(name, level, turns="single")
        environment.reset(int(row_seed))
        rewards.append(float(environment.step(text or "").info.solved))
    return rewards
