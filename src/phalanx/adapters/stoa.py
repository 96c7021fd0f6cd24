"""Phalanx environments as Stoa environments, to be run under Stoa's wrappers.

What Stoa's wrappers do (auto-reset, vectorising, metrics) is not done again here; Stoa's spaces are in
`stoa_spaces`, the gymnax-style step in `gymnax_style`.
"""

import functools
from typing import Any

try:
    from stoa import Environment as StoaEnvironment, Space as StoaSpace, StepType, TimeStep
    from stoa.env_adapters.base import AdapterState, AdapterStateWithKey
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "stoa":
        raise
    raise ModuleNotFoundError(
        f'phalanx.adapters.stoa needs {error.name}: pip install "phalanx[stoa]"', name=error.name
    ) from error

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree
from stoa import ArraySpace, DictSpace, WrapperState

from phalanx.adapters.batch_environment import MASK, OBSERVATION, has_own_mask
from phalanx.adapters.legal_actions import action_mask, info_fields, mask_size
from phalanx.adapters.stoa_spaces import action_of, action_space_of, observed, space_of
from phalanx.core.environment import Environment, EnvironmentConfigLike, Key, as_environment


class PhalanxToStoa(StoaEnvironment):
    """One environment of Phalanx, by itself or from a config, as a `stoa.Environment`.

    - Observation: the environment's own; a record is a dictionary of its fields.
    - Action: an int32 number, or for a record of whole numbers one vector of them (`MultiDiscreteSpace`), or
      a dictionary of fields. The environment's own kind of action is taken as well.
    - Mask of legal actions: at `timestep.extras["action_mask"]`, where `AddActionMaskWrapper` looks for it;
      proofs have it in the observation as well. With `mask_in_observation` the observation of any other
      environment that has a mask is {"observation": ..., "action_mask": ...}. ARC's mask is of operations,
      the first number of an action.
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
        self._adds_mask = mask_in_observation and not has_own_mask(self.environment)
        if self._adds_mask and self._mask_size is None:
            raise ValueError(f"{type(self.environment).__name__} has no mask of legal actions to show")

    def __repr__(self) -> str:
        return f"PhalanxToStoa({type(self.environment).__name__})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PhalanxToStoa):
            return NotImplemented
        return (self.environment, self._adds_mask) == (other.environment, other._adds_mask)

    def __hash__(self) -> int:
        return hash((self.environment, self._adds_mask))

    def reset(self, rng_key: Key, env_params: Any = None) -> tuple[AdapterStateWithKey, TimeStep]:
        """Start an episode. `env_params` is not used: settings are the environment's."""
        kept, episode_key = jax.random.split(rng_key)
        state, observation = self.environment.reset(episode_key)
        nothing_yet = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._info_shapes)
        timestep = TimeStep(
            step_type=StepType.FIRST,
            reward=jnp.zeros((), jnp.float32),
            discount=jnp.ones((), jnp.float32),
            observation=self._seen(observation),
            extras=self._extras(observation, nothing_yet),
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
            observation=self._seen(observation),
            extras=self._extras(observation, info_fields(info)),
        )
        return AdapterStateWithKey(base_env_state=new, rng_key=state.rng_key), timestep

    def observation_space(self, env_params: Any = None) -> StoaSpace:
        """What `timestep.observation` looks like."""
        space = space_of(self.environment.observation_space, OBSERVATION)
        if not self._adds_mask:
            return space
        assert self._mask_size is not None
        return DictSpace({OBSERVATION: space, MASK: ArraySpace((self._mask_size,), jnp.bool_, MASK)})

    def action_space(self, env_params: Any = None) -> StoaSpace:
        """What `step` takes."""
        return action_space_of(self.environment.action_space)

    def state_space(self, env_params: Any = None) -> DictSpace:
        """Shape and type of every array of a state, by its path; a state itself is no dictionary."""
        state, _ = jax.eval_shape(self.reset, _KEY)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        return DictSpace({name: ArraySpace(leaf.shape, leaf.dtype, name) for name, leaf in named.items()})

    def render(self, state: PyTree, env_params: Any = None) -> str:
        """An HTML fragment with the drawing of an ARC state, as it shows in notebooks."""
        from phalanx.arc.state import ArcState

        # Stoa's wrappers take off a layer each, also those that put none on.
        while isinstance(state, AdapterState | WrapperState):
            state = state.base_env_state
        if not isinstance(state, ArcState):
            raise TypeError(
                f"a {type(state).__name__} does not draw itself; proofs are drawn by "
                f"phalanx.proofs.drawing.draw_state, which needs the names of an IndexManager"
            )
        return state._repr_html_()

    def close(self) -> None:
        """Nothing is held open."""

    @functools.cached_property
    def _info_shapes(self) -> dict[str, Any]:
        def info(key: Key) -> dict[str, Any]:
            state, _ = self.environment.reset(key)
            return info_fields(self.environment.step(state, self.environment.action_space.sample(key))[4])

        return jax.eval_shape(info, _KEY)

    def _seen(self, observation: PyTree) -> PyTree:
        seen = observed(self.environment.observation_space, observation)
        if not self._adds_mask:
            return seen
        return {OBSERVATION: seen, MASK: action_mask(self.environment, observation)}

    def _extras(self, observation: PyTree, info: dict[str, Any]) -> dict[str, Any]:
        mask = action_mask(self.environment, observation)
        return {"info": info} if mask is None else {"info": info, MASK: mask}


_KEY = jax.ShapeDtypeStruct((2,), np.uint32)


def _step_type(terminated: Bool[Array, ""], truncated: Bool[Array, ""]) -> Array:
    ended = jnp.where(terminated, StepType.TERMINATED, StepType.TRUNCATED)
    return jnp.where(terminated | truncated, ended, StepType.MID)


def _discount(terminated: Bool[Array, ""]) -> Float[Array, ""]:
    return jnp.where(terminated, jnp.float32(0), jnp.float32(1))
