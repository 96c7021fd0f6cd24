"""Wrappers that present JAX environments with a text interface as text environments."""

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx import registry
from phalanx.core.environment import Environment, is_done
from phalanx.core.expert import Expert, ExpertLabels
from phalanx.core.text import TextInterface
from phalanx.core.vector import select_rows
from phalanx.text.answers import extract_answer
from phalanx.text.env import (
    PromptFormat,
    TaskSeed,
    TextEnvironment,
    TextInfo,
    TextRewardValues,
    TextStep,
    TextVectorEnvironment,
    TextVectorStep,
    finished_step,
)

_NUM_SEEDS = 2**32
"""Number of seeds that a JAX environment distinguishes. Larger seeds are taken modulo this number."""


class JaxTextVectorEnvironment(TextVectorEnvironment):
    """Wraps a JAX environment as a vector text environment, which runs a batch of episodes.

    The JAX environment must be able to describe its states and actions as text. All rows of the batch are
    stepped in one compiled call. A valid answer gets the reward that the JAX environment returns. An invalid
    answer leaves the state unchanged and gets `rewards.invalid` as its reward.

    The expert must see every step of an episode: a row has expert answers only if `expert_actions` was called
    before each of its steps and all its answers were valid.

    Args:
        text: Text interface of the JAX environment.
        create_expert: Function that creates the expert. If None, there are no expert answers.
        task: Name of the vector environment's only task. If it is empty, the name of the JAX environment's
            class is used.
        max_consecutive_invalid_answers: Number of consecutive invalid answers after which an episode is
            truncated.
        rewards: Reward for invalid answers. Only the `invalid` field is used.
        prompt_format: `full` or `compact`, if the environment supports both.
    """

    expert_batch_size = 64

    def __init__(
        self,
        text: TextInterface[Any],
        *,
        create_expert: Callable[[], Expert] | None = None,
        task: str = "",
        max_consecutive_invalid_answers: int = 10,
        rewards: TextRewardValues = TextRewardValues(),  # noqa: B008 - frozen
        prompt_format: PromptFormat = "full",
    ) -> None:
        self.text, self.environment, self.rewards = text, text.environment, rewards
        self._create_expert = create_expert
        self.max_consecutive_invalid_answers = max_consecutive_invalid_answers
        self.prompt_format = prompt_format
        self.tasks = (task or type(self.environment).__name__,)
        self.fingerprint = f"{self.tasks[0]} {prompt_format}"
        self._states: Any = None
        self._prompts: list[str] = []
        self._infos: list[TextInfo] = []
        self._num_invalid: list[int] = []
        self._expert_memory: Any = None
        self._expert_labels: ExpertLabels | None = None
        self._expert_follows = np.zeros(0, bool)

    @property
    def prompts(self) -> list[str]:
        if not self._episodes:
            raise ValueError("there are no episodes yet; call reset or start")
        return list(self._prompts)

    def start(self, episodes: Sequence[TaskSeed]) -> list[str]:
        self._check_episodes(episodes)
        self._episodes = list(episodes)
        self._infos = [TextInfo()] * len(episodes)
        self._num_invalid = [0] * len(episodes)
        self._states = self._initial_states([seed for _, seed in episodes])
        self._expert_memory, self._expert_labels = None, None
        self._expert_follows = np.ones(len(episodes), bool)
        self._update_prompts()
        return self.prompts

    def step(self, answers: Sequence[str]) -> TextVectorStep:
        self._check_answers(answers)
        was_done = [info.done for info in self._infos]
        texts, errors = [""] * len(self), [""] * len(self)
        for row, (answer, done) in enumerate(zip(answers, was_done, strict=True)):
            try:
                texts[row] = "" if done else extract_answer(answer)
            except ValueError as exception:
                errors[row] = str(exception)
        actions, parse_errors = self.text.parse_batch(texts, self._states)
        errors = [first or second for first, second in zip(errors, parse_errors, strict=True)]
        moved = np.array([not (error or done) for error, done in zip(errors, was_done, strict=True)])
        self._advance_expert(moved, actions)
        if moved.any():
            self._states, outcomes = _step_where(self.environment, moved, self._states, actions)
            rewards, *flags = map(np.asarray, outcomes)
            self._update_prompts()
        steps = []
        for row, done in enumerate(was_done):
            if done:
                steps.append(finished_step(self._infos[row]))
                continue
            text, reward = self._prompts[row], self.rewards.invalid
            if moved[row]:
                self._num_invalid[row], reward = 0, float(rewards[row])
                info = TextInfo("", *(bool(flag[row]) for flag in flags))
            else:
                self._num_invalid[row] += 1
                truncated = self._num_invalid[row] >= self.max_consecutive_invalid_answers
                info = TextInfo(errors[row], truncated=truncated)
                text = f"Not possible: {info.error}.\n\n{text}"
            self._infos[row] = info
            steps.append(TextStep(text, reward, info.done, info))
        return TextVectorStep.stack(steps)

    def legal_actions(self, rows: Sequence[int]) -> list[list[str] | None]:
        return [None for _ in rows]

    def expert_actions(self, rows: Sequence[int]) -> list[str | None]:
        followed = self._expert_follows
        rows_with_expert = [row for row in rows if followed[row] and not self._infos[row].done]
        if self._expert is None or not rows_with_expert:
            return [None for _ in rows]
        if self._expert_labels is None:
            if self._expert_memory is None:
                self._expert_memory = self._expert.init(self._states)
            self._expert_labels = self._expert.label(self._states, self._expert_memory)
        labels = self._expert_labels
        first = jax.tree.map(lambda leaf: leaf[:, 0], labels.actions)
        texts = self.text.formats(first, self._states)
        return [texts[row] if row in rows_with_expert and labels.mask[row, 0] else None for row in rows]

    def sample_actions(self, rows: Sequence[int], rng: random.Random) -> list[str]:
        seed = np.uint32(rng.getrandbits(32))
        texts = self.text.formats(_sample(self.environment, seed, self._states), self._states)
        return [texts[row] for row in rows]

    def state_keys(self) -> list[str]:
        return [""] * len(self)

    def episode_keys(self) -> list[str]:
        return self._episode_keys_of(self.tasks[0], [seed for _, seed in self._episodes])

    def close(self) -> None:
        return

    def _episode_keys_of(self, task: str, seeds: Sequence[int]) -> list[str]:
        return self.text.episode_keys(self._initial_states(seeds))

    @functools.cached_property
    def _expert(self) -> Expert | None:
        return None if self._create_expert is None else self._create_expert()

    def _advance_expert(self, moved: np.ndarray, actions: Any) -> None:
        """Update the expert's memory with the actions of a step.

        `moved` is a mask of the rows that take the step: those in which the answer is valid and the episode
        has not ended.
        """
        if self._expert_labels is None:
            self._expert_follows = self._expert_follows & ~moved
            return
        assert self._expert is not None
        if moved.any():
            self._expert_memory = self._expert.advance(
                self._expert_memory, self._expert_labels, actions, np.zeros(len(self), bool)
            )
        # In rows without a valid answer, the expert was advanced with an arbitrary action.
        self._expert_follows = self._expert_follows & moved
        self._expert_labels = None

    def _update_prompts(self) -> None:
        self._prompts = self.text.prompts(self._states, self.prompt_format)

    def _initial_states(self, seeds: Sequence[int]) -> Any:
        wrapped = np.asarray([seed % _NUM_SEEDS for seed in seeds], np.uint32)
        return _reset(self.environment, wrapped)


class JaxTextEnvironment(TextEnvironment):
    """Wraps a JAX environment as a text environment, which runs one episode at a time.

    Args:
        text: Text interface of the JAX environment.
        **settings: Keyword arguments that are passed to `JaxTextVectorEnvironment`.
    """

    def __init__(self, text: TextInterface[Any], **settings: Any) -> None:
        self._batch = JaxTextVectorEnvironment(text, **settings)

    def reset(self, seed: int) -> str:
        return self._batch.reset([seed])[0]

    def step(self, answer: str) -> TextStep:
        step = self._batch.step([answer])
        return TextStep(step.texts[0], float(step.rewards[0]), bool(step.dones[0]), step.infos[0])

    @property
    def prompt(self) -> str:
        return self._batch.prompts[0]

    @property
    def episode_key(self) -> str:
        return self._batch.episode_keys()[0]

    def expert_actions(self) -> list[str] | None:
        """Return the expert's next answer as a list of length 1, or None if the expert has no answer.

        Call this before every step of the episode, because the expert must see every step.
        """
        [action] = self._batch.expert_actions([0])
        return None if action is None else [action]


def wrap_environment(name: str, environment: Environment, **settings: Any) -> JaxTextEnvironment:
    """Wrap a JAX environment as a text environment.

    Args:
        name: Name of the environment, whose `EnvSpec` defines its text and its expert.
        environment: The environment.
        **settings: Keyword arguments of `JaxTextEnvironment`.
    """
    text, create_expert = _text_and_expert(name, environment)
    return JaxTextEnvironment(text, create_expert=create_expert, **settings)


def wrap_vector_environment(name: str, environment: Environment, **settings: Any) -> JaxTextVectorEnvironment:
    """Wrap a JAX environment as a vector text environment, whose only task has the name of the environment.

    The arguments are those of `wrap_environment`.
    """
    text, create_expert = _text_and_expert(name, environment)
    return JaxTextVectorEnvironment(text, create_expert=create_expert, **{"task": name, **settings})


def _text_and_expert(
    name: str, environment: Environment
) -> tuple[TextInterface[Any], Callable[[], Expert] | None]:
    full_name, spec = registry.find(name)
    if spec.text is None:
        raise ValueError(f"{full_name} has no text for its states and actions: set EnvSpec.text")
    create_expert = None if spec.expert is None else functools.partial(spec.expert, environment)
    return spec.text(environment), create_expert


# The functions use legacy `uint32` keys, which every environment accepts and which give the same random
# numbers as typed keys.


@functools.partial(jax.jit, static_argnums=0)
def _reset(environment: Environment, seeds: Any) -> Any:
    states, _ = environment.batch_reset(jax.vmap(jax.random.PRNGKey)(seeds))
    return states


@functools.partial(jax.jit, static_argnums=0)
def _step_where(environment: Environment, mask: Any, states: Any, actions: Any) -> Any:
    new_states, _, reward, _, _ = environment.batch_step(states, actions)
    states = select_rows(mask, new_states, states)
    metrics = jax.vmap(environment.metrics)(new_states)
    solved = metrics.get("success", jnp.zeros(mask.shape, bool)) & is_done(new_states)
    return states, (reward, solved, new_states.terminated, new_states.truncated)


@functools.partial(jax.jit, static_argnums=0)
def _sample(environment: Environment, seed: Any, states: Any) -> Any:
    size = jax.tree.leaves(states)[0].shape[0]
    keys = jax.random.split(jax.random.PRNGKey(seed), size)
    return jax.vmap(environment.sample_action)(keys, states)
