"""The `Environment` protocol, a pure reset and a pure step; and `TracedEnvironment`, with arrays of its own.

Auto-reset, episode running and padding are layers above it, in the neighbouring modules.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.config import register_configs_with_jax
from phalanx.core.spaces import Space
from phalanx.nn.distributions import Key as Key, Keys as Keys

# Configs that were defined before anything imported JAX.
register_configs_with_jax()

State = TypeVar("State")
Observation = TypeVar("Observation")
Action = TypeVar("Action")
Traced = TypeVar("Traced", bound="TracedEnvironment")


@runtime_checkable
class TransitionInfo(Protocol):
    """What every environment's info says at least: how the episode ended, if it ended."""

    terminated: Any
    truncated: Any


class Environment(abc.ABC, Generic[State, Observation, Action]):
    """A Markov decision process as pure functions; an instance holds settings only and is hashable.

    Instances are static pytrees: they pass through `jax.jit` as they are, and two equal instances share
    one compilation (a `TracedEnvironment` has arrays besides, which are arguments). `step` never raises on a
    bad action and never resets; a finished state stays as it is and pays nothing.

    What an environment may say of itself besides has a default: legal actions, measures, a picture, a task's
    name, words. Whoever needs one of these asks the environment, never its class.
    """

    version: ClassVar[int] = 1
    """Raised whenever the same keys and actions no longer give the same episodes."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._register()

    @classmethod
    def _register(cls) -> None:
        """Tell JAX what an instance is to it."""
        jax.tree_util.register_static(cls)

    @property
    @abc.abstractmethod
    def observation_space(self) -> Space:
        """What one observation looks like."""

    @property
    @abc.abstractmethod
    def action_space(self) -> Space:
        """What one action looks like; every member of it may be passed to `step`."""

    @abc.abstractmethod
    def reset(self, key: Key) -> tuple[State, Observation]:
        """Start an episode. The same key gives the same episode."""

    @abc.abstractmethod
    def step(
        self, state: State, action: Action
    ) -> tuple[State, Observation, Float[Array, ""], Bool[Array, ""], TransitionInfo]:
        """One transition: state, observation, reward, done (terminated or truncated), info."""

    @abc.abstractmethod
    def observe(self, state: State) -> Observation:
        """The observation that belongs to a state."""

    @abc.abstractmethod
    def is_done(self, state: State) -> Bool[Array, "*batch"]:
        """Whether the episode has ended, for one state or a batch of them."""

    @abc.abstractmethod
    def sample_action(self, key: Key, state: State) -> Action:
        """A random action that is legal in this state."""

    def invalid_action(self, key: Key, state: State) -> Action | None:
        """A random action that is masked out or malformed in this state; None where there is none."""
        return None

    def content(self, state: State) -> PyTree:
        """What an invalid action must leave alone: all of a state but clocks and done flags."""
        return state

    def legal_actions(self, state: State) -> Bool[Array, "*batch actions"] | None:
        """Which choices are legal in a state, for one state or a batch; None where all of them always are.

        The mask is over the action itself where that is one number, else over its first field.
        """
        return None

    def measures(self, info: TransitionInfo) -> dict[str, Array]:
        """What an info says of an episode that just ended, by the logger's names (`success_mask`, ...)."""
        return {}

    @property
    def render_modes(self) -> tuple[str, ...]:
        """The modes that `render` knows, of `svg`, `ansi` and `rgb_array`."""
        return ()

    def render(self, state: State, mode: str = "svg") -> Any:
        """A picture of one state: `svg` or `ansi` text, or `rgb_array`, pixels as uint8 [height, width, 3].

        None where an environment has no pictures at all.
        """
        return None

    def task_name(self, state: State) -> str:
        """The name of what one state's episode is about; empty where episodes have no names."""
        return ""

    @property
    def has_text(self) -> bool:
        """Whether states and actions have words, so that the three methods below can be called."""
        return False

    def observation_text(self, state: State) -> str:
        """One state in words, with the rules and the legal moves: what a language model is asked."""
        raise ValueError(f"{type(self).__name__} has no words for its states")

    def parse_action(self, text: str, state: State) -> Action:
        """The action that a text names in a state; a `ValueError` says in words why it names none."""
        raise ValueError(f"{type(self).__name__} has no words for its actions")

    def action_text(self, action: Action, state: State) -> str:
        """A text from which `parse_action` reads a legal action back: what a model would answer."""
        raise ValueError(f"{type(self).__name__} has no words for its actions")

    def observation_texts(self, states: State) -> list[str]:
        """`observation_text` for a batch of states; environments may do it faster."""
        from phalanx.text.wrapper import host_rows  # which builds on this module

        return [self.observation_text(row) for row in host_rows(self.bind(states))]

    def parse_actions(self, texts: Sequence[str], states: State) -> tuple[Action | None, list[str]]:
        """`parse_action` for a batch: the actions, and why a text names none, in words, empty where it does.

        An action stands where a text names none too, and means nothing; there are none if no text names one.
        """
        from phalanx.text.wrapper import host_rows, read_actions

        rows = host_rows(self.bind(states))
        found, reasons = read_actions(self.parse_action, zip(texts, rows, strict=True))
        if found is None:
            return None, reasons
        return jax.tree.map(lambda *parts: jnp.stack(list(map(jnp.asarray, parts))), *found), reasons

    def bind(self, states: State) -> State:
        """States that know by name what this environment knows, such as tasks' ids; for reading and drawing.

        States made inside a compiled program that has the environment as an argument know no names.
        """
        return states

    def unbind(self, states: State) -> State:
        """States without names, so that a program compiled for them serves others of the same shapes.

        A `ValueError` says so where the states are another environment's.
        """
        return states

    def batch_reset(self, keys: Keys) -> tuple[State, Observation]:
        """`reset` for a batch of keys."""
        return jax.vmap(self.reset)(keys)

    def batch_step(
        self, states: State, actions: Action
    ) -> tuple[State, Observation, Float[Array, " batch"], Bool[Array, " batch"], TransitionInfo]:
        """`step` for a batch of states."""
        return jax.vmap(self.step)(states, actions)

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: State, observations: Observation
    ) -> tuple[State, Observation]:
        """Start new episodes where `mask` says so and keep the others; environments may do it faster."""
        from phalanx.core.vector import select_rows  # which builds on this module

        return select_rows(mask, self.batch_reset(keys), (states, observations))


@runtime_checkable
class EnvironmentConfigLike(Protocol):
    """A config that can build its environment: what the seeds' `(config, task)` functions take."""

    def environment_for(self, task: Any = None) -> Environment: ...


def as_environment(config: Environment | EnvironmentConfigLike, task: Any = None) -> Environment:
    """The environment itself, or the one that a config (and task) describes."""
    if isinstance(config, Environment):
        if task is not None:
            raise TypeError(f"{type(config).__name__} already holds its tasks; pass a config to name a task")
        return config
    # Not by `isinstance` with the protocol, which takes as long as a step of a few environments.
    if callable(getattr(config, "environment_for", None)):
        return config.environment_for(task)
    raise TypeError(
        f"expected an Environment or a config with environment_for(task), got {type(config).__name__}"
    )


class TracedEnvironment(Environment[State, Observation, Action]):
    """A frozen dataclass, `eq=False`, some of whose fields hold arrays: tasks, weights, numbers of a reward.

    As an argument of a compiled function it brings these arrays along, so that one compilation serves all
    environments whose arrays have the same shapes. In a closure or as a static argument, for which it is
    hashed by content, they are constants.
    """

    traced_fields: ClassVar[tuple[str, ...]]
    """Fields that are arrays or pytrees of them."""
    named_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that tell the names of what arrays hold; None inside a program that is given the environment."""

    @classmethod
    def _register(cls) -> None:
        jax.tree_util.register_pytree_node_class(cls)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        """Arrays as children, settings beside them; names stay behind, or new ones would compile anew."""
        settings = tuple((name, getattr(self, name)) for name in _settings(type(self)))
        return tuple(getattr(self, name) for name in self.traced_fields), settings

    @classmethod
    def tree_unflatten(
        cls: type[Traced], settings: tuple[tuple[str, Any], ...], children: tuple[Any, ...]
    ) -> Traced:
        """The environment again, without its names."""
        made = object.__new__(cls)
        arrays = zip(cls.traced_fields, children, strict=True)
        for name, value in (*settings, *arrays, *((name, None) for name in cls.named_fields)):
            object.__setattr__(made, name, value)
        return made

    @functools.cached_property
    def _identity(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(self)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise TypeError(
                f"a {type(self).__name__} with traced arrays has no hash: pass it to compiled functions as "
                "an argument, not as a static one"
            )
        return structure, *((np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in leaves)

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._identity)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, TracedEnvironment)
            and hash(self) == hash(other)
            and self._identity == other._identity
            and all(getattr(self, name) == getattr(other, name) for name in self.named_fields)
        )


@functools.cache
def _settings(cls: type[Any]) -> tuple[str, ...]:
    """The fields that are neither arrays nor names; asked for at every call of a compiled function."""
    aside = {*cls.traced_fields, *cls.named_fields}
    return tuple(field.name for field in dataclasses.fields(cls) if field.name not in aside)
