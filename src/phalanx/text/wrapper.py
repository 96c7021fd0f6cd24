"""Any `Environment` that has words as a text environment: alone, or as a batch that steps in one call.

The protocol is in `text_environment`; the words are the environment's own.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.environment import Environment
from phalanx.core.vector import select_rows
from phalanx.text.env import (
    TextEnvironment,
    TextInfo,
    TextRewards,
    TextStep,
    TextVectorEnvironment,
    TextVectorStep,
    extract_answer,
    finished_step,
)


class TextVectorWrapper(TextVectorEnvironment):
    """A batch of one environment's episodes, in its words; its rewards, and `rewards.invalid` for no move.

    Whatever is no move leaves the episode as it is; after `max_invalid_answers` in a row it is truncated.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        size: int,
        max_invalid_answers: int = 10,
        rewards: TextRewards = TextRewards(),  # noqa: B008 - frozen
    ) -> None:
        if not environment.has_text:
            raise ValueError(f"{type(environment).__name__} has no words for its states and actions")
        super().__init__([_Row(self, number) for number in range(size)])
        self.environment, self.max_invalid_answers, self.rewards = environment, max_invalid_answers, rewards
        self._states: Any = None
        self._observations: Any = None
        self._texts: list[str] = []
        self._infos = [TextInfo()] * size
        self._refused = [0] * size

    @property
    def prompts(self) -> list[str]:
        if self._states is None:
            raise ValueError("there are no episodes yet; call reset")
        return list(self._texts)

    @property
    def states(self) -> Any:
        """The episodes as they stand."""
        if self._states is None:
            raise ValueError("there are no episodes yet; call reset")
        return self._states

    def reset_where(self, mask: Sequence[bool] | np.ndarray, seeds: Sequence[int]) -> list[str]:
        self._check(seeds, "seeds")
        self._check(mask, "mask")
        wanted = np.asarray(mask, bool)
        numbers = jnp.asarray(np.asarray(seeds, np.uint32))
        if self._states is None:
            if not wanted.all():
                raise ValueError("there are no episodes yet; call reset")
            self._states, self._observations = _reset(self.environment, numbers)
        else:
            self._states, self._observations = _reset_where(
                self.environment, jnp.asarray(wanted), numbers, self._states, self._observations
            )
        for number in np.flatnonzero(wanted).tolist():
            self._infos[number], self._refused[number] = TextInfo(), 0
        self._look()
        return self.prompts

    def step(self, answers: Sequence[str]) -> TextVectorStep:
        self._check(answers, "answers")
        if self._states is None:
            raise ValueError("there are no episodes yet; call reset")
        over_before = [info.terminated or info.truncated for info in self._infos]
        meant, refused = [""] * len(self), [""] * len(self)
        for number, (answer, ended) in enumerate(zip(answers, over_before, strict=True)):
            try:
                meant[number] = "" if ended else extract_answer(answer)
            except ValueError as error:
                refused[number] = str(error)
        actions, reasons = self.environment.parse_actions(meant, self._states)
        refused = [first or second for first, second in zip(refused, reasons, strict=True)]
        for number, (reason, ended) in enumerate(zip(refused, over_before, strict=True)):
            if ended:
                continue
            self._refused[number] = self._refused[number] + 1 if reason else 0
            self._infos[number] = TextInfo(
                reason, truncated=self._refused[number] >= self.max_invalid_answers
            )
        moved = [not (reason or ended) for reason, ended in zip(refused, over_before, strict=True)]
        figures: dict[str, np.ndarray] = {}
        if any(moved):
            self._states, self._observations, found = _kept_step(
                self.environment, jnp.asarray(moved), self._states, self._observations, actions
            )
            figures = {name: np.asarray(values) for name, values in found.items()}
            self._look()
        steps = []
        for number, ended in enumerate(over_before):
            if ended:
                steps.append(finished_step(self._infos[number]))
                continue
            reward = self.rewards.invalid
            if moved[number]:
                ends = [bool(figures[name][number]) for name in ("solved", "terminated", "truncated")]
                self._infos[number] = TextInfo("", *ends)
                reward = float(figures["reward"][number])
            steps.append(self._told(number, reward))
        return TextVectorStep.stack(steps)

    def _told(self, number: int, reward: float) -> TextStep:
        info, text = self._infos[number], self._texts[number]
        if info.error:
            text = f"Not possible: {info.error}.\n\n{text}"
        return TextStep(text, reward, info.terminated or info.truncated, info)

    def _look(self) -> None:
        self._texts = self._texts_of(self._states)

    def _texts_of(self, states: Any) -> list[str]:
        """What the states ask; a batch may word it otherwise."""
        return self.environment.observation_texts(states)


class TextWrapper(TextEnvironment):
    """One episode of an environment in its words."""

    def __init__(self, environment: Environment, **settings: Any) -> None:
        self._batch = TextVectorWrapper(environment, size=1, **settings)

    def reset(self, seed: int) -> str:
        return self._batch.reset([seed])[0]

    def step(self, answer: str) -> TextStep:
        stepped = self._batch.step([answer])
        return TextStep(stepped.texts[0], float(stepped.rewards[0]), bool(stepped.dones[0]), stepped.infos[0])

    @property
    def prompt(self) -> str:
        return self._batch.prompts[0]


class _Row(TextEnvironment):
    """One row of a batch, to be read; rows cannot be stepped alone."""

    def __init__(self, batch: TextVectorWrapper, number: int) -> None:
        self._batch, self._number = batch, number

    def reset(self, seed: int) -> str:
        raise ValueError("reset the batch with reset_where")

    def step(self, answer: str) -> TextStep:
        raise ValueError("step the batch")

    @property
    def prompt(self) -> str:
        return self._batch.prompts[self._number]


def host_rows(states: Any, leaf_of: Callable[[Any], Any] = jnp.asarray) -> list[Any]:
    """The states of a batch, cut on the host: a device would run a program for each leaf of each row."""
    host = jax.device_get(states)
    size = jax.tree.leaves(host)[0].shape[0]
    return [jax.tree.map(lambda leaf, n=n: leaf_of(leaf[n]), host) for n in range(size)]


def read_actions(
    read: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]
) -> tuple[list[Any] | None, list[str]]:
    """What `read` makes of each row's arguments, another row's where it refuses; and why, in words."""
    found: list[Any] = []
    reasons: list[str] = []
    for given in arguments:
        try:
            found.append(read(*given))
            reasons.append("")
        except ValueError as error:
            found.append(None)
            reasons.append(str(error))
    filler = next((action for action in found if action is not None), None)
    if filler is None:
        return None, reasons
    return [filler if action is None else action for action in found], reasons


# Functions of the module, so that batches of the same environment share what is compiled. The keys are of the
# older kind, which every environment takes; both kinds of a seed give the same numbers.
@functools.partial(jax.jit, static_argnums=0)
def _reset(environment: Environment, seeds: jax.Array) -> tuple[Any, Any]:
    return environment.batch_reset(jax.vmap(jax.random.PRNGKey)(seeds))


@functools.partial(jax.jit, static_argnums=0)
def _reset_where(
    environment: Environment, wanted: jax.Array, seeds: jax.Array, states: Any, observations: Any
) -> tuple[Any, Any]:
    return environment.batch_reset_where(wanted, jax.vmap(jax.random.PRNGKey)(seeds), states, observations)


@functools.partial(jax.jit, static_argnums=0)
def _kept_step(
    environment: Environment, moved: jax.Array, states: Any, observations: Any, actions: Any
) -> tuple[Any, Any, dict[str, jax.Array]]:
    """Step where there is a move and keep the others; and what the infos say."""
    stepped, seen, reward, _, info = environment.batch_step(states, actions)
    states, observations = select_rows(moved, (stepped, seen), (states, observations))
    solved = environment.measures(info).get("success_mask", jnp.zeros(moved.shape, bool))
    ended = info.terminated | info.truncated
    return (
        states,
        observations,
        {
            "reward": reward,
            "terminated": info.terminated,
            "truncated": info.truncated,
            "solved": solved & ended,
        },
    )
