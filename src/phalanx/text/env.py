"""Base classes for text environments, in which a model answers prompts until the episode ends."""

import abc
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.text.splits import Split, split_of, validate_split

PromptFormat = Literal["full", "compact"]
"""`full` prompts include the rules. `compact` prompts contain only the state, in few characters."""

MAX_SEED = 2**32 - 1
"""Largest seed that every text environment accepts."""

_SEEDS_PER_BLOCK = 32
_MAX_MISSES = 1024
_SEEDS_PER_RUN = 1_000_003


class TextInfo(NamedTuple):
    """Outcome of an answer, without the reward."""

    error: str = ""
    """Error message for the model if the answer is not a valid action. Empty if it is valid."""
    solved: bool = False
    """True if the episode has ended successfully."""
    terminated: bool = False
    """True if the episode has ended because it was solved or lost."""
    truncated: bool = False
    """True if a limit, such as the maximum number of answers, has ended the episode before it was solved or
    lost."""

    @property
    def done(self) -> bool:
        """True if the episode has ended."""
        return self.terminated or self.truncated


class TextStep(NamedTuple):
    """Result of one step of a text environment."""

    text: str
    """Text for the model: the outcome of its answer and the new state. The rules are not repeated."""
    reward: float
    """Reward for the answer."""
    done: bool
    """True if the episode has ended."""
    info: TextInfo
    """Outcome of the answer."""


class TextVectorStep(NamedTuple):
    """Results of one step of a batch of text environments. Each field has one item per environment."""

    texts: list[str]
    """Texts for the model, each with the outcome of an answer and the new state."""
    rewards: NDArray[np.float32]
    """Rewards for the answers."""
    dones: NDArray[np.bool_]
    """True for the episodes that have ended."""
    infos: list[TextInfo]
    """Outcome of each answer."""

    @classmethod
    def stack(cls, steps: Sequence[TextStep]) -> "TextVectorStep":
        """Combine steps of single environments into one batched step."""
        return cls(
            [step.text for step in steps],
            np.array([step.reward for step in steps], np.float32),
            np.array([step.done for step in steps], bool),
            [step.info for step in steps],
        )


@dataclasses.dataclass(frozen=True)
class TextRewardValues:
    """Rewards for the possible outcomes of an answer."""

    solved: float = 1.0
    """Reward for the answer that solves the episode."""
    valid: float = 0.0
    """Reward for a valid action that does not solve the episode."""
    invalid: float = -0.1
    """Reward for an answer that is not a valid action."""


class TextEnvironment(abc.ABC):
    """Base class for environments that run one text episode at a time.

    `step` accepts any string as an answer. An invalid answer does not raise an error: the state does not
    change, and the returned text explains what is wrong. After the end of an episode, `step` has no effect
    and returns reward 0 until the next `reset`.
    """

    blocking: bool = True
    """True if a step can take a long time, because it runs JAX code or waits for the network. Servers run
    such steps in a thread."""

    @abc.abstractmethod
    def reset(self, seed: int) -> str:
        """Start the episode determined by `seed`, and return its first prompt.

        In the `full` prompt format, the first prompt contains the rules, the state and the answer format.
        """

    @abc.abstractmethod
    def step(self, answer: str) -> TextStep:
        """Apply the model's answer and return the outcome."""

    @property
    @abc.abstractmethod
    def prompt(self) -> str:
        """Prompt for the current state. A model can answer it without having seen earlier prompts."""

    @property
    def state_key(self) -> str:
        """Short string that is equal for equal states, even in different episodes. It is empty if the
        environment does not provide one."""
        return ""

    @property
    def episode_key(self) -> str:
        """String that identifies the episode. Seeds that generate the same episode have the same key. If it
        is empty, the first prompt is used to identify the episode."""
        return ""

    def expert_actions(self) -> list[str] | None:
        """Return the expert's next answers for the current state, or None if the expert has none.

        The list contains all answers up to the solution or, if the expert depends on the outcome of each
        step, only the next answer.
        """
        return None

    def legal_actions(self) -> list[str] | None:
        """Return all answers that are currently valid, or None if the environment cannot list them."""
        return None

    def close(self) -> None:
        """Release resources."""
        return


class TaskSeed(NamedTuple):
    """Task and seed of an episode, which together determine the episode.

    A task is a kind of episode, such as `sudoku:easy:multi`.
    """

    task: str
    """Name of the task, which is one of `TextVectorEnvironment.tasks`."""
    seed: int
    """Seed from which the task generates the episode."""


class TextVectorEnvironment:
    """A batch of text episodes that are stepped together.

    Each row of the batch is one episode. `start` and `reset` determine the number of rows. `step` does not
    change rows whose episode has ended. This class runs the environments one by one; subclasses can run them
    faster.

    Args:
        factories: Mapping from each task name to a function that creates an environment for one episode.
        fingerprint: Value of the `fingerprint` attribute. If None, it consists of the task names.
    """

    tasks: tuple[str, ...]
    """Names of the tasks. `TaskSeed.task` is one of these names."""
    fingerprint: str
    """String that identifies how episodes are generated. Environments with the same fingerprint generate the
    same episode from the same `TaskSeed`."""
    max_size: int = 2**30
    """Maximum number of rows."""
    expert_batch_size: int = 1
    """Recommended number of rows for generating expert episodes."""
    prompt_suffix: str = ">"
    """Text that separates a prompt from a language model's answer."""
    completion_end: str | None = None
    """Text that ends a language model's answer. None means the tokenizer's end-of-text token."""
    unknown_characters: Literal["error", "replace"] = "replace"
    """What to do with prompt characters that the tokenizer cannot encode: `error` raises an error, and
    `replace` replaces them with a question mark."""
    environments: Sequence[TextEnvironment] = ()
    """One environment per row. Empty before the first call to `start`, and in subclasses that step all rows
    together."""
    _episodes: Sequence[TaskSeed] = ()
    _first_prompts: Sequence[str] = ()

    def __init__(
        self, factories: Mapping[str, Callable[[], TextEnvironment]], fingerprint: str | None = None
    ) -> None:
        if not factories:
            raise ValueError("a vector environment needs at least one task")
        self.tasks = tuple(factories)
        self.fingerprint = " ".join(self.tasks) if fingerprint is None else fingerprint
        self._factories = dict(factories)
        self._created: dict[str, list[TextEnvironment]] = {task: [] for task in self.tasks}

    def __len__(self) -> int:
        return len(self._episodes)

    def reset(self, seeds: Sequence[int]) -> list[str]:
        """Start one episode of the first task for each seed, and return the prompts."""
        return self.start([TaskSeed(self.tasks[0], int(seed)) for seed in seeds])

    def start(self, episodes: Sequence[TaskSeed]) -> list[str]:
        """Start the given episodes, one per row, and return their prompts.

        Unfinished episodes from an earlier call are abandoned.
        """
        self._check_episodes(episodes)
        environments, used = list[TextEnvironment](), dict.fromkeys(self.tasks, 0)
        for task, _ in episodes:
            if used[task] == len(self._created[task]):
                self._created[task].append(self._factories[task]())
            environments.append(self._created[task][used[task]])
            used[task] += 1
        self.environments = environments
        return self._reset_all(episodes)

    @property
    def prompts(self) -> list[str]:
        """Current prompt of each row, which a model can answer without having seen earlier prompts."""
        return [environment.prompt for environment in self.environments]

    def step(self, answers: Sequence[str]) -> TextVectorStep:
        """Advance every row by one answer, and return the outcomes.

        Args:
            answers: One answer per row. The answers of rows whose episode has ended are ignored.
        """
        self._check_answers(answers)
        pairs = zip(self.environments, answers, strict=True)
        return TextVectorStep.stack([environment.step(answer) for environment, answer in pairs])

    def legal_actions(self, rows: Sequence[int]) -> list[list[str] | None]:
        """Return the valid answers for each given row, or None for a row where they cannot be listed."""
        return [self.environments[row].legal_actions() for row in rows]

    def expert_actions(self, rows: Sequence[int]) -> list[str | None]:
        """Return the expert's next answer for each given row, or None for a row without an expert answer."""
        actions = (self.environments[row].expert_actions() for row in rows)
        return [next(iter(row_actions or ()), None) for row_actions in actions]

    def sample_actions(self, rows: Sequence[int], rng: random.Random) -> list[str]:
        """Draw a random valid answer for each given row. If no answer is valid, return "-" for the row.

        Raises:
            ValueError: If the valid answers for a row cannot be listed.
        """
        sampled = []
        for row, actions in zip(rows, self.legal_actions(rows), strict=True):
            if actions is None:
                raise ValueError(
                    f"{type(self.environments[row]).__name__} cannot list its legal actions, so there are no "
                    "random actions"
                )
            # "-" is not a valid answer in any environment.
            sampled.append(rng.choice(actions or ["-"]))
        return sampled

    def state_keys(self) -> list[str]:
        """Return the `state_key` of each row, which is empty if the environment does not provide one."""
        return [environment.state_key for environment in self.environments]

    def episode_keys(self) -> list[str]:
        """Return, for each row, a string that identifies its episode and determines the episode's split.

        The string is the `episode_key` of the row's environment or, if that is empty, the first prompt.
        """
        pairs = zip(self.environments, self._first_prompts, strict=True)
        return [environment.episode_key or prompt for environment, prompt in pairs]

    def seeds(self, task: str, split: Split | str, first: int = 0) -> Iterator[int]:
        """Iterate indefinitely over the seeds whose episodes are in a split, in ascending order.

        This does not affect running episodes.

        Args:
            task: Name of the task.
            split: `train`, `validation` or `test`.
            first: Smallest seed to consider.

        Raises:
            ValueError: If the task or the split is unknown, or if about 1,000 consecutive seeds give no
                episode in the split.
        """
        self._check_task(task)
        return self._iterate_seeds(task, validate_split(split), first)

    def _iterate_seeds(self, task: str, split: Split, first: int) -> Iterator[int]:
        misses = 0
        for start in itertools.count(first, _SEEDS_PER_BLOCK):
            block = range(start, start + _SEEDS_PER_BLOCK)
            for seed, key in zip(block, self._episode_keys_of(task, block), strict=True):
                misses += 1
                if split_of(key) == split:
                    misses = 0
                    yield seed
            if misses >= _MAX_MISSES:
                raise ValueError(
                    f"none of {misses:,} episodes of {task} are in the {split} split; an environment with "
                    "few different episodes may have none there"
                )

    def first_seed(self, run_seed: int) -> int:
        """Return the first seed for the rollouts of a training run, given the seed of the run."""
        # With the modulus, the next `_SEEDS_PER_RUN` seeds do not exceed `MAX_SEED` either.
        return run_seed * _SEEDS_PER_RUN % (MAX_SEED + 1 - _SEEDS_PER_RUN)

    def first_expert_seed(self, run_seed: int) -> int:
        """Return the first seed for the expert episodes of a training run, given the seed of the run."""
        return self.first_seed(run_seed)

    def close(self) -> None:
        """Close all environments. Calling `close` again has no effect."""
        for environments in self._created.values():
            while environments:
                environments.pop().close()

    def _reset_all(self, episodes: Sequence[TaskSeed]) -> list[str]:
        """Start one episode in each of `environments`, and return the prompts."""
        self._episodes = list(episodes)
        self._first_prompts = self._reset_environments(self._episodes)
        return list(self._first_prompts)

    def _reset_environments(self, episodes: Sequence[TaskSeed]) -> list[str]:
        pairs = zip(self.environments, episodes, strict=True)
        return [environment.reset(seed) for environment, (_, seed) in pairs]

    def _episode_keys_of(self, task: str, seeds: Sequence[int]) -> list[str]:
        """Return the episode key for each seed of a task, without affecting running episodes."""
        environment = self._factories[task]()
        try:
            prompts = (environment.reset(seed) for seed in seeds)
            return [environment.episode_key or prompt for prompt in prompts]
        finally:
            environment.close()

    def _check_episodes(self, episodes: Sequence[TaskSeed]) -> None:
        if not 0 < len(episodes) <= self.max_size:
            raise ValueError(f"expected 1 to {self.max_size:,} episodes, got {len(episodes)}")
        for task, _ in episodes:
            self._check_task(task)

    def _check_task(self, task: str) -> None:
        if task not in self.tasks:
            raise ValueError(f"unknown task {task!r}; choose from {', '.join(self.tasks)}")

    def _check_answers(self, answers: Sequence[str]) -> None:
        if not len(self):
            raise ValueError("there are no episodes yet; call reset or start")
        if len(answers) != len(self):
            raise ValueError(f"answers must have one item per episode ({len(self)}), got {len(answers)}")


def finished_step(info: TextInfo) -> TextStep:
    """Return the result of a step that is taken after the end of an episode.

    `info` is the info of the step that ended the episode.
    """
    return TextStep("The episode is over.", 0.0, True, info._replace(error=""))


def validate_seed(seed: object) -> int:
    """Validate an untrusted seed and return it. Raises `ValueError` unless it is an integer from 0 to
    `MAX_SEED`."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be an integer from 0 to {MAX_SEED}, got {str(seed)[:40]!r}")
    return seed
