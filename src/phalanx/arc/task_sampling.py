"""Which task and pair an episode starts from: drawn by a key, uniformly or by weights.

What becomes of the draw is the engines' part: they look the pair up and write the first working grid.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, UInt32

from phalanx.arc.task_buffer import TaskArrays
from phalanx.core.environment import Key

START_WORDS = 3
"""The words of a start: task, pair (taken modulo the pairs there are), and noise for the first grid."""

Weights = Float32[Array, "*groups tasks"]


def validate_task_weights(weights: object, num_tasks: int, room: int) -> Float32[Array, " tasks"]:
    """Sampling weights for a buffer with `room` for tasks, of which there are `num_tasks`; 0 for the rest."""
    given = jnp.asarray(weights)
    if given.shape not in ((num_tasks,), (room,)):
        raise ValueError(
            f"there are {num_tasks} tasks, so weights must have shape ({num_tasks},), got {given.shape}"
        )
    if not isinstance(given, jax.core.Tracer):
        values = np.asarray(given, np.float64)
        if not np.isfinite(values).all() or (values < 0).any() or not values[:num_tasks].sum() > 0:
            raise ValueError("weights must be finite and not negative, and at least one must be positive")
    return jnp.pad(given.astype(jnp.float32), (0, room - given.shape[0]))


def uniform_weights(tasks: TaskArrays) -> Float32[Array, " tasks"]:
    """The same weight for every task that there is."""
    return (jnp.arange(tasks.table.shape[-2]) < tasks.num_tasks).astype(jnp.float32)


# Compiled as one where the caller compiles nothing, as is the draw.
@partial(jax.jit, inline=True)
def cumulative_weights(weights: Float32[Array, " tasks"], tasks: TaskArrays) -> Float32[Array, " tasks"]:
    """Where each task's part of the interval from 0 to the sum of all weights ends.

    A task of weight 0 (and the room behind the last) ends where the task before it does, whatever the
    rounding, so that it is never drawn.
    """
    there = (weights > 0) & (jnp.arange(weights.shape[0]) < tasks.num_tasks)
    sums = jnp.cumsum(jnp.where(there, weights, 0.0))
    return jax.lax.cummax(jnp.where(there, sums, 0.0))


@partial(jax.jit, inline=True)
def sample_start(key: Key, tasks: TaskArrays, bounds: Float32[Array, " tasks"] | None) -> UInt32[Array, "3"]:
    """The words of a start; without bounds every task is as likely as any other."""
    words = jax.random.bits(key, (2,), jnp.uint32)
    count = tasks.num_tasks.astype(jnp.uint32)
    if bounds is None:
        task = words[0] % count
    else:
        # 24 bits, which a float32 holds exactly: the product is below the sum of all weights.
        place = (words[0] >> 8).astype(jnp.float32) * jnp.float32(2**-24) * bounds[-1]
        found = jnp.searchsorted(bounds, place, side="right").astype(jnp.uint32)
        task = jnp.minimum(found, count - 1)
    return jnp.stack([task, words[1], noise(words[0], words[1])])


@partial(jax.jit, inline=True)
def start_at(
    task: Int32[Array, "*batch"], pair: Int32[Array, "*batch"], tasks: TaskArrays
) -> UInt32[Array, "*batch 3"]:
    """The words of a start on a given pair of a given task; after the last comes the first again."""
    words = task.astype(jnp.uint32) % tasks.num_tasks.astype(jnp.uint32), pair.astype(jnp.uint32)
    return jnp.stack([*words, noise(*words)], axis=-1)


def noise(first: UInt32[Array, "*batch"], second: UInt32[Array, "*batch"]) -> UInt32[Array, "*batch"]:
    """One word that depends on both."""
    return first * jnp.uint32(0x85EBCA6B) ^ second
