"""Base classes for JAX environments: one for environments that contain only settings, and one for
environments that also contain arrays, such as their tasks."""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
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
Traced = TypeVar("Traced", bound="EnvironmentWithArrays")
AnyEnvironment = TypeVar("AnyEnvironment", bound="Environment[Any, Any, Any]")


@runtime_checkable
class TransitionInfo(Protocol):
    """Protocol for the info that `step` returns. It must have `terminated` and `truncated` flags."""

    @property
    def terminated(self) -> Any:
        """True if the episode has reached a terminal state."""

    @property
    def truncated(self) -> Any:
        """True if the episode was cut off, for example by a time limit."""


class Environment(abc.ABC, Generic[State, Observation, Action]):
    """Base class for environments. An environment is a Markov decision process written as pure functions.

    Instances are hashable and contain only settings; environments that also contain arrays are subclasses of
    `EnvironmentWithArrays`. Instances are static pytrees: they can be passed to jitted functions, and equal
    instances share one compiled program. `step` does not raise an error for invalid actions and does not
    reset the environment. Stepping a finished state leaves it unchanged and gives reward 0.

    Optional capabilities, such as legal actions, rendering, text, a default network or an evaluation, are
    methods and class attributes with defaults that subclasses can override.
    """

    version: ClassVar[int] = 1
    """Version of the environment. Increment it when the same keys and actions no longer give the same
    episodes."""
    config_type: ClassVar[type[Config] | None] = None
    """Config class of the environment, for the `env` section of a training config. If None, `from_config`
    passes the settings to the constructor as keyword arguments."""
    network_config: ClassVar[type[Config] | None] = None
    """Config class for the settings of `default_network`, the `network` section of a training config. None if
    the network has no settings."""
    evaluation_config: ClassVar[type[EvaluationConfig]] = EpisodeEvaluationConfig
    """Config class for the settings of evaluations during training, the `evaluation` section of a training
    config."""
    eval_config: ClassVar[type[Config] | None] = None
    """Config class for the settings of `phalanx eval`. If None, `evaluation_config` is used. However, if the
    environment overrides neither `evaluate` nor `evaluation_config`, `EpisodeEvalCommandConfig` is used,
    which adds a `seed`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._register()

    @classmethod
    def _register(cls) -> None:
        """Register the class as a static pytree node."""
        jax.tree_util.register_static(cls)

    if TYPE_CHECKING:

        @property
        def max_episode_steps(self) -> int:
            """Maximum number of steps per episode."""
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
        """Space of one action. `step` accepts any member of the space, even if the action is not legal."""

    @abc.abstractmethod
    def reset(self, key: Key) -> tuple[State, Observation]:
        """Start an episode, and return its initial state and observation.

        The same key always gives the same episode.
        """

    @abc.abstractmethod
    def step(
        self, state: State, action: Action
    ) -> tuple[State, Observation, Float[Array, ""], Bool[Array, ""], TransitionInfo]:
        """Advance one environment by one step.

        Returns:
            The new state, its observation, the reward, `done` (terminated or truncated) and the info.
        """

    @abc.abstractmethod
    def observe(self, state: State) -> Observation:
        """Return the observation of a state."""

    @abc.abstractmethod
    def is_done(self, state: State) -> Bool[Array, "*batch"]:
        """Return whether the episode has ended, for one state or a batch of states."""

    @abc.abstractmethod
    def sample_action(self, key: Key, state: State) -> Action:
        """Sample a legal action for one state."""

    @classmethod
    def from_config(cls: type[AnyEnvironment], config: Any, **objects: Any) -> AnyEnvironment:
        """Create an environment from its settings.

        Args:
            config: Instance of `config_type`. If `config_type` is None, a mapping of keyword arguments.
            objects: Existing objects, such as tasks, to use instead of creating them from the settings.
        """
        if cls.config_type is not None:
            raise ValueError(f"{cls.__name__} has a config_type and must define from_config")
        return cls(**config, **objects)

    @classmethod
    def default_network(cls, settings: Any, config: Any, key: Key) -> Any:
        """Create a policy network for the observations and actions of this environment.

        Args:
            settings: Settings of the environment. Tasks and other data are not loaded, unless the shapes of
                the network's parameters depend on them.
            config: Instance of `network_config`.
            key: PRNG key for the initial parameters.

        Returns:
            A `PolicyNetwork`, or None if the environment has no default network.
        """
        return None

    def evaluate(self, network: Any, settings: EvaluationConfig, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate a policy network.

        Args:
            network: The `PolicyNetwork`.
            settings: Instance of `evaluation_config` during training, or of `eval_config` in `phalanx eval`.
            final: True for the last evaluation of a run, which may take longer than the other evaluations.

        Returns:
            The results. By default, episodes of the environment itself are evaluated with greedy actions;
            see `evaluate_episodes`. Environments with held-out tasks override this method.
        """
        from phalanx.core.evaluation import evaluate_episodes

        return evaluate_episodes(self, network, settings)

    def at_step(self, step: int) -> "Environment":
        """Return the environment for episodes that start at a given step of the training run.

        Environments with a curriculum return the environment for the stage that is active at `step`. The
        default is the environment itself.

        Args:
            step: Number of steps that each environment in the training batch has taken so far.
        """
        return self

    def fingerprint(self) -> str:
        """Return a digest of the data that the environment contains, such as tasks, or "" if it has none."""
        return ""

    def metadata(self) -> dict[str, Any]:
        """Return information about the environment's data as JSON values. It is saved in `run.json`."""
        return {}

    def held_out(self, settings: EvaluationConfig) -> "Environment[Any, Any, Any]":
        """Return the environment in which `evaluate` runs episodes, for example one with held-out tasks.

        Episodes for rendering and recording also come from this environment. The default is the environment
        itself.

        Args:
            settings: Instance of `evaluation_config`.
        """
        return self

    def export_policy(self, network: Any, folder: "Path", settings: EvaluationConfig) -> None:
        """Write files for other programs, such as the report page, to the folder of a finished run.

        The default writes nothing.

        Args:
            network: The `PolicyNetwork`.
            folder: Run folder.
            settings: Settings for the run's evaluations, for environments that export held-out episodes.
        """

    def invalid_action(self, key: Key, state: State) -> Action | None:
        """Sample an action that is illegal or malformed in this state, for the conformance checks.

        Returns None if the environment has no invalid actions.
        """
        return None

    def comparable_state(self, state: State) -> PyTree:
        """Return the part of a state that invalid actions must not change, for the conformance checks.

        The default is the complete state. If an invalid action changes some fields, such as a step counter or
        flags, override this method to leave out these fields.
        """
        return state

    def legal_actions(self, state: State) -> Bool[Array, "*batch actions"] | None:
        """Return the mask of legal actions for one state or a batch, or None if all actions are always legal.

        If the action space is a `Composite`, the mask applies to its first field.
        """
        return None

    def episode_metrics(self, info: TransitionInfo) -> dict[str, Array]:
        """Return metrics of episodes, such as `success_mask`, given the infos of their last steps.

        The keys are names that `ExperimentLogger.log_batch_step` accepts. Rollouts call this method with the
        infos of a batch, and ignore the results for episodes that have not ended.
        """
        return {}

    @property
    def render_modes(self) -> tuple[str, ...]:
        """Modes that `render` supports. Possible modes are `svg`, `ansi` and `rgb_array`."""
        return ()

    def render(self, state: State, mode: str = "svg") -> Any:
        """Render one state. Returns None if the environment cannot be rendered.

        Args:
            state: The state.
            mode: `svg` returns an SVG string, `ansi` returns text for a terminal, and `rgb_array` returns
                uint8 pixels of shape `[height, width, 3]`.
        """
        return None

    def render_episodes(self, episodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Convert the records of `record_episodes` to records that the episode viewer can show.

        By default, states are drawn with `render`, in `svg` mode if it is supported and in `ansi` mode
        otherwise. If the environment supports neither mode, the states are removed from the records. States
        that have a `_repr_svg_` or `_repr_html_` method are not changed.
        """
        from phalanx.core.episodes import draw_episodes

        return draw_episodes(self, episodes)

    def task_name(self, state: State) -> str:
        """Return the name of the task that one state belongs to, or "" if tasks have no names."""
        return ""

    @property
    def has_text(self) -> bool:
        """True if `observation_text`, `action_text` and `parse_action` are implemented."""
        return False

    def observation_text(self, state: State) -> str:
        """Describe one state, the rules and the legal actions as a prompt for a language model."""
        raise ValueError(f"{type(self).__name__} has no text observations")

    def parse_action(self, text: str, state: State) -> Action:
        """Parse an action for one state.

        Raises:
            ValueError: If the text is not an action. The message is shown to the model.
        """
        raise ValueError(f"{type(self).__name__} has no text actions")

    def action_text(self, action: Action, state: State) -> str:
        """Format a legal action so that `parse_action` can parse it."""
        raise ValueError(f"{type(self).__name__} has no text actions")

    def observation_texts(self, states: State, prompt_format: str = "full") -> list[str]:
        """Describe each state of a batch as text.

        Environments can override this method with a faster version.

        Args:
            states: Batch of states.
            prompt_format: `full` includes the rules, and `compact` contains only the state, in few
                characters. Environments with only one format ignore this argument.
        """
        from phalanx.core.vector import host_rows

        return [self.observation_text(row) for row in host_rows(self.attach_names(states))]

    def episode_keys(self, states: State) -> list[str]:
        """Return, for each initial state, a string that identifies its episode. It is not a PRNG key.

        The string determines the split of the episode: train, validation or test.
        """
        return self.observation_texts(states)

    def parse_actions(self, texts: Sequence[str], states: State) -> tuple[Action | None, list[str]]:
        """Parse one action per state.

        Returns:
            A batch of actions, and one error message per text. The message is empty if the text is an action.
            Otherwise, the action in the batch is arbitrary. If no text is an action, None is returned instead
            of the batch.
        """
        from phalanx.core.vector import host_rows, parse_each

        rows = host_rows(self.attach_names(states))
        found, errors = parse_each(self.parse_action, zip(texts, rows, strict=True))
        if found is None:
            return None, errors
        return jax.tree.map(lambda *parts: jnp.stack(list(map(jnp.asarray, parts))), *found), errors

    def attach_names(self, states: State) -> State:
        """Attach names, such as task ids, to states.

        Names make states easier to read and are used in rendering.

        If a compiled program takes the environment as an argument, the states that the program returns have
        no names, because names are not arrays.
        """
        return states

    def detach_names(self, states: State) -> State:
        """Remove names, such as task ids, from states.

        All states with the same shapes then share one compiled program.

        Raises:
            ValueError: If the states belong to a different environment.
        """
        return states

    def expert(self) -> "Expert | None":
        """Return the expert that behavior cloning imitates in this environment, or None if there is none."""
        return None

    def refresh_tasks(
        self: AnyEnvironment, rng: np.random.Generator, seed: int, update: int
    ) -> AnyEnvironment:
        """Return a copy of the environment with new tasks, for one training update.

        The arrays of the copy must have the same shapes as before. By default, the tasks do not change and
        the environment itself is returned.

        Args:
            rng: Random number generator for this update.
            seed: Seed of the run.
            update: Index of the update, counted from 0.
        """
        return self

    def batch_reset(self, keys: Keys) -> tuple[State, Observation]:
        """Start one episode per key, and return the batches of initial states and observations."""
        return jax.vmap(self.reset)(keys)

    def batch_step(
        self, states: State, actions: Action
    ) -> tuple[State, Observation, Float[Array, " batch"], Bool[Array, " batch"], TransitionInfo]:
        """Step every environment in a batch. Returns the same values as `step`, with a leading batch axis."""
        return jax.vmap(self.step)(states, actions)

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: State, observations: Observation
    ) -> tuple[State, Observation]:
        """Start new episodes where `mask` is True, and keep the given states and observations elsewhere.

        Environments can override this method with a faster version.

        Returns:
            The new states and observations of all environments in the batch.
        """
        from phalanx.core.vector import select_rows

        return select_rows(mask, self.batch_reset(keys), (states, observations))


def check_info(info: Any) -> None:
    """Raise ValueError if the info that `step` returned does not have the required flags."""
    if not isinstance(info, TransitionInfo):
        raise ValueError(
            "the info that step returns must have the attributes terminated and truncated, for example as an "
            f"equinox.Module with these fields, got {type(info).__name__}"
        )


def mask_size(environment: Environment) -> int | None:
    """Return the length of an environment's mask of legal actions, or None if the environment has no mask."""
    legal = jax.eval_shape(
        lambda key: environment.legal_actions(environment.reset(key)[0]),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
    )
    return None if legal is None else legal.shape[-1]


def info_fields(info: TransitionInfo) -> dict[str, Any]:
    """Return a dictionary with all array and number fields of `info`, converted to JAX arrays."""
    if not dataclasses.is_dataclass(info):
        raise TypeError(f"an environment's info must be a dataclass or module, got {type(info).__name__}")
    fields = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    # The `isinstance` check saves time in the step loops of the integrations.
    return {
        name: value if isinstance(value, jax.Array) else jnp.asarray(value)
        for name, value in fields.items()
        if eqx.is_array_like(value)
    }


class EnvironmentWithArrays(Environment[State, Observation, Action]):
    """Base class for environments that contain arrays, such as tasks or reward weights.

    Subclasses are frozen dataclasses with `eq=False`. If an instance is an argument of a jitted function, its
    arrays are traced, so one compiled program serves all environments whose arrays have the same shapes. If
    an instance is captured in a closure or is a static argument, its arrays are constants, and it is hashed
    by the content of the arrays.
    """

    array_fields: ClassVar[tuple[str, ...]]
    """Names of the fields that are arrays or pytrees of arrays."""
    name_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that contain names, such as task ids. These fields are None inside a jitted
    function that takes the environment as an argument."""

    @classmethod
    def _register(cls) -> None:
        jax.tree_util.register_pytree_node_class(cls)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        """Return the arrays as the children of the pytree node and the settings as its static part.

        The fields in `name_fields` are omitted, so that different names do not cause recompilation.
        """
        settings = tuple((name, getattr(self, name)) for name in _setting_names(type(self)))
        return tuple(getattr(self, name) for name in self.array_fields), settings

    @classmethod
    def tree_unflatten(
        cls: type[Traced], settings: tuple[tuple[str, Any], ...], children: tuple[Any, ...]
    ) -> Traced:
        """Create an environment from its settings and arrays. The fields in `name_fields` are None."""
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
            isinstance(other, EnvironmentWithArrays)
            and hash(self) == hash(other)
            and self._identity == other._identity
            and all(getattr(self, name) == getattr(other, name) for name in self.name_fields)
        )


# Cached because every call to a jitted function flattens the environment.
@functools.cache
def _setting_names(cls: type[Any]) -> tuple[str, ...]:
    other = {*cls.array_fields, *cls.name_fields}
    return tuple(field.name for field in dataclasses.fields(cls) if field.name not in other)
