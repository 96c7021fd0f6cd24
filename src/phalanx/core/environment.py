"""The `Environment` protocol, and `TracedEnvironment` for environments that contain arrays."""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.config import Config, register_configs_with_jax
from phalanx.core.evaluation import EpisodeEvaluationConfig, EvaluationConfig, EvaluationResult
from phalanx.core.spaces import Space
from phalanx.nn.distributions import Key as Key, Keys as Keys

if TYPE_CHECKING:
    from pathlib import Path

    from phalanx.core.expert import Expert

# Configs that were defined before JAX was imported.
register_configs_with_jax()

State = TypeVar("State")
Observation = TypeVar("Observation")
Action = TypeVar("Action")
Traced = TypeVar("Traced", bound="TracedEnvironment")
AnyEnvironment = TypeVar("AnyEnvironment", bound="Environment[Any, Any, Any]")


@runtime_checkable
class TransitionInfo(Protocol):
    """Fields that the info of every environment has: whether and how the episode ended."""

    @property
    def terminated(self) -> Any: ...

    @property
    def truncated(self) -> Any: ...


class Environment(abc.ABC, Generic[State, Observation, Action]):
    """A Markov decision process as pure functions.

    An instance contains only settings and is hashable. Instances are static pytrees: they can be passed to
    jitted functions, and equal instances share one compilation. `step` never raises because of an invalid
    action and never resets; a finished state stays unchanged, with reward 0.

    Optional capabilities, such as legal actions, rendering, text, a default network or an evaluation, are
    methods and class attributes with a default.
    """

    version: ClassVar[int] = 1
    """Incremented when the same keys and actions no longer give the same episodes."""
    config_type: ClassVar[type[Config] | None] = None
    """Class of the environment's settings, the section `env` of a training config. None if the settings are
    arguments of the constructor."""
    network_config: ClassVar[type[Config] | None] = None
    """Class of the settings of `default_network`, the section `network` of a training config."""
    evaluation_config: ClassVar[type[EvaluationConfig]] = EpisodeEvaluationConfig
    """Class of the settings of evaluations during training, the section `evaluation` of a training config."""
    eval_config: ClassVar[type[Config] | None] = None
    """Class of the settings of `phalanx eval`. None if they are those of `evaluation_config`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._register()

    @classmethod
    def _register(cls) -> None:
        """Register the class as a pytree."""
        jax.tree_util.register_static(cls)

    if TYPE_CHECKING:

        @property
        def max_episode_steps(self) -> int:
            """Number of steps after which every episode has ended."""
    else:
        # Not a property at run time: a dataclass would take it as the default of a field with this name.
        max_episode_steps = 1000

    @property
    @abc.abstractmethod
    def observation_space(self) -> Space:
        """Space of one observation."""

    @property
    @abc.abstractmethod
    def action_space(self) -> Space:
        """Space of one action. `step` accepts every member."""

    @abc.abstractmethod
    def reset(self, key: Key) -> tuple[State, Observation]:
        """Start an episode. The same key gives the same episode."""

    @abc.abstractmethod
    def step(
        self, state: State, action: Action
    ) -> tuple[State, Observation, Float[Array, ""], Bool[Array, ""], TransitionInfo]:
        """Take a step.

        Returns:
            State, observation, reward, done (terminated or truncated) and info.
        """

    @abc.abstractmethod
    def observe(self, state: State) -> Observation:
        """Return the observation of a state."""

    @abc.abstractmethod
    def is_done(self, state: State) -> Bool[Array, "*batch"]:
        """Return whether the episode has ended, for one state or a batch of states."""

    @abc.abstractmethod
    def sample_action(self, key: Key, state: State) -> Action:
        """Sample a legal action."""

    @classmethod
    def from_config(cls: type[AnyEnvironment], config: Any, **objects: Any) -> AnyEnvironment:
        """Create an environment from its settings.

        Args:
            config: Settings of the class `config_type`; if that is None, a mapping of keyword arguments.
            objects: Objects that replace what the settings describe, such as tasks.
        """
        if cls.config_type is not None:
            raise ValueError(f"{cls.__name__} has a config_type and must define from_config")
        return cls(**config, **objects)

    @classmethod
    def default_network(cls, settings: Any, config: Any, key: Key) -> Any:
        """Create a policy network for the observations and actions of this environment.

        Args:
            settings: Settings of the environment. Tasks and other data are not needed and not read, except
                for what determines shapes.
            config: Settings of the class `network_config`.
            key: PRNG key for the initial parameters.

        Returns:
            A `PolicyNetwork`; None if the environment has no default network.
        """
        return None

    def evaluate(self, network: Any, settings: EvaluationConfig, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate a policy network on episodes that it was not trained on.

        Args:
            network: The `PolicyNetwork`.
            settings: Settings of the class `evaluation_config` (during training) or `eval_config`
                (`phalanx eval`).
            final: Whether this is the last evaluation of a run, which may take longer.

        Returns:
            The results. By default, greedy episodes in the environment itself are evaluated.
        """
        from phalanx.core.evaluation import evaluate_episodes

        return evaluate_episodes(self, network, settings)

    def at_step(self, step: int) -> "Environment":
        """Return the environment of new episodes after a number of steps per environment.

        A curriculum returns its current stage. The default is the environment itself.
        """
        return self

    def fingerprint(self) -> str:
        """Return a digest of the data that the environment was created from, such as tasks; empty if none."""
        return ""

    def metadata(self) -> dict[str, Any]:
        """Return facts about the data for `run.json`, as JSON values."""
        return {}

    def held_out(
        self: AnyEnvironment, settings: EvaluationConfig
    ) -> "AnyEnvironment | Environment[Any, Any, Any]":
        """Return the environment that `evaluate` runs episodes in, for rendering and recording episodes.

        Args:
            settings: Settings of the class `evaluation_config`.
        """
        return self

    def export_policy(self, network: Any, folder: "Path", settings: EvaluationConfig) -> None:
        """Write files for other programs, such as the report page, to the folder of a finished run.

        Args:
            network: The `PolicyNetwork`.
            folder: Run folder.
            settings: Settings of the run's evaluations, which determine the held-out episodes.
        """

    def invalid_action(self, key: Key, state: State) -> Action | None:
        """Sample an action that is illegal or malformed in this state; None if there is none."""
        return None

    def comparable_state(self, state: State) -> PyTree:
        """Return the part of a state that an invalid action must not change: no clocks or done flags."""
        return state

    def legal_actions(self, state: State) -> Bool[Array, "*batch actions"] | None:
        """Return the mask of legal actions, for one state or a batch; None if all actions are always legal.

        If an action is a composite, the mask applies to its first field.
        """
        return None

    def episode_metrics(self, info: TransitionInfo) -> dict[str, Array]:
        """Return metrics of an episode that has ended, by the logger's names, such as `success_mask`."""
        return {}

    @property
    def render_modes(self) -> tuple[str, ...]:
        """Modes that `render` supports: any of `svg`, `ansi` and `rgb_array`."""
        return ()

    def render(self, state: State, mode: str = "svg") -> Any:
        """Render one state as `svg` or `ansi` text or as `rgb_array`, uint8 pixels [height, width, 3].

        Returns None if the environment cannot be rendered.
        """
        return None

    def render_episodes(self, episodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Convert the records of `record_episodes` for the episode viewer.

        An environment whose states cannot be drawn on their own replaces them with objects that can.
        """
        return list(episodes)

    def task_name(self, state: State) -> str:
        """Return the name of the task of one state's episode; empty if tasks have no names."""
        return ""

    def tokenizer(self) -> Any:
        """Return an `EpisodeTokenizer` for episodes of this environment, or None if it has none."""
        return None

    @property
    def has_text(self) -> bool:
        """Whether states and actions can be converted to text with the methods below."""
        return False

    def observation_text(self, state: State) -> str:
        """Describe one state to a language model, with the rules and the legal actions."""
        raise ValueError(f"{type(self).__name__} has no text observations")

    def parse_action(self, text: str, state: State) -> Action:
        """Parse an action; raise `ValueError` with an explanation if the text is not an action."""
        raise ValueError(f"{type(self).__name__} has no text actions")

    def action_text(self, action: Action, state: State) -> str:
        """Format a legal action such that `parse_action` can parse it."""
        raise ValueError(f"{type(self).__name__} has no text actions")

    def observation_texts(self, states: State, prompt_format: str = "full") -> list[str]:
        """Describe a batch of states. Environments can override this with a faster version.

        Args:
            states: Batch of states.
            prompt_format: `full` includes the rules; `compact` has only the state, in few characters. An
                environment with only one format uses that one.
        """
        from phalanx.core.vector import host_rows

        return [self.observation_text(row) for row in host_rows(self.attach_names(states))]

    def episode_keys(self, states: State) -> list[str]:
        """Return a text per initial state that identifies the episode and determines its split."""
        return self.observation_texts(states)

    def parse_actions(self, texts: Sequence[str], states: State) -> tuple[Action | None, list[str]]:
        """Parse one action per state.

        Returns:
            The actions, or None if no text is an action, and one error message per text, empty if the text
            is an action. Where it is not, the action is arbitrary.
        """
        from phalanx.core.vector import host_rows, read_actions

        rows = host_rows(self.attach_names(states))
        found, errors = read_actions(self.parse_action, zip(texts, rows, strict=True))
        if found is None:
            return None, errors
        return jax.tree.map(lambda *parts: jnp.stack(list(map(jnp.asarray, parts))), *found), errors

    def attach_names(self, states: State) -> State:
        """Attach names that this environment knows, such as task ids, for reading and rendering states.

        States created in a compiled program that takes the environment as an argument have no names.
        """
        return states

    def detach_names(self, states: State) -> State:
        """Remove names, so that states with the same shapes share one compilation.

        Raises:
            ValueError: If the states belong to another environment.
        """
        return states

    def expert(self) -> "Expert | None":
        """Return an expert for the episodes of this environment, or None. Behavior cloning needs one."""
        return None

    def refresh_tasks(
        self: AnyEnvironment, rng: np.random.Generator, seed: int, update: int
    ) -> AnyEnvironment:
        """Return the environment with the tasks of an update, with the same shapes.

        Args:
            rng: Generator of this update.
            seed: Seed of the run.
            update: Number of the update, counted from 0.
        """
        return self

    def load_expert_episodes(self, path: "Path") -> Any:
        """Load recorded episodes to learn from instead of the expert."""
        raise ValueError(f"{type(self).__name__} cannot read recorded episodes")

    def batch_reset(self, keys: Keys) -> tuple[State, Observation]:
        """Start one episode per key."""
        return jax.vmap(self.reset)(keys)

    def batch_step(
        self, states: State, actions: Action
    ) -> tuple[State, Observation, Float[Array, " batch"], Bool[Array, " batch"], TransitionInfo]:
        """Take a step in every environment of a batch."""
        return jax.vmap(self.step)(states, actions)

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: State, observations: Observation
    ) -> tuple[State, Observation]:
        """Start new episodes where `mask` is True. Environments can override this with a faster version."""
        from phalanx.core.vector import select_rows

        return select_rows(mask, self.batch_reset(keys), (states, observations))


def mask_size(environment: Environment) -> int | None:
    """Return the size of the mask of legal actions, or None if all actions are always legal."""
    legal = jax.eval_shape(
        lambda key: environment.legal_actions(environment.reset(key)[0]),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
    )
    return None if legal is None else legal.shape[-1]


def info_fields(info: TransitionInfo) -> dict[str, Any]:
    """Return the fields of an info as arrays, without those that are None."""
    if not dataclasses.is_dataclass(info):
        raise TypeError(f"an environment's info must be a dataclass or module, got {type(info).__name__}")
    fields = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    return {name: jnp.asarray(value) for name, value in fields.items() if value is not None}


class TracedEnvironment(Environment[State, Observation, Action]):
    """A frozen dataclass (`eq=False`) with fields that contain arrays, such as tasks or reward weights.

    As an argument of a jitted function, its arrays are traced, so one compilation serves all environments
    whose arrays have the same shapes. In a closure or as a static argument, for which it is hashed by
    content, the arrays are constants.
    """

    array_fields: ClassVar[tuple[str, ...]]
    """Fields that are arrays or pytrees of arrays."""
    name_fields: ClassVar[tuple[str, ...]] = ()
    """Fields with names of what the arrays contain; None inside a program that takes the environment."""

    @classmethod
    def _register(cls) -> None:
        jax.tree_util.register_pytree_node_class(cls)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        """Return the arrays and the settings, without names, which would cause recompilation."""
        settings = tuple((name, getattr(self, name)) for name in _setting_names(type(self)))
        return tuple(getattr(self, name) for name in self.array_fields), settings

    @classmethod
    def tree_unflatten(
        cls: type[Traced], settings: tuple[tuple[str, Any], ...], children: tuple[Any, ...]
    ) -> Traced:
        """Create an environment without names."""
        environment = object.__new__(cls)
        arrays = zip(cls.array_fields, children, strict=True)
        for name, value in (*settings, *arrays, *((name, None) for name in cls.name_fields)):
            object.__setattr__(environment, name, value)
        return environment

    @functools.cached_property
    def _identity(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(self)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise TypeError(
                f"a {type(self).__name__} with traced arrays has no hash: pass it to jitted functions as "
                "a normal argument, not as a static one"
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
            and all(getattr(self, name) == getattr(other, name) for name in self.name_fields)
        )


# Cached because every call of a jitted function flattens the environment.
@functools.cache
def _setting_names(cls: type[Any]) -> tuple[str, ...]:
    other = {*cls.array_fields, *cls.name_fields}
    return tuple(field.name for field in dataclasses.fields(cls) if field.name not in other)
