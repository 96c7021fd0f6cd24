"""Samples the task and the pair with which an episode starts, uniformly or by weight."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, UInt32

from phalanx.arc.task_buffer import TaskArrays
from phalanx.core.environment import Key

EpisodeStart = UInt32[Array, "*batch 3"]
"""Three integers that determine the start of an episode: the task index, the pair index (taken modulo the
number of pairs with which an episode of the task can start), and random bits for the initial grid."""


def validate_task_weights(weights: object, num_tasks: int, padded_tasks: int) -> Float32[Array, " tasks"]:
    """Validate sampling weights and pad them with zeros.

    Args:
        weights: One weight per task. They may be traced, and they may already be padded.
        num_tasks: Number of tasks.
        padded_tasks: Number of tasks, including the buffer's padding.
    """
    given = jnp.asarray(weights)
    if given.shape not in ((num_tasks,), (padded_tasks,)):
        raise ValueError(
            f"there are {num_tasks} tasks, so weights must have shape ({num_tasks},), got {given.shape}"
        )
    if not isinstance(given, jax.core.Tracer):
        values = np.asarray(given, np.float64)
        if not np.isfinite(values).all() or (values < 0).any() or not values[:num_tasks].sum() > 0:
            raise ValueError("weights must be finite and not negative, and at least one must be positive")
    return jnp.pad(given.astype(jnp.float32), (0, padded_tasks - given.shape[0]))


# With `inline=True`, each of these functions is a single program when called outside `jit`, and part of the
# caller's program when called inside.
@partial(jax.jit, inline=True)
def cumulative_weights(weights: Float32[Array, " tasks"], tasks: TaskArrays) -> Float32[Array, " tasks"]:
    """Compute cumulative sums of the weights, so that a task can be sampled by binary search.

    Padding and tasks with weight 0 are never sampled, despite rounding errors in the sums.
    """
    has_weight = (weights > 0) & (jnp.arange(weights.shape[0]) < tasks.num_tasks)
    sums = jnp.cumsum(jnp.where(has_weight, weights, 0.0))
    return jax.lax.cummax(jnp.where(has_weight, sums, 0.0))


@partial(jax.jit, inline=True)
def sample_start(key: Key, tasks: TaskArrays, cumulative: Float32[Array, " tasks"] | None) -> EpisodeStart:
    """Sample the task and the pair with which an episode starts, and return them as an `EpisodeStart`.

    Args:
        key: Random key.
        tasks: The tasks.
        cumulative: Result of `cumulative_weights`. If None, tasks are sampled uniformly.
    """
    bits = jax.random.bits(key, (2,), jnp.uint32)
    count = tasks.num_tasks.astype(jnp.uint32)
    if cumulative is None:
        task = bits[0] % count
    else:
        # 24 bits, which float32 represents exactly, so the product stays below the sum of all weights.
        position = (bits[0] >> 8).astype(jnp.float32) * jnp.float32(2**-24) * cumulative[-1]
        found = jnp.searchsorted(cumulative, position, side="right").astype(jnp.uint32)
        task = jnp.minimum(found, count - 1)
    return jnp.stack([task, bits[1], mix_noise(bits[0], bits[1])])


@partial(jax.jit, inline=True)
def start_at(task: Int32[Array, "*batch"], pair: Int32[Array, "*batch"], tasks: TaskArrays) -> EpisodeStart:
    """Return the `EpisodeStart` of an episode that starts with a given task and pair. Indices that are too
    large are taken modulo the number of tasks or pairs."""
    bits = task.astype(jnp.uint32) % tasks.num_tasks.astype(jnp.uint32), pair.astype(jnp.uint32)
    return jnp.stack([*bits, mix_noise(*bits)], axis=-1)


def mix_noise(first: UInt32[Array, "*batch"], second: UInt32[Array, "*batch"]) -> UInt32[Array, "*batch"]:
    """Combine two integers into one pseudorandom integer."""
    return first * jnp.uint32(0x85EBCA6B) ^ second
