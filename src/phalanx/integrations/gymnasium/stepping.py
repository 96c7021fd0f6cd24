"""What `reset` and `step` are made of: seeds as keys, compiled calls on JAX arrays, infos by name.

NumPy arrays and Gymnasium's classes are in `environments`.
"""

import dataclasses
import functools
import numbers
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, UInt32, UInt64

from phalanx.core.autoreset import AutoReset, AutoResetState, Mode
from phalanx.core.environment import Environment, TransitionInfo
from phalanx.integrations.environments import blank_batch, legal_rows
from phalanx.integrations.gymnasium.spaces import built_actions

_LARGEST = 2**64 - 1
_FLAGS = ("terminated", "truncated", "episode_done")
"""Fields of an environment's info that `step` returns by themselves."""


class Running(eqx.Module):
    """Where a batch of environments stands, as JAX arrays; the keys are those of the coming episodes."""

    auto: AutoResetState
    observations: PyTree
    legal: Bool[Array, "batch actions"] | None
    """Which actions are legal; None where all of them always are."""


def not_begun(environment: Environment, count: int) -> Running:
    """A batch to begin from."""
    states, observations = blank_batch(environment, count)
    legal = jax.eval_shape(functools.partial(legal_rows, environment), states)
    blank = None if legal is None else jnp.zeros(legal.shape, bool)
    return Running(AutoResetState(states, jnp.zeros((count, 2), jnp.uint32)), observations, blank)


class Outcome(eqx.Module):
    """What a step of a batch gives besides where it then stands."""

    rewards: Float[Array, " batch"]
    terminated: Bool[Array, " batch"]
    truncated: Bool[Array, " batch"]
    info: TransitionInfo
    terminal: tuple[PyTree, Bool[Array, "batch actions"] | None] | None = None
    """Observations and legal actions before any reset, in same-step mode."""


@jax.jit
def begin(
    environment: Environment,
    chosen: Bool[Array, " batch"],
    sown: Bool[Array, " batch"],
    fresh: UInt32[Array, "batch 2"],
    running: Running,
) -> Running:
    """New episodes for the chosen, from fresh keys where seeds were sown, as `AutoReset` would draw them."""
    keys = jnp.where(sown[:, None], fresh, running.auto.keys)
    drawn = jax.vmap(jax.random.split)(keys)
    kept = jnp.where(chosen[:, None], drawn[:, 0], keys)
    states, observations = environment.batch_reset_where(
        chosen, drawn[:, 1], running.auto.states, running.observations
    )
    return Running(AutoResetState(states, kept), observations, legal_rows(environment, states))


@functools.partial(jax.jit, static_argnums=1)
def advance(
    environment: Environment, mode: Mode | None, running: Running, given: PyTree
) -> tuple[Running, Outcome]:
    """One step of a batch, and what it tells; the mode says who starts anew, None that nobody does."""
    actions = built_actions(environment.action_space, given)
    if mode == "next_step":
        auto, seen, rewards, _, told = AutoReset(environment, mode).step(running.auto, actions)
        after = Running(auto, seen, legal_rows(environment, auto.states))
        return after, Outcome(rewards, told.terminated, told.truncated, told.info)
    states, seen, rewards, done, info = environment.batch_step(running.auto.states, actions)
    auto, legal = AutoResetState(states, running.auto.keys), legal_rows(environment, states)
    outcome = Outcome(rewards, info.terminated, info.truncated, info)
    if mode is None:
        return Running(auto, seen, legal), outcome
    outcome = dataclasses.replace(outcome, terminal=(seen, legal))
    auto, seen = AutoReset(environment, mode).restart(done, auto, seen)
    return Running(auto, seen, legal_rows(environment, auto.states)), outcome


def told_fields(info: Any) -> dict[str, np.ndarray]:
    """What a step told besides its flags, as arrays of their own."""
    names = (field.name for field in dataclasses.fields(info) if field.name not in _FLAGS)
    values = ((name, getattr(info, name)) for name in names)
    return {name: np.array(value) for name, value in values if isinstance(value, jax.Array)}


def infos_of(fields: Mapping[str, np.ndarray | None], where: Bool[np.ndarray, " batch"]) -> dict[str, Any]:
    """The infos of some environments in Gymnasium's form: zeros elsewhere, and whose they are at `_name`."""
    if not where.any():
        return {}
    infos: dict[str, Any] = {}
    others = None if where.all() else ~where
    for name, array in fields.items():
        if array is not None:
            infos[name], infos[f"_{name}"] = array.copy(), where.copy()
            if others is not None:
                infos[name][others] = 0
    return infos


def info_of_one(infos: Mapping[str, Any]) -> dict[str, Any]:
    """The infos of a batch of one as those of a single environment."""
    one = {name: values[0] for name, values in infos.items() if not name.startswith("_")}
    return {name: value if value.ndim else value.item() for name, value in one.items()}


def chance_seeds(count: int) -> UInt64[np.ndarray, " batch"]:
    """Seeds that no one chose."""
    # As Gymnasium's own seeds, of which each environment has its own.
    return np.random.default_rng(secrets.randbits(128)).integers(_LARGEST, size=count, dtype=np.uint64)


def seeds_of(seed: Any, count: int) -> tuple[UInt64[np.ndarray, " batch"], Bool[np.ndarray, " batch"]]:
    """A seed for each environment, and which of them were given: a number counts up, None gives none."""
    if seed is None:
        return np.zeros(count, np.uint64), np.zeros(count, bool)
    if isinstance(seed, numbers.Integral):
        seed = [int(seed) + index for index in range(count)]
    if not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str):
        raise TypeError(f"seed must be None, a whole number or a list of them, got {seed!r}")
    if len(seed) != count:
        raise ValueError(f"there are {count} environments and {len(seed)} seeds; give one for each")
    given = np.array([one is not None for one in seed])
    return np.array([0 if one is None else _checked(one) for one in seed], np.uint64), given


def keys_of(seeds: UInt64[np.ndarray, " batch"]) -> UInt32[np.ndarray, "batch 2"]:
    """The keys that `jax.random.PRNGKey` makes of seeds."""
    words = np.stack([seeds >> np.uint64(32), seeds & np.uint64(2**32 - 1)], axis=1)
    return words.astype(np.uint32)


def reset_mask(options: Mapping[str, Any] | None, count: int) -> Bool[np.ndarray, " batch"]:
    """Which environments a reset's options name; all without a mask."""
    options = {} if options is None else options
    if unknown := [name for name in options if name != "reset_mask"]:
        raise ValueError(f"unknown option {unknown[0]!r}; reset takes 'reset_mask' only")
    if "reset_mask" not in options:
        return np.ones(count, bool)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        kind = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
        raise TypeError(f"options['reset_mask'] must be a NumPy array of bool, got {kind}")
    if mask.shape != (count,):
        raise ValueError(f"options['reset_mask'] must have the shape {(count,)}, got {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] must name at least one environment")
    return mask.copy()


def _checked(seed: Any) -> int:
    if not isinstance(seed, numbers.Integral):
        raise TypeError(f"a seed must be a whole number or None, got {seed!r}")
    if not 0 <= int(seed) <= _LARGEST:
        raise ValueError(f"a seed must be from 0 to 2**64 - 1, got {seed}")
    return int(seed)
