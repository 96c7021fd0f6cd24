"""Phalanx environments as Stoa environments, to be run under Stoa's wrappers.

What Stoa's wrappers do (auto-reset, vectorizing, metrics) is not done again here; the gymnax-style step is in
`gymnax_style`.
"""

import functools
import math
from typing import Any

try:
    from stoa import (
        ArraySpace,
        BoundedArraySpace,
        DictSpace,
        DiscreteSpace,
        Environment as StoaEnvironment,
        MultiDiscreteSpace,
        Space as StoaSpace,
        StepType,
        TimeStep,
        WrapperState,
    )
    from stoa.env_adapters.base import AdapterState, AdapterStateWithKey
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "stoa":
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.stoa needs {error.name}: pip install "phalanx[stoa]"', name=error.name
    ) from error

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.core.environment import Environment, EnvironmentConfigLike, Key, as_environment
from phalanx.core.spaces import Box, Composite, Discrete, Space, check_integer_dtypes
from phalanx.integrations.environments import MASK, OBSERVATION, info_fields, mask_size


class PhalanxToStoa(StoaEnvironment):
    """One environment of Phalanx, by itself or from a config, as a `stoa.Environment`.

    - Observation: the environment's own; a record is a dictionary of its fields.
    - Action: an int32 number, or for a record of whole numbers one vector of them (`MultiDiscreteSpace`), or
      a dictionary of fields. The environment's own kind of action is taken as well.
    - Mask of legal actions: at `timestep.extras["action_mask"]`, where `AddActionMaskWrapper` looks for it;
      of an action that is a record it masks the first field, such as ARC's operation. With
      `mask_in_observation` it is in the observation as well: beside the fields of a record, else as
      {"observation": ..., "action_mask": ...}.
    - Discount: 0 where the episode has terminated, 1 elsewhere, also where it was truncated.
    - `timestep.extras["info"]`: what the step told besides, as a dictionary; zeros after a reset.

    It never resets itself, and a finished episode stays as it is. The state carries the key `rng_key` that
    `AutoResetWrapper` wants; a step leaves it alone, because no step of Phalanx draws from outside the state.
    """

    def __init__(
        self,
        environment: Environment | EnvironmentConfigLike,
        task: Any = None,
        *,
        mask_in_observation: bool = False,
    ) -> None:
        self.environment = as_environment(environment, task)
        self._mask_size = mask_size(self.environment)
        self._shows_mask = mask_in_observation
        if self._shows_mask and self._mask_size is None:
            raise ValueError(f"{type(self.environment).__name__} has no mask of legal actions to show")

    def __repr__(self) -> str:
        return f"PhalanxToStoa({type(self.environment).__name__})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PhalanxToStoa):
            return NotImplemented
        return (self.environment, self._shows_mask) == (other.environment, other._shows_mask)

    def __hash__(self) -> int:
        return hash((self.environment, self._shows_mask))

    def reset(self, rng_key: Key, env_params: Any = None) -> tuple[AdapterStateWithKey, TimeStep]:
        """Start an episode. `env_params` is not used: settings are the environment's."""
        kept, episode_key = jax.random.split(rng_key)
        state, observation = self.environment.reset(episode_key)
        nothing_yet = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._info_shapes)
        timestep = TimeStep(
            step_type=StepType.FIRST,
            reward=jnp.zeros((), jnp.float32),
            discount=jnp.ones((), jnp.float32),
            observation=self._seen(state, observation),
            extras=self._extras(state, nothing_yet),
        )
        return AdapterStateWithKey(base_env_state=state, rng_key=kept), timestep

    def step(
        self, state: AdapterStateWithKey, action: PyTree, env_params: Any = None
    ) -> tuple[AdapterStateWithKey, TimeStep]:
        """One transition."""
        chosen = action_of(self.environment.action_space, action)
        new, observation, reward, _, info = self.environment.step(state.base_env_state, chosen)
        timestep = TimeStep(
            step_type=_step_type(info.terminated, info.truncated),
            reward=jnp.asarray(reward, jnp.float32),
            discount=_discount(info.terminated),
            observation=self._seen(new, observation),
            extras=self._extras(new, info_fields(info)),
        )
        return AdapterStateWithKey(base_env_state=new, rng_key=state.rng_key), timestep

    def observation_space(self, env_params: Any = None) -> StoaSpace:
        """What `timestep.observation` looks like."""
        space = space_of(self.environment.observation_space, OBSERVATION)
        if not self._shows_mask:
            return space
        assert self._mask_size is not None
        fields = space.spaces if isinstance(space, DictSpace) else {OBSERVATION: space}
        return DictSpace({**fields, MASK: ArraySpace((self._mask_size,), jnp.bool_, MASK)})

    def action_space(self, env_params: Any = None) -> StoaSpace:
        """What `step` takes."""
        return action_space_of(self.environment.action_space)

    def state_space(self, env_params: Any = None) -> DictSpace:
        """Shape and type of every array of a state, by its path; a state itself is no dictionary."""
        state, _ = jax.eval_shape(self.reset, _KEY)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        return DictSpace({name: ArraySpace(leaf.shape, leaf.dtype, name) for name, leaf in named.items()})

    def render(self, state: PyTree, env_params: Any = None) -> Any:
        """A picture of one state, in the first of the environment's `render_modes`."""
        # Stoa's wrappers take off a layer each, also those that put none on.
        while isinstance(state, AdapterState | WrapperState):
            state = state.base_env_state
        modes = self.environment.render_modes
        if not modes:
            raise TypeError(f"{type(self.environment).__name__} has no pictures: its render_modes are empty")
        return self.environment.render(state, modes[0])

    def close(self) -> None:
        """Nothing is held open."""

    @functools.cached_property
    def _info_shapes(self) -> dict[str, Any]:
        def info(key: Key) -> dict[str, Any]:
            state, _ = self.environment.reset(key)
            return info_fields(self.environment.step(state, self.environment.action_space.sample(key))[4])

        return jax.eval_shape(info, _KEY)

    def _seen(self, state: PyTree, observation: PyTree) -> PyTree:
        seen = observed(self.environment.observation_space, observation)
        if not self._shows_mask:
            return seen
        seen = seen if isinstance(seen, dict) else {OBSERVATION: seen}
        return {**seen, MASK: self.environment.legal_actions(state)}

    def _extras(self, state: PyTree, info: dict[str, Any]) -> dict[str, Any]:
        extras = {"info": info}
        return extras if self._mask_size is None else {**extras, MASK: self.environment.legal_actions(state)}


_KEY = jax.ShapeDtypeStruct((2,), np.uint32)


def _step_type(terminated: Bool[Array, ""], truncated: Bool[Array, ""]) -> Array:
    ended = jnp.where(terminated, StepType.TERMINATED, StepType.TRUNCATED)
    return jnp.where(terminated | truncated, ended, StepType.MID)


def _discount(terminated: Bool[Array, ""]) -> Float[Array, ""]:
    return jnp.where(terminated, jnp.float32(0), jnp.float32(1))


class WholeNumbersSpace(BoundedArraySpace):
    """Arrays of whole numbers or truth values.

    Stoa's own space of bounds never draws the largest, and has infinite ones unless told otherwise, which no
    whole number is.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        minimum: int | float | None = None,
        maximum: int | float | None = None,
        name: str = "",
    ) -> None:
        least, most = (0, 1) if np.dtype(dtype) == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        low, high = least if minimum is None else minimum, most if maximum is None else maximum
        super().__init__(shape, dtype, low, high, name)

    def sample(self, rng_key: Any) -> Array:
        if self.dtype == jnp.bool_:
            return jax.random.bernoulli(rng_key, shape=self.shape)
        low, high = int(self.minimum), int(self.maximum)
        return jax.random.randint(rng_key, self.shape, low, high + 1).astype(self.dtype)


def space_of(space: Space, name: str = "") -> StoaSpace:
    """A space of Stoa; a record is a dictionary of its fields."""
    match space:
        case Composite(fields=fields):
            return DictSpace({field: space_of(inner, field) for field, inner in fields}, name)
        case Discrete(n=n):
            return DiscreteSpace(n, jnp.int32, name)
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            if math.isinf(low) and math.isinf(high):
                return ArraySpace(shape, dtype, name)
            whole = np.issubdtype(dtype, np.integer) or np.dtype(dtype) == np.bool_
            kind = WholeNumbersSpace if whole else BoundedArraySpace
            return kind(shape, dtype, low, high, name)
    raise TypeError(f"{type(space).__name__} has no Stoa space; there are some for Box, Discrete and Record")


def action_space_of(space: Space) -> StoaSpace:
    """The same for actions, where a record of whole numbers is one vector."""
    if isinstance(space, Composite) and _is_vector(space):
        sizes = [field.n for _, field in space.fields if isinstance(field, Discrete)]
        return MultiDiscreteSpace(sizes, jnp.int32, "action")
    return space_of(space, "action")


def observed(space: Space, value: PyTree) -> PyTree:
    """A member of a space, with dictionaries for records."""
    if isinstance(space, Composite):
        return {name: observed(field, getattr(value, name)) for name, field in space.fields}
    return value


def action_of(space: Space, action: PyTree) -> PyTree:
    """The environment's own action, from what `action_space_of` describes or from such an action itself."""
    if not isinstance(space, Composite) or isinstance(action, space.build):
        check_integer_dtypes(space, action)
        return action
    names = [name for name, _ in space.fields]
    if isinstance(action, dict):
        if action.keys() != set(names):
            raise KeyError(f"an action has the fields {', '.join(names)}; got {', '.join(action) or 'none'}")
        return space.build(**{name: action_of(field, action[name]) for name, field in space.fields})
    if not _is_vector(space):
        raise TypeError(f"an action must be a dictionary of {', '.join(names)}, got {type(action).__name__}")
    vector = jnp.asarray(action)
    check_integer_dtypes(space.fields[0][1], vector)
    if vector.shape != (len(names),):
        raise ValueError(
            f"an action is the {len(names)} numbers {', '.join(names)}; got the shape {vector.shape}"
        )
    return space.build(**{name: vector[place] for place, name in enumerate(names)})


def _is_vector(space: Composite) -> bool:
    return all(isinstance(field, Discrete) for _, field in space.fields)
