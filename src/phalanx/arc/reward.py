"""Rewards of the ARC environment: the default reward and custom reward functions."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from phalanx.arc.config import ArcConfig, RewardConfig
from phalanx.arc.operations import Operation
from phalanx.arc.state import ArcState, StepInfo, vmap_batch

REWARD_WEIGHTS = tuple(name for name in RewardConfig.model_fields if name != "reward_on_submit_only")
"""Names of the numeric fields of `RewardConfig`. They are called weights, although the value of
`efficiency_bonus_threshold` is a number of steps."""

RewardWeights = Float32[Array, "7"]
"""Weights of the default reward, in the order of `REWARD_WEIGHTS`."""


class RewardInput(eqx.Module):
    """Description of one step, which is passed to reward functions. It contains no grids."""

    similarity_before: Float32[Array, "*batch"]
    """Similarity to the target before the step."""
    similarity_after: Float32[Array, "*batch"]
    """Similarity to the target after the step. If the step switches to a different pair, this is the
    similarity to the target of the new pair."""
    operation: Int32[Array, "*batch"]
    """Id of the executed operation, or -1 if the action was invalid."""
    is_invalid: Bool[Array, "*batch"]
    """True if the action was invalid. An invalid action only increases the step count."""
    is_submission: Bool[Array, "*batch"]
    """True if the step was a submission."""
    solved: Bool[Array, "*batch"]
    """True if the episode has ended with a correct solution."""
    terminated: Bool[Array, "*batch"]
    """True if the episode has ended with a submission or a solved grid."""
    truncated: Bool[Array, "*batch"]
    """True if the episode has ended because it reached the step limit."""
    step_count: Int32[Array, "*batch"]
    """Number of steps taken in this episode, including this one."""
    max_steps: int = eqx.field(static=True)
    """Maximum number of steps in an episode."""


Rewards = Float32[Array, "*batch"]
"""Rewards for a batch of any shape, or a single reward."""
RewardFunction = Callable[[RewardInput], Any]
"""Function that returns the reward of one step, a scalar. It is traced, so it must use `jax.numpy`."""


def reward_weights_from_config(config: RewardConfig) -> Float32[np.ndarray, "7"]:
    """Return the reward weights in a config as an array, in the order of `REWARD_WEIGHTS`."""
    return np.array([getattr(config, name) for name in REWARD_WEIGHTS], np.float32)


def replace_reward_weights(weights: RewardWeights, changes: dict[str, Any]) -> RewardWeights:
    """Return a copy of the weights with some values replaced.

    Args:
        weights: Weights in the order of `REWARD_WEIGHTS`.
        changes: New values by name. They may be traced.
    """
    for name, value in changes.items():
        if name not in REWARD_WEIGHTS:
            raise ValueError(f"unknown reward weight {name!r}; choose from {', '.join(REWARD_WEIGHTS)}")
        if jnp.ndim(value) != 0:
            raise ValueError(f"{name} must be a scalar, got shape {jnp.shape(value)}; use vmap for several")
        weights = weights.at[REWARD_WEIGHTS.index(name)].set(value)
    return weights


def as_reward_function(function: RewardFunction) -> RewardFunction:
    """Convert a reward function to a pytree, so that it can be a field of an environment. An Equinox module
    is already a pytree and is returned unchanged. Its arrays are traced."""
    if not callable(function):
        raise TypeError(f"a reward must be a function of a RewardInput, got {type(function).__name__}")
    leaves: list[Any] = jax.tree.leaves(function)
    if len(leaves) == 1 and leaves[0] is function:
        return jax.tree_util.Partial(function)
    return function


def compute_reward(
    config: ArcConfig,
    weights: RewardWeights,
    function: RewardFunction | None,
    state: ArcState,
    info: StepInfo,
) -> Rewards:
    """Compute the rewards for a batch of steps. The reward is 0 if the episode had already ended before the
    step.

    Args:
        config: Settings of the environment.
        weights: Weights of the default reward.
        function: Custom reward function, or None for the default reward.
        state: State before the step.
        info: Info of the step.
    """
    operation = jnp.asarray(info.operation_type)
    same_names = ("solved", "terminated", "truncated", "step_count")
    inputs = RewardInput(
        similarity_before=state.similarity,
        similarity_after=jnp.asarray(info.similarity),
        operation=operation,
        is_invalid=~state.episode_done & (operation < 0),
        is_submission=operation == Operation.SUBMIT,
        max_steps=config.episode.max_episode_steps,
        **{name: jnp.asarray(getattr(info, name)) for name in same_names},
    )
    if function is None:
        reward = default_reward(config, weights, inputs)
    else:
        reward = _apply_function(function, inputs, state.batch_shape)
    return jnp.where(state.episode_done, 0.0, reward)


def default_reward(config: ArcConfig, weights: RewardWeights, inputs: RewardInput) -> Rewards:
    """Compute the default reward of each step, for episodes that were still running before the step."""
    weight = dict(zip(REWARD_WEIGHTS, weights, strict=True))
    step = jnp.zeros_like(inputs.similarity_after)
    if not config.reward.reward_on_submit_only:
        if config.episode.mode == "training":
            step = weight["similarity_weight"] * (inputs.similarity_after - inputs.similarity_before)
        step = step + weight["step_penalty"]
    is_quick = inputs.step_count.astype(jnp.float32) <= weight["efficiency_bonus_threshold"]
    bonus = weight["success_bonus"] + jnp.where(is_quick, weight["efficiency_bonus"], 0.0)
    end = jnp.where(inputs.solved, bonus, weight["unsolved_submission_penalty"])
    reward = jnp.where(inputs.is_invalid, weight["invalid_action_penalty"], step)
    return reward + jnp.where(inputs.terminated, end, 0.0)


def _apply_function(function: RewardFunction, inputs: RewardInput, batch: tuple[int, ...]) -> Rewards:
    def apply(one: RewardInput) -> Array:
        reward = jnp.asarray(function(one))
        if reward.shape:
            raise ValueError(f"a reward function must return a scalar, got shape {reward.shape}")
        return reward.astype(jnp.float32)

    return vmap_batch(apply, batch)(inputs)
