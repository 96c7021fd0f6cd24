"""Generalised advantage estimation, time first.

What the values are is the network's business; which observations they belong to is the rollout's.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def generalised_advantages(
    rewards: Float[Array, "time batch"],
    values: Float[Array, "time batch"],
    next_values: Float[Array, "time batch"],
    terminated: Bool[Array, "time batch"],
    done: Bool[Array, "time batch"],
    gamma: float,
    gae_lambda: float,
) -> tuple[Float[Array, "time batch"], Float[Array, "time batch"]]:
    """Advantages and value targets.

    `next_values` are the values of the observations that the steps led to, before any reset: of the terminal
    observation where an episode ended. A terminated episode is worth nothing more, whatever the network says;
    a truncated one (`done` but not `terminated`) is worth what it says. Neither looks beyond its end.

    Schulman et al., 2016, https://arxiv.org/abs/1506.02438.

    >>> one = jnp.ones((1, 1))
    >>> truncated = generalised_advantages(one, one, 3 * one, one < 0, one > 0, 0.5, 0.9)
    >>> terminated = generalised_advantages(one, one, 3 * one, one > 0, one > 0, 0.5, 0.9)
    >>> float(truncated[0][0, 0]), float(terminated[0][0, 0])
    (1.5, 0.0)
    """
    shapes = [array.shape for array in (rewards, values, next_values, terminated, done)]
    if len(shapes[0]) != 2 or len(set(shapes)) > 1:
        # Arrays of [T, B, 1] and [T, B] would otherwise be broadcast to [T, B, B] without a word.
        raise ValueError(
            "rewards, values, next_values, terminated and done must all have one shape [time, batch], got "
            + ", ".join(str(list(shape)) for shape in shapes)
        )
    deltas = rewards + gamma * jnp.where(terminated, 0.0, next_values) - values

    def backwards(
        later: Float[Array, " batch"], step: tuple[Float[Array, " batch"], Bool[Array, " batch"]]
    ) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
        delta, ends = step
        advantage = delta + gamma * gae_lambda * jnp.where(ends, 0.0, later)
        return advantage, advantage

    _, advantages = jax.lax.scan(backwards, jnp.zeros_like(deltas[0]), (deltas, done), reverse=True)
    return advantages, advantages + values
