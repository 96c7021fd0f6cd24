"""`batch_reset` and `batch_step` for any environment: one compiled call for the whole batch.

The transitions themselves belong to the environments; starting anew after the end is in `autoreset`.
"""

from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.core.environment import (
    Environment,
    EnvironmentConfigLike,
    Keys,
    TransitionInfo,
    as_environment,
)


@runtime_checkable
class HoldsTasks(Protocol):
    """A state that knows the tasks it was made from, so that `(states, actions, config)` says it all."""

    tasks: Any


def environment_of(config: Environment | EnvironmentConfigLike, states: PyTree) -> Environment:
    """The environment that these states belong to, from it itself or from the config that described it."""
    if isinstance(config, Environment) or not isinstance(states, HoldsTasks):
        return as_environment(config)
    return as_environment(config, states.tasks)


def spread_over_batch(values: PyTree, batched: PyTree, size: int) -> PyTree:
    """Values, those that are not batched once for each of a batch; for the rules of a `custom_vmap`."""
    # Constants under a `cond` come as NumPy arrays.
    return jax.tree.map(
        lambda value, has_axis: value if has_axis else jnp.broadcast_to(value, (size, *jnp.shape(value))),
        values,
        batched,
    )


def batch_reset(
    keys: Keys, config: Environment | EnvironmentConfigLike, task: Any = None
) -> tuple[PyTree, PyTree]:
    """Start one episode for each key: states and observations with a leading batch axis."""
    return _reset(as_environment(config, task), keys)


def batch_step(
    states: PyTree,
    actions: PyTree,
    config: Environment | EnvironmentConfigLike,
    *,
    donate: bool = False,
) -> tuple[PyTree, PyTree, Float[Array, " batch"], Bool[Array, " batch"], TransitionInfo]:
    """Step every environment once: states, observations, rewards, dones, infos.

    With `donate` the memory of `states` is reused for the new ones, and the old ones may not be read again.
    """
    step = _donating_step if donate else _step
    return step(environment_of(config, states), states, actions)


@partial(jax.jit, static_argnums=0)
def _reset(environment: Environment, keys: Keys) -> tuple[PyTree, PyTree]:
    return environment.batch_reset(keys)


def _transition(environment: Environment, states: PyTree, actions: PyTree) -> tuple[Any, ...]:
    return environment.batch_step(states, actions)


_step = jax.jit(_transition, static_argnums=0)
_donating_step = jax.jit(_transition, static_argnums=0, donate_argnums=1)
