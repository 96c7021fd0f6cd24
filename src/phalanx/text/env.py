"""Protocol of text environments: an episode is a prompt, an answer, the text that follows, and so on."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

PromptFormat = Literal["full", "compact"]
"""`full` prompts include the rules; `compact` prompts have only the state, in few characters."""

MAX_ANSWER_CHARS = 20_000
"""Longer answers are rejected without parsing them."""

MAX_SEED = 2**32 - 1
"""The largest seed that every text environment accepts."""


class TextInfo(NamedTuple):
    """The outcome of an answer, in addition to its reward."""

    error: str = ""
    """Why the answer was not a valid action, as text for the model; empty if it was valid."""
    solved: bool = False
    terminated: bool = False
    truncated: bool = False


class TextStep(NamedTuple):
    """Result of one step."""

    text: str
    """The outcome of the answer and the new state, without the rules."""
    reward: float
    done: bool
    info: TextInfo


class TextVectorStep(NamedTuple):
    """Result of one step of a batch."""

    texts: list[str]
    rewards: NDArray[np.float32]
    dones: NDArray[np.bool_]
    infos: list[TextInfo]

    @classmethod
    def stack(cls, steps: Sequence[TextStep]) -> "TextVectorStep":
        """Combine the steps of single environments."""
        return cls(
            [step.text for step in steps],
            np.array([step.reward for step in steps], np.float32),
            np.array([step.done for step in steps], bool),
            [step.info for step in steps],
        )


@dataclasses.dataclass(frozen=True)
class TextRewards:
    """Rewards by the outcome of an answer."""

    solved: float = 1.0
    """The answer solved the episode."""
    valid: float = 0.0
    """The answer was a valid action."""
    invalid: float = -0.1
    """The answer was not a valid action."""


class TextEnvironment(abc.ABC):
    """One episode at a time, as text.

    `step` never raises because of an answer: an invalid answer leaves the state unchanged, and its result
    explains the error. After the end of an episode, `step` has no effect and its reward is 0, until `reset`.
    """

    blocking: bool = True
    """True if a step can take long (JAX, network), so that a server should run it in a thread."""

    @abc.abstractmethod
    def reset(self, seed: int) -> str:
        """Start the episode of a seed and return its first prompt: rules, state and answer format."""

    @abc.abstractmethod
    def step(self, answer: str) -> TextStep:
        """Take an answer of the model."""

    @property
    @abc.abstractmethod
    def prompt(self) -> str:
        """Everything needed to answer now, including the rules: the input of a policy without memory."""

    @property
    def state_key(self) -> str:
        """A short text that identifies the current state across episodes; empty if there is none."""
        return ""

    def expert_actions(self) -> list[str] | None:
        """Return answers that solve the episode from here, or None if no solver knows any."""
        return None

    def legal_actions(self) -> list[str] | None:
        """List the answers that are valid now, or return None if they are not known."""
        return None

    def close(self) -> None:
        """Release resources."""
        return


class TextVectorEnvironment:
    """Text environments that move together, one answer for each; where an episode is over nothing happens."""

    def __init__(self, environments: Sequence[TextEnvironment]) -> None:
        if not environments:
            raise ValueError("a batch needs at least one environment")
        self.environments = list(environments)

    def __len__(self) -> int:
        return len(self.environments)

    @property
    def prompts(self) -> list[str]:
        """What each environment asks now, rules included."""
        return [environment.prompt for environment in self.environments]

    def reset(self, seeds: Sequence[int]) -> list[str]:
        """Start an episode in each environment."""
        return self.reset_where([True] * len(self), seeds)

    def reset_where(self, mask: Sequence[bool] | NDArray[np.bool_], seeds: Sequence[int]) -> list[str]:
        """Start episodes where the mask says so; the texts of the others are their prompts."""
        self._check(seeds, "seeds")
        self._check(mask, "mask")
        started = [number for number, wanted in enumerate(mask) if wanted]
        texts = dict(zip(started, self._start(started, [int(seeds[n]) for n in started]), strict=True))
        return [texts.get(n) or each.prompt for n, each in enumerate(self.environments)]

    def step(self, answers: Sequence[str]) -> TextVectorStep:
        """Take an answer in each environment."""
        self._check(answers, "answers")
        return TextVectorStep.stack(
            [each.step(answer) for each, answer in zip(self.environments, answers, strict=True)]
        )

    def close(self) -> None:
        """Close every environment."""
        for environment in self.environments:
            environment.close()

    def _start(self, places: list[int], seeds: list[int]) -> list[str]:
        """Episodes of some environments; a batch that can make them together does."""
        return [self.environments[n].reset(seed) for n, seed in zip(places, seeds, strict=True)]

    def _check(self, items: Sequence[object] | NDArray[np.bool_], what: str) -> None:
        if len(items) != len(self):
            raise ValueError(f"{what} must be {len(self)}, one for each environment, got {len(items)}")


def finished_step(info: TextInfo) -> TextStep:
    """Return the result of a step after the end of an episode."""
    return TextStep("The episode is over.", 0.0, True, info._replace(error=""))


def extract_answer(text: str) -> str:
    """Return the answer in a model's output: the content of the last `<answer>` tags, or the entire text.

    A code fence around the answer is removed.

    Raises:
        ValueError: If the answer is empty or too long.

    >>> extract_answer("Row 1 lacks 4. <answer>1 2 4</answer>"), extract_answer(" 1 2 4\\n")
    ('1 2 4', '1 2 4')
    >>> extract_answer("```text\\n1 2 4\\n```")
    '1 2 4'
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise ValueError(f"an answer has at most {MAX_ANSWER_CHARS:,} characters, got {len(text):,}")
    if "</answer>" in text:
        before, _, _ = text.rpartition("</answer>")
        text = before.rpartition("<answer>")[2]
    answer = text.strip()
    if answer.startswith("```") and answer.endswith("```") and "\n" in answer:
        answer = answer.partition("\n")[2].removesuffix("```").strip()
    if not answer:
        raise ValueError("the answer is empty")
    return answer


def quote(text: str, max_chars: int = 40) -> str:
    """Quote a model's text in an error message, shortened and in ASCII.

    >>> quote("x" * 50)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"
    """
    return ascii(text if len(text) <= max_chars else f"{text[: max_chars - 3]}...")


def validate_seed(seed: object) -> int:
    """Return an untrusted seed if it is an integer that every text environment accepts."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be an integer from 0 to {MAX_SEED}, got {str(seed)[:40]!r}")
    return seed
