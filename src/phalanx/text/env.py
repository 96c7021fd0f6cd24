"""Text environments: an episode as a text that asks, an answer, and the text that follows; one or many.

Which texts those are is up to the environments: puzzles are in `phalanx.puzzles`, the words of any
`Environment` in `text_bridge`, puzzle servers in `phalanx.data`.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_CHARACTERS = 20_000
"""An answer that is longer is refused unread."""


class TextInfo(NamedTuple):
    """What became of an answer, besides its reward."""

    refused: str = ""
    """Why the answer was no move, in words; empty where it was one."""
    solved: bool = False
    terminated: bool = False
    truncated: bool = False


class TextStep(NamedTuple):
    """What follows an answer."""

    text: str
    """What became of the answer, and how things stand; the rules were told by `reset`."""
    reward: float
    done: bool
    info: TextInfo


class TextVectorStep(NamedTuple):
    """What follows a batch of answers."""

    texts: list[str]
    rewards: NDArray[np.float32]
    dones: NDArray[np.bool_]
    infos: list[TextInfo]


@dataclasses.dataclass(frozen=True)
class TextRewards:
    """What each kind of answer is worth."""

    solved: float = 1.0
    accepted: float = 0.0
    refused: float = -0.1


class TextEnvironment(abc.ABC):
    """Episodes in words. An answer never raises: what is no move is refused in words, and may be tried again.

    A finished episode stays as it is and pays nothing, until `reset`.
    """

    @abc.abstractmethod
    def reset(self, seed: int) -> str:
        """Start the episode of a seed; the rules, the legal moves, and how things stand."""

    @abc.abstractmethod
    def step(self, answer: str) -> TextStep:
        """Take an answer."""

    @property
    @abc.abstractmethod
    def prompt(self) -> str:
        """Everything that one must know to answer now, rules included: what a policy without memory reads."""

    @property
    def board(self) -> str:
        """How things stand, in the fewest characters that tell puzzles apart; empty where nothing does."""
        return ""

    def demonstration(self) -> list[str] | None:
        """Answers that solve the episode from here on; None where no solver knows any."""
        return None

    def legal_moves(self) -> list[str] | None:
        """The answers that would be moves now; None where they are not known."""
        return None

    def close(self) -> None:
        """Let go of what the environment holds."""
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
        return stack_steps(
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


def stack_steps(steps: Sequence[TextStep]) -> TextVectorStep:
    """The steps of a batch."""
    return TextVectorStep(
        [step.text for step in steps],
        np.array([step.reward for step in steps], np.float32),
        np.array([step.done for step in steps], bool),
        [step.info for step in steps],
    )


def finished_step(info: TextInfo) -> TextStep:
    """What follows an answer to an episode that has ended."""
    return TextStep("The episode is over.", 0.0, True, info._replace(refused=""))


def extract_answer(text: str) -> str:
    """What a model means as its answer: what stands between the last `<answer>` tags, else all of the text.

    A code fence around it is taken off. A `ValueError` says so where there is nothing, or too much.

    >>> answer_in("Row 1 lacks 4. <answer>1 2 4</answer>"), answer_in(" 1 2 4\\n")
    ('1 2 4', '1 2 4')
    >>> answer_in("```text\\n1 2 4\\n```")
    '1 2 4'
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"an answer has at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
    if "</answer>" in text:
        before, _, _ = text.rpartition("</answer>")
        text = before.rpartition("<answer>")[2]
    answer = text.strip()
    if answer.startswith("```") and answer.endswith("```") and "\n" in answer:
        answer = answer.partition("\n")[2].removesuffix("```").strip()
    if not answer:
        raise ValueError("the answer is empty")
    return answer


def quote(text: str, most: int = 40) -> str:
    """A text as it is quoted back.

    >>> shortened("x" * 50)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"
    """
    return ascii(text if len(text) <= most else f"{text[: most - 3]}...")
