"""`TextInterface`, which describes the states and actions of a JAX environment as text."""

import abc
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from phalanx.core.environment import Environment
from phalanx.core.vector import host_rows, parse_each

AnyEnvironment = TypeVar("AnyEnvironment", bound=Environment[Any, Any, Any])


class TextInterface(abc.ABC, Generic[AnyEnvironment]):
    """Prompts for the states of an environment, and the conversion of answers to actions and back.

    Subclasses implement `prompt`, `parse` and `format`, and can override the methods for batches with faster
    versions.

    Args:
        environment: The environment.
    """

    def __init__(self, environment: AnyEnvironment) -> None:
        self.environment = environment

    @abc.abstractmethod
    def prompt(self, state: Any) -> str:
        """Describe one state, the rules and the legal actions as a prompt for a language model."""

    @abc.abstractmethod
    def parse(self, answer: str, state: Any) -> Any:
        """Parse the action that a model takes in one state.

        Raises:
            ValueError: If the answer is not an action. The message is shown to the model.
        """

    @abc.abstractmethod
    def format(self, action: Any, state: Any) -> str:
        """Format a legal action so that `parse` can parse it."""

    def describe(self, action: Any, state: Any) -> str:
        """Describe a legal action for readers of the report. By default, this is the result of `format`."""
        return self.format(action, state)

    def prompts(self, states: PyTree, prompt_format: str = "full") -> list[str]:
        """Describe each state of a batch.

        Args:
            states: Batch of states.
            prompt_format: `full` includes the rules, and `compact` contains only the state, in few
                characters. Environments with only one format ignore this argument.
        """
        return [self.prompt(row) for row in host_rows(states)]

    def formats(self, actions: PyTree, states: PyTree) -> list[str]:
        """Format one action per state."""
        return [self.format(*row) for row in zip(host_rows(actions), host_rows(states), strict=True)]

    def parse_batch(self, answers: Sequence[str], states: PyTree) -> tuple[Any, list[str]]:
        """Parse one action per state.

        Returns:
            A batch of actions, and one error message per answer. The message is empty if the answer is an
            action. Otherwise, the action in the batch is arbitrary. If no answer is an action, None is
            returned instead of the batch.
        """
        found, errors = parse_each(self.parse, zip(answers, host_rows(states), strict=True))
        if found is None:
            return None, errors
        return jax.tree.map(lambda *parts: jnp.stack(list(map(jnp.asarray, parts))), *found), errors

    def episode_keys(self, states: PyTree) -> list[str]:
        """Return, for each initial state, a string that identifies its episode. It is not a PRNG key.

        The string determines the split of the episode: train, validation or test.
        """
        return self.prompts(states)
