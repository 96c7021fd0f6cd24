"""`Environment`, the base class of JAX environments, and `EpisodeState`, the base class of their states."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar, dataclass_transform, final, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, PyTree

from phalanx.config import register_configs_with_jax
from phalanx.core.spaces import (
    Space,
    clip_to_bounds,
    is_in_range,
    masked_choice,
    masked_size,
    sample_legal,
)
from phalanx.nn.distributions import Key as Key, Keys as Keys

# Configs that were defined before JAX was imported.
register_configs_with_jax()

State = TypeVar("State")
Observation = TypeVar("Observation")
Action = TypeVar("Action")
Traced = TypeVar("Traced", bound="Environment[Any, Any, Any]")


class EpisodeState(eqx.Module):
    """Base class of the states of environments. Subclasses add the fields of their own state.

    The environment's `reset` and `step` set the three fields below, so `initial_state` and `transition`
    leave them out.
    """

    step_count: Int32[Array | np.ndarray, "*batch"] = eqx.field(
        default_factory=lambda: np.zeros((), np.int32), kw_only=True
    )
    """Number of steps so far in this episode."""
    terminated: Bool[Array | np.ndarray, "*batch"] = eqx.field(
        default_factory=lambda: np.zeros((), np.bool_), kw_only=True
    )
    """True if the episode has reached a terminal state."""
    truncated: Bool[Array | np.ndarray, "*batch"] = eqx.field(
        default_factory=lambda: np.zeros((), np.bool_), kw_only=True
    )
    """True if the episode has reached the step limit without terminating."""


@runtime_checkable
class VectorKernel(Protocol):
    """Fast implementation of `reset` and `step`, for environments that have one.

    The methods accept any batch shape, including none. They handle illegal actions, the step limit and ended
    episodes themselves.
    """

    def reset(self, keys: Any) -> tuple[Any, Any]:
        """Start one episode per key. Returns the states and observations."""

    def step(self, states: Any, actions: Any) -> tuple[Any, Any, Array, Array, Any]:
        """Advance every environment by one step. Returns the same values as `Environment.step`."""

    def reset_where(
        self, mask: Bool[Array, " batch"], keys: Any, states: Any, observations: Any
    ) -> tuple[Any, Any]:
        """Start new episodes where `mask` is True, and keep the given states and observations elsewhere."""


def array_field(**kwargs: Any) -> Any:
    """Declare a field of an environment that is an array or a pytree of arrays, such as tasks.

    Inside a compiled function that takes the environment as an argument, the arrays are traced, so one
    program serves all environments whose arrays have the same shapes. If an environment is captured in a
    closure or is a static argument, its arrays are constants, and it is hashed by their content.

    Args:
        kwargs: Arguments of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"kind": "array"}, **kwargs)


def host_field(**kwargs: Any) -> Any:
    """Declare a field of an environment that compiled programs do not need, such as the names of tasks.

    Inside a compiled function that takes the environment as an argument, the field is None.

    Args:
        kwargs: Arguments of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"kind": "host"}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, array_field, host_field))
class Environment(abc.ABC, Generic[State, Observation, Action]):
    """Base class for environments. An environment is a Markov decision process written as pure functions.

    A subclass defines two spaces and three methods: `initial_state`, `transition` and `observe`. The base
    class adds legal-action masks, the step limit, ended episodes and batches. It makes every subclass a
    frozen dataclass: annotated attributes are settings, which must be hashable, except for those declared
    with `array_field` or `host_field`.

    Environments are pytrees and can be passed to jitted functions. Equal settings share one compiled program.
    `step` does not raise an error for illegal actions and does not reset the environment.
    """

    # The base class is not a dataclass, so these are not fields unless a subclass declares them again.
    max_episode_steps: int = 1000
    """Maximum number of steps per episode. Subclasses can declare it as a setting or define it as a
    property."""
    illegal_action_reward: float = 0.0
    """Reward of a step with an illegal action, which otherwise only increases the step count."""
    render_modes: ClassVar[tuple[str, ...]] = ()
    """Modes that `render` supports: `svg`, `ansi` and `rgb_array`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        annotated = vars(cls).get("__annotations__", {})
        spaces = [name for name in ("observation_space", "action_space") if name in annotated]
        required = [name for name in spaces if name not in vars(cls)]
        for name in required:
            setattr(cls, name, dataclasses.field())  # the dataclass would take the property as the default
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        for name in required:
            setattr(cls, name, None)  # hides the property, which cannot be assigned
        jax.tree_util.register_pytree_node(cls, Environment._flatten, functools.partial(_unflatten, cls))

    @property
    @abc.abstractmethod
    def observation_space(self) -> Space:
        """Space of one observation: a property, a class attribute or a field."""

    @property
    @abc.abstractmethod
    def action_space(self) -> Space:
        """Space of one action: a property, a class attribute or a field."""

    @abc.abstractmethod
    def initial_state(self, key: Key) -> State:
        """Return the state at the start of an episode. The same key always gives the same episode."""

    @abc.abstractmethod
    def transition(self, state: State, action: Action) -> tuple[State, Any, Any]:
        """Return the next state, the reward and whether the next state is terminal.

        The result is discarded if the episode has already ended or the action is illegal. Actions in a `Box`
        of floats are clipped to its bounds before the call.
        """

    @abc.abstractmethod
    def observe(self, state: State) -> Observation:
        """Return the observation of a state."""

    def legal_actions(self, state: State) -> Bool[Array, "*batch actions"] | None:
        """Return the mask of legal actions in a state, or None if all actions are always legal.

        By default, this is the field `action_mask` of the observation, if there is one. If the action space
        is a `Composite`, the mask applies to its first field.
        """
        observation = self.observe(state)
        if isinstance(observation, Mapping):
            return observation.get("action_mask")
        return getattr(observation, "action_mask", None)

    def metrics(self, state: State) -> dict[str, Any]:
        """Return metrics of a finished episode by name, given its last state.

        `success` (a bool) and `similarity` (0 to 1) have a place in logs and reports. Other names are logged
        as they are. Rollouts ignore the metrics of episodes that have not ended.
        """
        return {}

    def sample_action(self, key: Key, state: State) -> Action:
        """Sample a legal action in a state, uniformly at random."""
        return sample_legal(self.action_space, key, self.legal_actions(state))

    def render(self, state: State, mode: str = "svg") -> Any:
        """Render a state.

        Args:
            state: One state.
            mode: One of `render_modes`. `svg` returns an SVG string, `ansi` text for a terminal, and
                `rgb_array` uint8 pixels of shape `[height, width, 3]`.
        """
        raise ValueError(f"{type(self).__name__} cannot be rendered: it defines no render method")

    def kernel(self) -> VectorKernel | None:
        """Return an implementation that replaces `reset` and `step`, or None if there is none."""
        return None

    @final
    def reset(self, key: Key) -> tuple[State, Observation]:
        """Start an episode, and return its initial state and observation."""
        if (kernel := self.kernel()) is not None:
            return kernel.reset(key)
        state: Any = self.initial_state(key)
        if not isinstance(state, EpisodeState):
            raise TypeError(
                f"{type(self).__name__}.initial_state must return an instance of a subclass of EpisodeState, "
                f"got {type(state).__name__}"
            )
        state = jax.tree.map(lambda leaf: without_weak_type(jnp.asarray(leaf)), state)
        state = _with_flags(state, jnp.int32(0), jnp.bool_(False), jnp.bool_(False))
        return state, self.observe(state)

    @final
    def step(
        self, state: State, action: Action
    ) -> tuple[State, Observation, Float[Array, ""], Bool[Array, ""], Any]:
        """Advance one environment by one step.

        An illegal action leaves the state unchanged except for the step count, and its reward is
        `illegal_action_reward`. If the episode has already ended, the state is unchanged and the reward is 0.

        Returns:
            The new state, its observation, the reward, `done` (terminated or truncated) and the info: the new
            state or, for environments with a kernel, additional information about the step.
        """
        if (kernel := self.kernel()) is not None:
            return kernel.step(state, action)
        before: Any = state
        done, legal = is_done(before), self._is_legal(state, action)
        after, reward, terminated = self.transition(state, clip_to_bounds(self.action_space, action))
        after = _with_types_of(before, after, f"{type(self).__name__}.transition")
        reward = jnp.asarray(reward, jnp.float32)
        terminated = jnp.asarray(terminated, bool) & legal
        step_count = before.step_count + 1
        truncated = ~terminated & (step_count >= self.max_episode_steps)
        after = jax.tree.map(functools.partial(jnp.where, legal), after, before)
        after = _with_flags(after, step_count, terminated, truncated)
        after = jax.tree.map(functools.partial(jnp.where, done), before, after)
        reward = jnp.where(legal, reward, jnp.float32(self.illegal_action_reward))
        return after, self.observe(after), jnp.where(done, 0.0, reward), is_done(after), after

    @final
    def batch_reset(self, keys: Keys) -> tuple[State, Observation]:
        """Start one episode per key, and return the batches of initial states and observations."""
        kernel = self.kernel()
        return jax.vmap(self.reset)(keys) if kernel is None else kernel.reset(keys)

    @final
    def batch_step(
        self, states: State, actions: Action
    ) -> tuple[State, Observation, Float[Array, " batch"], Bool[Array, " batch"], Any]:
        """Step every environment in a batch. Returns the same values as `step`, with a leading batch axis."""
        kernel = self.kernel()
        return jax.vmap(self.step)(states, actions) if kernel is None else kernel.step(states, actions)

    @final
    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: State, observations: Observation
    ) -> tuple[State, Observation]:
        """Start new episodes where `mask` is True, and keep the given states and observations elsewhere.

        Returns:
            The new states and observations of all environments in the batch.
        """
        from phalanx.core.vector import select_rows

        if (kernel := self.kernel()) is not None:
            return kernel.reset_where(mask, keys, states, observations)
        selected: tuple[State, Observation] = select_rows(
            mask, self.batch_reset(keys), (states, observations)
        )
        return selected

    def _is_legal(self, state: State, action: Action) -> Bool[Array, ""]:
        mask = self.legal_actions(state)
        in_range = is_in_range(self.action_space, action)
        if mask is None:
            return in_range
        choice = jnp.clip(masked_choice(self.action_space, action), 0, validate_mask(self, mask) - 1)
        return in_range & jnp.asarray(mask)[choice]

    def _flatten(self) -> tuple[tuple[Any, ...], "_Settings"]:
        return tuple(getattr(self, name) for name in _field_names(type(self), "array")), self._settings

    @functools.cached_property
    def _settings(self) -> "_Settings":
        names = _field_names(type(self), "setting")
        return _Settings(type(self).__name__, {name: getattr(self, name) for name in names})

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

    # A generated `__repr__` would replace one that a base class defines.
    def __repr__(self) -> str:
        shown = [field.name for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Environment)
            and hash(self) == hash(other)
            and self._identity == other._identity
            and all(getattr(self, name) == getattr(other, name) for name in _field_names(type(self), "host"))
        )


class _Settings:
    """Settings of an environment: the static part of its pytree, with a cached hash."""

    def __init__(self, environment: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"{environment}.{name} must be hashable, got {type(value).__name__}: use a tuple, or "
                    "declare it with array_field() if it is an array"
                ) from None
        self.values = tuple(values.items())
        self.hash = hash((environment, self.values))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Settings) and (self is other or self.values == other.values)

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.values)


def _unflatten(cls: type[Traced], settings: _Settings, arrays: tuple[Any, ...]) -> Traced:
    """Create an environment from its settings and arrays. Host fields are None."""
    environment = object.__new__(cls)
    vars(environment).update(
        settings.values,
        _settings=settings,
        **dict(zip(_field_names(cls, "array"), arrays, strict=True)),
        **dict.fromkeys(_field_names(cls, "host")),
    )
    return environment


# Cached because every call to a jitted function flattens the environment.
@functools.cache
def _field_names(cls: type[Any], kind: str) -> tuple[str, ...]:
    fields = dataclasses.fields(cls)
    return tuple(field.name for field in fields if field.metadata.get("kind", "setting") == kind)


def is_done(state: Any) -> Any:
    """Return whether the episode has ended, for one state or a batch of states."""
    return state.terminated | state.truncated


def mask_size(environment: Environment) -> int | None:
    """Return the length of an environment's mask of legal actions, or None if the environment has no mask."""
    legal = jax.eval_shape(
        lambda key: environment.legal_actions(environment.reset(key)[0]),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
    )
    return None if legal is None else legal.shape[-1]


def validate_mask(environment: Environment, mask: Any) -> int:
    """Return the number of choices that the mask of legal actions in one state covers.

    Raises:
        TypeError: If the mask does not fit the action space.
    """
    size = masked_size(environment.action_space)
    if size is None or mask.shape != (size,) or mask.dtype != np.bool_:
        wanted = "None, because the action has no choice to mask" if size is None else f"bool[{size}]"
        raise TypeError(
            f"{type(environment).__name__}.legal_actions (or action_mask of its observation) must be "
            f"{wanted}, got {mask.dtype}{list(mask.shape)}"
        )
    return size


def info_fields(info: Any) -> dict[str, Any]:
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


def _with_flags(state: Any, step_count: Any, terminated: Any, truncated: Any) -> Any:
    # `initial_state` and `transition` may return new instances without these fields.
    return dataclasses.replace(state, step_count=step_count, terminated=terminated, truncated=truncated)


def without_weak_type(leaf: Any) -> Any:
    """Return an array with the same dtype that takes precedence over other dtypes in arithmetic.

    A weak type would change after the first step, and compiled programs would be compiled again.
    """
    is_weak = getattr(leaf, "weak_type", False)
    return jax.lax.convert_element_type(leaf, leaf.dtype) if is_weak else leaf


def _with_types_of(before: PyTree, after: PyTree, source: str) -> PyTree:
    """Convert the leaves of a state that have no dtype of their own, such as Python numbers.

    Raises:
        TypeError: If a leaf has another shape or dtype than before.
    """
    old, structure = jax.tree_util.tree_flatten_with_path(before)
    new, new_structure = jax.tree.flatten(after)
    if repr(structure) != repr(new_structure):
        raise TypeError(
            f"{source} returned another structure than its state: {new_structure}, not {structure}"
        )
    converted = []
    for (path, leaf), value in zip(old, new, strict=True):
        name = jax.tree_util.keystr(path)
        if name in (".step_count", ".terminated", ".truncated"):
            value = leaf  # set by `step`, and possibly left out by `transition`
        # The type of a Python number is weak: an integer fits a float, but not the other way round.
        if jnp.shape(value) != jnp.shape(leaf) or jnp.result_type(value, leaf.dtype) != leaf.dtype:
            raise TypeError(
                f"{source} changed state{name} from {leaf.dtype}{list(jnp.shape(leaf))} to "
                f"{jnp.result_type(value)}{list(jnp.shape(value))}: return the same shape and dtype"
            )
        converted.append(jnp.asarray(value, leaf.dtype))
    return jax.tree.unflatten(structure, converted)
