"""What a step tells and pays: its info, the default reward's numbers, rewards as functions of what happened.

The default reward is computed by the engines; the settings that its numbers come from are in `config`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from phalanx.arc.backends.interface import Outcome
from phalanx.arc.config import RewardConfig
from phalanx.arc.operations import Operation

REWARD_WEIGHTS = (
    "similarity_weight",
    "step_penalty",
    "success_bonus",
    "efficiency_bonus",
    "efficiency_bonus_threshold",
    "unsolved_submission_penalty",
    "invalid_action_penalty",
)
"""The numbers of `RewardConfig`, in the order in which the engines take them (`Pay` in arc_kernel.h)."""

RewardNumbers = Float32[Array, "*groups 7"]


class StepInfo(eqx.Module):
    """What a step tells besides state, observation, reward and done."""

    similarity: Float32[Array, "*batch"] | float
    """Similarity after the step."""
    similarity_improvement: Float32[Array, "*batch"] | float
    """Its change in this step."""
    operation_type: Int32[Array, "*batch"] | int
    """The operation that was carried out; -1 where the action was invalid or the episode over."""
    step_count: Int32[Array, "*batch"] | int
    """Steps taken in this episode."""
    episode_done: Bool[Array, "*batch"] | bool
    """Whether the episode has ended."""
    terminated: Bool[Array, "*batch"] | bool = False
    """Whether it ended by submission or solution."""
    truncated: Bool[Array, "*batch"] | bool = False
    """Whether it ran out of steps."""
    solved: Bool[Array, "*batch"] | bool = False
    """Whether it ended with the working grid equal to the target."""


class Transition(eqx.Module):
    """What happened in one step: all that a reward may be a function of."""

    similarity_before: Float32[Array, "*batch"]
    """Similarity to the target before the step."""
    similarity_after: Float32[Array, "*batch"]
    """Similarity after it; the target is another one where the step has switched to another pair."""
    operation: Int32[Array, "*batch"]
    """The operation that was carried out; -1 where the action was invalid."""
    invalid: Bool[Array, "*batch"]
    """Whether the action was invalid: nothing changed but the step count."""
    submitted: Bool[Array, "*batch"]
    """Whether the grid was handed in."""
    solved: Bool[Array, "*batch"]
    """Whether the episode has ended with the grid equal to the target."""
    terminated: Bool[Array, "*batch"]
    """Whether the episode has ended by submission or solution."""
    truncated: Bool[Array, "*batch"]
    """Whether the episode has run out of steps."""
    step_count: Int32[Array, "*batch"]
    """Steps taken in this episode, this one included."""
    max_steps: int = eqx.field(static=True)
    """Steps after which an episode is truncated."""


def info_of(similarity: Float32[Array, "*batch"], outcome: Outcome) -> StepInfo:
    """What a step tells, from an engine's outcome and the similarity after it."""
    return StepInfo(
        similarity=similarity,
        similarity_improvement=outcome.improvement,
        operation_type=outcome.operation_type,
        step_count=outcome.step_count,
        episode_done=outcome.done,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        solved=outcome.solved,
    )


def transition_of(
    before: Float32[Array, "*batch"],
    after: Float32[Array, "*batch"],
    running: Bool[Array, "*batch"],
    outcome: Outcome,
    max_steps: int,
) -> Transition:
    """What an engine's outcome says happened between two similarities."""
    return Transition(
        similarity_before=before,
        similarity_after=after,
        operation=outcome.operation_type,
        invalid=running & (outcome.operation_type < 0),
        submitted=outcome.operation_type == Operation.SUBMIT,
        solved=outcome.solved,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        step_count=outcome.step_count,
        max_steps=max_steps,
    )


RewardFunction = Callable[[Transition], Any]
"""From one transition to what it pays, a single number; written in `jax.numpy`, since it is traced."""


def reward_weights_by_name(config: RewardConfig) -> Float32[np.ndarray, "7"]:
    """The config's numbers as the engines take them."""
    return np.array([getattr(config, name) for name in REWARD_WEIGHTS], np.float32)


def replace_reward_weights(numbers: RewardNumbers, changes: dict[str, Any]) -> RewardNumbers:
    """The numbers with some of them replaced, by name."""
    for name, value in changes.items():
        if name not in REWARD_WEIGHTS:
            raise ValueError(f"no reward number is called {name!r}; there are {', '.join(REWARD_WEIGHTS)}")
        if jnp.ndim(value) != 0:
            raise ValueError(
                f"{name} must be a single number, got shape {jnp.shape(value)}; use vmap for many"
            )
        numbers = numbers.at[REWARD_WEIGHTS.index(name)].set(value)
    return numbers


def as_reward(function: RewardFunction) -> RewardFunction:
    """A reward as a pytree: an Equinox module's arrays can then be traced; a plain function has none."""
    if not callable(function):
        raise TypeError(f"a reward is a function of a Transition, got {type(function).__name__}")
    leaves: list[Any] = jax.tree.leaves(function)
    if len(leaves) == 1 and leaves[0] is function:
        return jax.tree_util.Partial(function)
    return function


def compute_reward(
    function: RewardFunction, happened: Transition, running: Bool[Array, "*batch"]
) -> Float32[Array, "*batch"]:
    """What the function pays for each transition; an episode that had ended before is paid nothing."""

    def one(transition: Transition) -> Array:
        paid = jnp.asarray(function(transition))
        if paid.shape:
            raise ValueError(f"a reward is one number for one transition, got shape {paid.shape}")
        return paid.astype(jnp.float32)

    for _ in running.shape:
        one = jax.vmap(one)
    return jnp.where(running, one(happened), 0.0)
