"""The settings of proximal policy optimization, and its advantages.

What the settings do is in `rollouts` and `update`.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32
from pydantic import Field, model_validator

from phalanx.config import Config

Schedule = Literal["constant", "linear", "cosine"]


class PPOConfig(Config):
    """Proximal policy optimization."""

    num_envs: int = Field(default=1024, ge=1)
    """Environments that step together, on all devices taken together."""
    num_steps: int = Field(default=16, ge=1)
    """Steps of each environment in one update."""
    num_updates: int = Field(default=100, ge=1)
    """Updates in the whole training."""
    epochs: int = Field(default=2, ge=1)
    """How many times an update goes through its steps."""
    minibatches: int = Field(default=8, ge=1)
    """Gradient steps in an epoch."""
    shuffle_groups: int = Field(default=8, ge=1)
    """Groups of environments within which steps are shuffled; every minibatch takes as many of each. Each is
    computed on its own, so that as many processes or devices can share the work and get the same weights to
    the last bit. Lowered to divide `num_envs`."""
    chunk: int | None = Field(default=64, ge=1)
    """Steps that the network computes together, at most: a CPU is twice as fast with what stays in its cache.
    Gradients are summed over the chunks of a minibatch. None, for a GPU, computes all at once."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """What a reward is worth a step later."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Between one-step (0) and Monte Carlo (1) advantages."""
    clip: float = Field(default=0.2, gt=0)
    """How far the probability ratio may move before its gradient stops."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """How far a value may move before its gradient stops; none for no limit."""
    value_coefficient: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    entropy_coefficient: float = Field(default=0.01, ge=0)
    """Weight of the entropy bonus at the start."""
    entropy_coefficient_end: float = Field(default=0.001, ge=0)
    """Weight of the entropy bonus at the end."""
    entropy_schedule: Schedule = "linear"
    """How it goes from one to the other; `constant` keeps the first."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Adam's step at the start."""
    learning_rate_end: float = Field(default=1e-4, ge=0)
    """Adam's step at the end."""
    learning_rate_schedule: Schedule = "linear"
    """How it goes from one to the other; `constant` keeps the first."""
    max_gradient_norm: float | None = Field(default=0.5, gt=0)
    """Gradients are scaled down to this length; none for no limit."""
    normalize_advantages: bool = True
    """Whether advantages get mean 0 and deviation 1 in each minibatch."""
    target_kl: float | None = Field(default=None, gt=0)
    """An update makes no further gradient steps once the policy has moved this far; none for no limit."""

    @model_validator(mode="after")
    def _divisible(self) -> "PPOConfig":
        steps = self.num_envs // self.num_shuffle_groups * self.num_steps
        if steps % self.minibatches:
            raise ValueError(
                f"minibatches must divide the {steps} steps of each of the {self.num_shuffle_groups} groups "
                f"of environments, got {self.minibatches}; change minibatches, num_steps or num_envs"
            )
        return self

    @property
    def num_shuffle_groups(self) -> int:
        """The groups really used: the largest number up to `shuffle_groups` that divides the environments."""
        return max(n for n in range(1, self.shuffle_groups + 1) if self.num_envs % n == 0)

    @property
    def gradient_steps(self) -> int:
        """Of one update, unless `target_kl` stops it."""
        return self.epochs * self.minibatches

    @property
    def steps_per_update(self) -> int:
        """Environment steps in one update."""
        return self.num_envs * self.num_steps

    @property
    def total_steps(self) -> int:
        """Environment steps in the whole training."""
        return self.steps_per_update * self.num_updates

    def learning_rate_at(self, update: Int32[Array, ""]) -> Float[Array, ""]:
        """Adam's step in an update, counted from 0; the end's would be that of update `num_updates`."""
        return _scheduled(
            self.learning_rate_schedule, self.learning_rate, self.learning_rate_end, update / self.num_updates
        )

    def entropy_coefficient_at(self, update: Int32[Array, ""]) -> Float[Array, ""]:
        """Weight of the entropy bonus in an update, counted from 0 like the learning rate's."""
        return _scheduled(
            self.entropy_schedule,
            self.entropy_coefficient,
            self.entropy_coefficient_end,
            update / self.num_updates,
        )


def _scheduled(schedule: Schedule, first: float, last: float, progress: Float[Array, ""]) -> Float[Array, ""]:
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    match schedule:
        case "constant":
            return jnp.full_like(progress, first)
        case "linear":
            return first + (last - first) * progress
        case "cosine":
            return last + (first - last) * 0.5 * (1 + jnp.cos(jnp.pi * progress))


def gae(
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
    >>> truncated = generalized_advantages(one, one, 3 * one, one < 0, one > 0, 0.5, 0.9)
    >>> terminated = generalized_advantages(one, one, 3 * one, one > 0, one > 0, 0.5, 0.9)
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
