"""The mask of legal actions and the info of one environment, as arrays by name, for adapters within JAX.

Which environments have a mask is told in `batch_environment`.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from phalanx.adapters.batch_environment import MASK, has_own_mask, legal_operations
from phalanx.core.environment import Environment, TransitionInfo
from phalanx.core.spaces import Box, Record


def action_mask(environment: Environment, observation: PyTree) -> Bool[Array, " actions"] | None:
    """Which actions are legal where one sees this; None for environments that do not say."""
    if has_own_mask(environment):
        return getattr(observation, MASK)
    allowed = legal_operations(environment)
    return None if allowed is None else jnp.asarray(allowed)


def mask_size(environment: Environment) -> int | None:
    """How many entries the mask has; None where there is no mask."""
    space = environment.observation_space
    if has_own_mask(environment) and isinstance(space, Record):
        field = dict(space.fields)[MASK]
        assert isinstance(field, Box)
        return field.shape[0]
    allowed = legal_operations(environment)
    return None if allowed is None else len(allowed)


def info_fields(info: TransitionInfo) -> dict[str, Any]:
    """What a step told besides, as arrays by name."""
    if not dataclasses.is_dataclass(info):
        raise TypeError(f"an environment's info must be a dataclass or module, got {type(info).__name__}")
    return {field.name: jnp.asarray(getattr(info, field.name)) for field in dataclasses.fields(info)}
