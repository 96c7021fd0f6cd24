"""Adapter for Stoa and Stoix. Auto-reset, vectorization and metrics come from Stoa's wrappers."""

import dataclasses
import functools
import math
from typing import Any

from phalanx.extras import require_extra

with require_extra(__name__, "stoa", "stoa", "jax"):
    import jax
    import jax.numpy as jnp
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

import numpy as np
from jaxtyping import Array, PyTree

from phalanx.core.environment import Environment, Key, info_fields, mask_size
from phalanx.core.spaces import (
    Box,
    Composite,
    Discrete,
    Space,
    check_fields,
    check_integer_dtypes,
    convert_value,
    discrete_sizes,
)
from phalanx.core.vector import zeros_like_shapes

OBSERVATION, MASK = "observation", "action_mask"
"""Keys in an observation dictionary. `OBSERVATION` holds the environment's observation if it is a single
array, and `MASK` holds the mask of legal actions."""


# Not frozen, because the dataclass in Stoa that it extends is not.
@dataclasses.dataclass(unsafe_hash=True, repr=False)
class PhalanxToStoa(StoaEnvironment):
    """Adapter that turns an environment into a `stoa.Environment`.

    - Observation: the environment's observation. If it has several fields, it becomes a dictionary.
    - Action: an int32 scalar, a vector if it has several integer fields (`MultiDiscreteSpace`), or a
      dictionary of fields. The environment's own actions are accepted as well.
    - Mask of legal actions: `timestep.extras["action_mask"]`, as `AddActionMaskWrapper` expects. If an action
      has several fields, the mask applies to the first one, such as the operation in ARC.
    - Discount: 0 if the episode has terminated, and 1 otherwise, even after truncation.
    - `timestep.extras["info"]`: fields of the environment's info, which are zeros after a reset.

    There is no auto-reset: a step does not change a finished episode. The state contains a PRNG key,
    `rng_key`, which `AutoResetWrapper` uses. `step` does not use it, because the environment's state contains
    any keys that the environment needs.

    Args:
        environment: Environment to adapt.
        mask_in_observation: Also include the mask in the observation. A dictionary gets the additional key
            `action_mask`, and an array becomes {"observation": ..., "action_mask": ...}.
    """

    environment: Environment
    mask_in_observation: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.mask_in_observation and self._mask_size is None:
            raise ValueError(f"{type(self.environment).__name__} has no mask of legal actions")

    def __repr__(self) -> str:
        return f"PhalanxToStoa({type(self.environment).__name__})"

    def reset(self, rng_key: Key, env_params: Any = None) -> tuple[AdapterStateWithKey, TimeStep]:
        """Start an episode. Returns the state and the first time step. `env_params` is not used."""
        next_key, episode_key = jax.random.split(rng_key)
        state, observation = self.environment.reset(episode_key)
        timestep = TimeStep(
            step_type=StepType.FIRST,
            reward=jnp.zeros((), jnp.float32),
            discount=jnp.ones((), jnp.float32),
            observation=self._observation(state, observation),
            extras=self._extras(state, zeros_like_shapes(self._info_shapes)),
        )
        return AdapterStateWithKey(base_env_state=state, rng_key=next_key), timestep

    def step(
        self, state: AdapterStateWithKey, action: PyTree, env_params: Any = None
    ) -> tuple[AdapterStateWithKey, TimeStep]:
        """Take a step. Returns the new state and the time step. `env_params` is not used."""
        env_action = convert_action(self.environment.action_space, action)
        new, observation, reward, done, info = self.environment.step(state.base_env_state, env_action)
        ended = jnp.where(new.terminated, StepType.TERMINATED, StepType.TRUNCATED)
        timestep = TimeStep(
            step_type=jnp.where(done, ended, StepType.MID),
            reward=jnp.asarray(reward, jnp.float32),
            discount=jnp.where(new.terminated, jnp.float32(0), jnp.float32(1)),
            observation=self._observation(new, observation),
            extras=self._extras(new, info_fields(info)),
        )
        return AdapterStateWithKey(base_env_state=new, rng_key=state.rng_key), timestep

    def observation_space(self, env_params: Any = None) -> StoaSpace:
        """Return the space of `timestep.observation`."""
        space = convert_space(self.environment.observation_space, OBSERVATION)
        if not self.mask_in_observation:
            return space
        assert self._mask_size is not None
        fields = space.spaces if isinstance(space, DictSpace) else {OBSERVATION: space}
        return DictSpace({**fields, MASK: ArraySpace((self._mask_size,), jnp.bool_, MASK)})

    def action_space(self, env_params: Any = None) -> StoaSpace:
        """Return the space of the actions that `step` takes."""
        return convert_action_space(self.environment.action_space)

    def state_space(self, env_params: Any = None) -> DictSpace:
        """Return a space with the shape and dtype of every array in a state.

        The keys are the paths of the arrays.
        """
        state, _ = jax.eval_shape(self.reset, _KEY)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        return DictSpace({name: ArraySpace(leaf.shape, leaf.dtype, name) for name, leaf in named.items()})

    def render(self, state: PyTree, env_params: Any = None) -> Any:
        """Render a single state in the first of the environment's `render_modes`."""
        # Not all of Stoa's wrappers remove the layer that they added.
        while isinstance(state, AdapterState | WrapperState):
            state = state.base_env_state
        modes = self.environment.render_modes
        if not modes:
            raise TypeError(f"{type(self.environment).__name__} cannot be rendered: it has no render_modes")
        return self.environment.render(state, modes[0])

    @functools.cached_property
    def _mask_size(self) -> int | None:
        return mask_size(self.environment)

    @functools.cached_property
    def _info_shapes(self) -> dict[str, Any]:
        def info(key: Key) -> dict[str, Any]:
            state, _ = self.environment.reset(key)
            return info_fields(self.environment.step(state, self.environment.action_space.sample(key))[4])

        return jax.eval_shape(info, _KEY)

    def _observation(self, state: PyTree, observation: PyTree) -> PyTree:
        value = convert_value(lambda _, leaf: leaf, self.environment.observation_space, observation)
        if not self.mask_in_observation:
            return value
        value = value if isinstance(value, dict) else {OBSERVATION: value}
        return {**value, MASK: self.environment.legal_actions(state)}

    def _extras(self, state: PyTree, info: dict[str, Any]) -> dict[str, Any]:
        extras = {"info": info}
        return extras if self._mask_size is None else {**extras, MASK: self.environment.legal_actions(state)}


_KEY = jax.ShapeDtypeStruct((2,), np.uint32)


class IntegerArraySpace(BoundedArraySpace):
    """Space of integer or boolean arrays with inclusive bounds.

    Unlike in Stoa's `BoundedArraySpace`, samples include the maximum, and the default bounds are those of the
    dtype instead of infinite. The bounds have defaults because some of Stoa's wrappers create a new space
    with `type(space)(shape=..., dtype=..., name=...)`.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, minimum: Any = None, maximum: Any = None, name: str = ""
    ) -> None:
        is_bool = np.dtype(dtype) == np.bool_
        smallest, largest = (0, 1) if is_bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        low, high = smallest if minimum is None else minimum, largest if maximum is None else maximum
        super().__init__(shape, dtype, low, high, name)

    def sample(self, rng_key: Any) -> Array:
        return Box(int(self.minimum), int(self.maximum), self.shape, self.dtype).sample(rng_key)


def convert_space(space: Space, name: str = "") -> StoaSpace:
    """Convert a space to a Stoa space. A `Composite` becomes a `DictSpace`."""
    match space:
        case Composite(fields=fields):
            return DictSpace({field: convert_space(inner, field) for field, inner in fields}, name)
        case Discrete(n=n):
            return DiscreteSpace(n, jnp.int32, name)
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            if math.isinf(low) and math.isinf(high):
                return ArraySpace(shape, dtype, name)
            is_integer = np.issubdtype(dtype, np.integer) or np.dtype(dtype) == np.bool_
            kind = IntegerArraySpace if is_integer else BoundedArraySpace
            return kind(shape, dtype, low, high, name)
    raise TypeError(
        f"{type(space).__name__} cannot be converted to a Stoa space; Box, Discrete and Composite can"
    )


def convert_action_space(space: Space) -> StoaSpace:
    """Convert an action space to a Stoa space. A `Composite` of integers becomes a `MultiDiscreteSpace`."""
    if (sizes := discrete_sizes(space)) is not None:
        return MultiDiscreteSpace(sizes, jnp.int32, "action")
    return convert_space(space, "action")


def convert_action(space: Space, action: PyTree) -> PyTree:
    """Convert an action of Stoa's action space, or a dictionary of fields, to the environment's own action.

    Actions that already have the environment's own type are returned unchanged.
    """
    if not isinstance(space, Composite) or isinstance(action, space.constructor):
        check_integer_dtypes(space, action)
        return action
    names = [name for name, _ in space.fields]
    if discrete_sizes(space) is not None and not isinstance(action, dict):
        vector = jnp.asarray(action)
        if vector.shape != (len(names),):
            raise ValueError(
                f"an action is the {len(names)} numbers {', '.join(names)}; got shape {vector.shape}"
            )
        action = dict(zip(names, vector, strict=True))
    check_fields(space, action, "an action")
    return space.constructor(**{name: convert_action(field, action[name]) for name, field in space.fields})
