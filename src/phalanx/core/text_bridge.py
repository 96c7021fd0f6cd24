"""Any `Environment` that has words as a text environment: alone, or as a batch that steps in one call.

The protocol is in `text_environment`; the words are the environment's own.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.batching import select_rows
from phalanx.core.environment import Environment
from phalanx.core.text_environment import (
    TextBatch,
    TextBatchStep,
    TextEnvironment,
    TextInfo,
    TextRewards,
    TextStep,
    answer_in,
    gathered,
    over,
)


class EnvironmentTextBatch(TextBatch):
    """A batch of one environment's episodes, in its words; its rewards, and `rewards.refused` for no move.

    Whatever is no move leaves the episode as it is; after `max_refused` in a row it is truncated.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        size: int,
        max_refused: int = 10,
        rewards: TextRewards = TextRewards(),  # noqa: B008 - frozen
    ) -> None:
        if not environment.has_text:
            raise ValueError(f"{type(environment).__name__} has no words for its states and actions")
        super().__init__([_Row(self, number) for number in range(size)])
        self.environment, self.max_refused, self.rewards = environment, max_refused, rewards
        self._states: Any = None
        self._observations: Any = None
        self._rows: list[Any] = []
        self._infos = [TextInfo()] * size
        self._refused = [0] * size

    @property
    def prompts(self) -> list[str]:
        if self._states is None:
            raise ValueError("there are no episodes yet; call reset")
        return [self.environment.observation_text(row) for row in self._rows]

    def reset_where(self, mask: Sequence[bool] | np.ndarray, seeds: Sequence[int]) -> list[str]:
        self._check(seeds, "seeds")
        self._check(mask, "mask")
        wanted = np.asarray(mask, bool)
        # Of the older kind, which every environment takes; both kinds of a seed give the same numbers.
        keys = jax.vmap(jax.random.PRNGKey)(jnp.asarray(np.asarray(seeds, np.uint32)))
        if self._states is None:
            if not wanted.all():
                raise ValueError("there are no episodes yet; call reset")
            self._states, self._observations = _reset(self.environment, keys)
        else:
            self._states, self._observations = _reset_where(
                self.environment, jnp.asarray(wanted), keys, self._states, self._observations
            )
        for number in np.flatnonzero(wanted).tolist():
            self._infos[number], self._refused[number] = TextInfo(), 0
        self._look()
        return self.prompts

    def step(self, answers: Sequence[str]) -> TextBatchStep:
        self._check(answers, "answers")
        if self._states is None:
            raise ValueError("there are no episodes yet; call reset")
        over_before = [info.terminated or info.truncated for info in self._infos]
        actions: list[Any] = [None] * len(self)
        for number, (answer, ended) in enumerate(zip(answers, over_before, strict=True)):
            if ended:
                continue
            try:
                actions[number] = self.environment.parse_action(answer_in(answer), self._rows[number])
                self._refused[number] = 0
            except ValueError as error:
                self._refused[number] += 1
                given_up = self._refused[number] >= self.max_refused
                self._infos[number] = TextInfo(str(error), truncated=given_up)
        moved = [action is not None for action in actions]
        figures: dict[str, np.ndarray] = {}
        if any(moved):
            filler = next(action for action in actions if action is not None)
            stacked = jax.tree.map(lambda *parts: jnp.stack(list(map(jnp.asarray, parts))),
                                   *(filler if action is None else action for action in actions))  # fmt: skip
            self._states, self._observations, found = _kept_step(
                self.environment, jnp.asarray(moved), self._states, self._observations, stacked
            )
            figures = {name: np.asarray(values) for name, values in found.items()}
            self._look()
        steps = []
        for number, ended in enumerate(over_before):
            if ended:
                steps.append(over(self._infos[number]))
                continue
            reward = self.rewards.refused
            if moved[number]:
                ends = [bool(figures[name][number]) for name in ("solved", "terminated", "truncated")]
                self._infos[number] = TextInfo("", *ends)
                reward = float(figures["reward"][number])
            steps.append(self._told(number, reward))
        return gathered(steps)

    def _told(self, number: int, reward: float) -> TextStep:
        info = self._infos[number]
        text = self.environment.observation_text(self._rows[number])
        if info.refused:
            text = f"Not possible: {info.refused}.\n\n{text}"
        return TextStep(text, reward, info.terminated or info.truncated, info)

    def _look(self) -> None:
        """The rows as they stand, cut on the host: a device would run a program for each leaf of each row."""
        named = self.environment.bind(self._states)
        host = jax.device_get(named)
        self._rows = [jax.tree.map(lambda leaf, n=n: jnp.asarray(leaf[n]), host) for n in range(len(self))]


class EnvironmentText(TextEnvironment):
    """One episode of an environment in its words."""

    def __init__(self, environment: Environment, **settings: Any) -> None:
        self._batch = EnvironmentTextBatch(environment, size=1, **settings)

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

    def __init__(self, batch: EnvironmentTextBatch, number: int) -> None:
        self._batch, self._number = batch, number

    def reset(self, seed: int) -> str:
        raise ValueError("reset the batch with reset_where")

    def step(self, answer: str) -> TextStep:
        raise ValueError("step the batch")

    @property
    def prompt(self) -> str:
        return self._batch.prompts[self._number]


# Functions of the module, so that batches of the same environment share what is compiled.
@functools.partial(jax.jit, static_argnums=0)
def _reset(environment: Environment, keys: jax.Array) -> tuple[Any, Any]:
    return environment.batch_reset(keys)


@functools.partial(jax.jit, static_argnums=0)
def _reset_where(
    environment: Environment, wanted: jax.Array, keys: jax.Array, states: Any, observations: Any
) -> tuple[Any, Any]:
    return environment.batch_reset_where(wanted, keys, states, observations)


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
