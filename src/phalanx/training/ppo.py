"""Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347) for any environment and network.

Each update collects `num_steps` steps in each of `num_envs` environments, estimates advantages with GAE and
takes `update_epochs * num_minibatches` gradient steps. The environments are divided into `num_env_shards`
shards. Every shard runs the same program with the same shapes, and gradients are summed in shard order, so
the weights are bit-identical for any number of processes with one device each. XLA compiles the program for
several devices in one process differently, so its results can differ by rounding from those with one device.
They are bit-identical for the same number of devices per process.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.core.environment import Key
from phalanx.core.vector import map_where
from phalanx.nn.policy_network import PolicyNetwork, apply_batch
from phalanx.training.algorithm import TrainState, UpdateResult, jit_method
from phalanx.training.config import PolicyRunConfig, RunConfig
from phalanx.training.optimizer import OptimizerConfig, ScheduleName, scheduled_value
from phalanx.training.policy_algorithm import PolicyAlgorithm
from phalanx.training.rollout import (
    Episodes,
    Rollout,
    RolloutState,
    collect_rollout,
    init_rollout,
    map_rows,
    map_shards,
)

Scalar = Float[Array, ""]
Samples = Float[Array, "*shards samples"]

_VALUE_BATCH = 32
"""Batch size for computing the values of the final observations of truncated episodes. It is small because a
shard has few truncated episodes."""


class PPOConfig(PolicyRunConfig):
    """Configuration for PPO."""

    preset_group = "ppo"
    renamed_settings: ClassVar[Mapping[str, str]] = {
        "ppo.shuffle_groups": "num_env_shards",
        "ppo.chunk": "microbatch_size",
        "ppo.value_clip": "vf_clip_eps",
        "ppo.value_coefficient": "vf_coef",
        "ppo.entropy_coefficient": "ent_coef",
        "ppo.learning_rate_end": "optimizer.end_learning_rate",
        "ppo.learning_rate_schedule": "optimizer.lr_schedule",
        "arc": "env",
        "proofs": "env",
        "dataset": "env.dataset",
        "generated": "env.generated",
        "depth_limit": "env.compute_depths_up_to",
    }

    num_envs: int = Field(default=1024, ge=1)
    """Total number of parallel environments on all devices and processes."""
    num_steps: int = Field(default=16, ge=1)
    """Number of steps in each environment per update."""
    total_timesteps: int | None = Field(default=None, ge=1)
    """Number of environment steps in the run, over all environments. If set, `num_updates` is computed from
    it and rounded down, but is at least 1. If None, `num_updates` is used."""
    update_epochs: int = Field(default=2, ge=1)
    """Number of epochs over the samples in each update."""
    num_minibatches: int = Field(default=8, ge=1)
    """Number of minibatches, and therefore gradient steps, per epoch."""
    num_env_shards: int = Field(default=8, ge=1)
    """Number of shards that the environments are divided into. Gradients are computed per shard and summed in
    a fixed order. Samples are shuffled within a shard, and every minibatch has the same number of samples
    from each shard. The number of devices cannot exceed the number of shards. If this setting does not divide
    `num_envs`, the next smaller divisor of `num_envs` is used."""
    microbatch_size: int | None = Field(default=64, ge=1)
    """Maximum number of samples in a forward and backward pass. Gradients are accumulated over a minibatch.
    On a CPU, 64 is about twice as fast as complete minibatches, because activations stay in the cache. If
    None, each minibatch is processed in one pass, which is recommended on a GPU."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount factor."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE lambda: 0 for one-step advantages, 1 for Monte Carlo returns."""
    clip_eps: float = Field(default=0.2, gt=0)
    """Clipping threshold for the probability ratio, which is clipped to `[1 - clip_eps, 1 + clip_eps]`."""
    vf_clip_eps: float | None = Field(default=0.2, gt=0)
    """Clipping threshold for the change in the value estimate. None disables value clipping."""
    vf_coef: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    ent_coef: float = Field(default=0.01, ge=0)
    """Initial weight of the entropy bonus."""
    ent_coef_end: float = Field(default=0.001, ge=0)
    """Final weight of the entropy bonus. Not used if `ent_schedule` is `constant`."""
    ent_schedule: ScheduleName = "linear"
    """Shape of the decay from `ent_coef` to `ent_coef_end`."""
    normalize_advantages: bool = True
    """Normalize advantages to mean 0 and standard deviation 1 in each minibatch."""
    target_kl: float | None = Field(default=None, gt=0)
    """Skip the remaining gradient steps of an update once the approximate KL divergence from the old policy
    exceeds this value. None disables early stopping."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=1e-3, end_learning_rate=1e-4, lr_schedule="linear", max_grad_norm=0.5, eps=1e-5
    )
    """Settings for Adam, the learning-rate schedule and gradient clipping. The learning rate changes once per
    update."""

    @model_validator(mode="before")
    @classmethod
    def _convert_total_timesteps(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("total_timesteps") is None:
            return values
        sizes = [int(values.get(name, cls.model_fields[name].default)) for name in ("num_envs", "num_steps")]
        num_updates = max(1, int(values["total_timesteps"]) // math.prod(sizes))
        # A run stores the number of updates, which changes if the run is extended.
        return {**values, "num_updates": num_updates, "total_timesteps": None}

    @model_validator(mode="after")
    def _check_minibatches(self) -> "PPOConfig":
        samples = self.num_envs // self.num_shards * self.num_steps
        if samples % self.num_minibatches:
            raise ValueError(
                f"num_minibatches must divide the {samples} samples of each of the {self.num_shards} shards "
                f"of environments, got {self.num_minibatches}; change num_minibatches, num_steps or num_envs"
            )
        return self

    @property
    def num_shards(self) -> int:
        """Number of shards: the largest divisor of `num_envs` that is at most `num_env_shards`."""
        return max(n for n in range(1, self.num_env_shards + 1) if self.num_envs % n == 0)

    @property
    def gradient_steps(self) -> int:
        """Number of gradient steps per update, unless `target_kl` stops the update early."""
        return self.update_epochs * self.num_minibatches

    @property
    def steps_per_update(self) -> int:
        """Number of environment steps per update, over all environments."""
        return self.num_envs * self.num_steps


class PPOState(TrainState):
    """Training state for PPO, with the sharded environment states and the key for the next update."""

    rollout: RolloutState
    key: Key
    sharded_fields: ClassVar[tuple[str, ...]] = ("rollout",)


class PPOBatch(eqx.Module):
    """Samples of one update or one microbatch.

    The arrays have shape `[shards, samples, ...]` for an update and `[samples, ...]` for a microbatch.
    """

    observations: PyTree
    actions: PyTree
    log_probs: Samples
    values: Samples
    advantages: Samples
    returns: Samples
    """Value targets."""


class PPOMetrics(eqx.Module):
    """Losses and diagnostics for one gradient step, or their sums over several gradient steps."""

    policy_loss: Scalar
    value_loss: Scalar
    loss: Scalar
    entropy: Scalar
    approx_kl: Scalar
    clip_fraction: Scalar
    gradient_norm: Scalar

    @classmethod
    def zeros(cls) -> "PPOMetrics":
        """Return all-zero metrics, the initial value of a sum."""
        return cls(*(jnp.zeros(()) for _ in dataclasses.fields(cls)))

    def mean(self, count: int) -> dict[str, Scalar]:
        """Divide the sums by `count`, the number of gradient steps, and return them by name."""
        return {field.name: getattr(self, field.name) / count for field in dataclasses.fields(self)}


class AdvantageStats(eqx.Module):
    """Statistics of the advantages and values in an update, computed over all shards."""

    mean: Float[Array, " gradient_steps"]
    """Mean advantage of each minibatch."""
    std: Float[Array, " gradient_steps"]
    """Standard deviation of the advantages in each minibatch."""
    explained_variance: Scalar
    """Fraction of the variance of the value targets that the value estimates explain."""


def bootstrap_values(
    network: PolicyNetwork, rollout: Rollout, last_observations: PyTree, num_shards: int = 1
) -> Float[Array, "time batch"]:
    """Estimate the value of the observation after each step, before any reset.

    In the middle of an episode, this is the value at the next step, which is already known. It is 0 after
    termination. The network computes it only after truncation and after the last step of the rollout.

    Args:
        network: Network that estimates the values.
        rollout: The rollout.
        last_observations: Observations after the last step of the rollout and any reset.
        num_shards: Number of shards into which the environments are divided. Shards are computed separately.
    """

    def estimate_value(observation: PyTree) -> Array:
        return network(observation)[1]

    last_values = map_shards(jax.vmap(estimate_value), last_observations, num_shards)

    def next_values(shard: tuple[Array, Array, Array, PyTree, Array]) -> Array:
        values, terminated, done, next_observations, last_values = shard
        following = jnp.where(terminated, 0.0, jnp.concatenate([values[1:], last_values]))
        truncated = (done & ~terminated).reshape(-1)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), next_observations)
        found = map_where(estimate_value, truncated, flat, following.reshape(-1), _VALUE_BATCH)
        return found.reshape(following.shape)

    arrays = (rollout.values, rollout.terminated, rollout.done, rollout.next_observations, last_values[None])
    return map_shards(next_values, arrays, num_shards, axis=1)


def gae(
    rewards: Float[Array, "time batch"],
    values: Float[Array, "time batch"],
    next_values: Float[Array, "time batch"],
    terminated: Bool[Array, "time batch"],
    done: Bool[Array, "time batch"],
    gamma: float,
    gae_lambda: float,
) -> tuple[Float[Array, "time batch"], Float[Array, "time batch"]]:
    """Compute advantages and value targets with GAE (Schulman et al., 2016, arXiv:1506.02438).

    The bootstrap value is 0 after termination, and the value of the final observation after truncation
    (`done` but not `terminated`).

    Args:
        rewards: Reward of each step.
        values: Value estimate of the observation before each step.
        next_values: Value estimate of the observation after each step, before any reset.
        terminated: True where the episode terminated.
        done: True where the episode ended, by termination or truncation.
        gamma: Discount factor.
        gae_lambda: GAE lambda.

    Returns:
        The advantages and the value targets.

    >>> one = jnp.ones((1, 1))
    >>> truncated, _ = gae(one, one, 3 * one, one < 0, one > 0, 0.5, 0.9)
    >>> terminated, _ = gae(one, one, 3 * one, one > 0, one > 0, 0.5, 0.9)
    >>> float(truncated[0, 0]), float(terminated[0, 0])
    (1.5, 0.0)
    """
    shapes = [array.shape for array in (rewards, values, next_values, terminated, done)]
    if len(shapes[0]) != 2 or len(set(shapes)) > 1:
        # Otherwise, arrays of shape [T, B, 1] and [T, B] would broadcast to [T, B, B].
        raise ValueError(
            "rewards, values, next_values, terminated and done must all have one shape [time, batch], got "
            + ", ".join(str(list(shape)) for shape in shapes)
        )
    deltas = rewards + gamma * jnp.where(terminated, 0.0, next_values) - values

    def backward(next_advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, step_done = step
        advantage = delta + gamma * gae_lambda * jnp.where(step_done, 0.0, next_advantage)
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(deltas[0]), (deltas, done), reverse=True)
    return advantages, advantages + values


def ppo_loss(
    network: PolicyNetwork, batch: PPOBatch, ent_coef: Scalar, config: PPOConfig
) -> tuple[Scalar, PPOMetrics]:
    """Compute the PPO loss (clipped surrogate, value and entropy terms) and its metrics."""
    pi, values = apply_batch(network, batch.observations)
    log_probs, entropies = jax.vmap(lambda one, action: (one.log_prob(action), one.entropy()))(
        pi, batch.actions
    )
    log_ratio = log_probs - batch.log_probs
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - config.clip_eps, 1 + config.clip_eps)
    policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantages, clipped_ratio * batch.advantages))
    value_losses = jnp.square(values - batch.returns)
    if config.vf_clip_eps is not None:
        change = jnp.clip(values - batch.values, -config.vf_clip_eps, config.vf_clip_eps)
        value_losses = jnp.maximum(value_losses, jnp.square(batch.values + change - batch.returns))
    value_loss, entropy = 0.5 * jnp.mean(value_losses), jnp.mean(entropies)
    loss = policy_loss + config.vf_coef * value_loss - ent_coef * entropy
    approx_kl = jnp.mean(ratio - 1 - log_ratio)  # Schulman's k3 estimator: unbiased and non-negative
    clip_fraction = jnp.mean((jnp.abs(ratio - 1) > config.clip_eps).astype(jnp.float32))
    metrics = PPOMetrics(policy_loss, value_loss, loss, entropy, approx_kl, clip_fraction, jnp.zeros(()))
    return loss, metrics


class PPO(PolicyAlgorithm[PPOState]):
    """Trains an environment's policy network with PPO."""

    name = "ppo"
    config_type: ClassVar[type[RunConfig]] = PPOConfig
    supports_multiple_processes = True

    def init(self, key: Key, params: PyTree | None = None) -> PPOState:
        self.mesh.check_num_shards(self.config.num_shards)
        params_key, key = jax.random.split(key)
        # A copy, because the first update reuses the memory of its state.
        params = self.init_params(params_key) if params is None else jax.tree.map(jnp.copy, params)
        reset_key, key = jax.random.split(key)
        env_ids = jnp.arange(self.config.num_envs, dtype=jnp.int32)
        env_ids = env_ids[self.mesh.local_slice(len(env_ids))]
        rollout = init_rollout(self.environment, reset_key, env_ids)
        return PPOState(
            params=self.mesh.replicate(params),
            opt_state=self.mesh.replicate(self.optimizer.init(params)),
            step=jnp.int32(0),
            rollout=self.mesh.shard(rollout),
            key=key,
        )

    def update(self, state: PPOState) -> tuple[PPOState, UpdateResult]:
        config, mesh = self.config, self.mesh
        key, rollout_key, shuffle_key = jax.random.split(state.key, 3)
        rollout, batch, minibatches, episodes = mesh.map(
            self.collect, state.params, state.rollout, rollout_key, shuffle_key, out=(0, 0, 1, 0)
        )
        (advantages, returns, values), episodes = mesh.all_gather(
            ((batch.advantages, batch.returns, batch.values), episodes)
        )
        episodes["episode_mask"] = self.unbiased_episodes(episodes, state.step)
        stats = mesh.map(self.advantage_stats, advantages, returns, values, shuffle_key, out="replicated")
        params, opt_state, metrics = state.params, state.opt_state, mesh.replicate(PPOMetrics.zeros())
        for i in range(config.gradient_steps):
            gradients = mesh.map(
                self.shard_gradients, params, batch, minibatches, stats, np.int32(i), state.step, out="shards"
            )
            total = mesh.sum_in_order(gradients)  # the only communication in a gradient step
            params, opt_state, metrics, kl = mesh.map(
                self.apply_gradients, params, opt_state, metrics, total, state.step, out="replicated"
            )
            if config.target_kl is not None and float(kl) > config.target_kl:
                break
        logged = metrics.mean(i + 1) | {
            "learning_rate": self.learning_rate(state.step),
            "ent_coef": self.ent_coef(state.step),
            "gradient_steps": np.int32(i + 1),
            "explained_variance": stats.explained_variance,
        }
        counts = {self.unit: config.steps_per_update}
        state = PPOState(params, opt_state, state.step + 1, rollout, key)
        return state, UpdateResult(logged, episodes, counts)

    @jit_method
    def collect(
        self, params: PyTree, rollout: RolloutState, rollout_key: Key, shuffle_key: Key
    ) -> tuple[RolloutState, PPOBatch, Int32[Array, "gradient_steps shards minibatch"], Episodes]:
        """Collect a rollout, compute advantages and assign samples to minibatches.

        Returns:
            The new environment states, the samples with shape `[shards, samples, ...]`, the indices of each
            minibatch's samples within their shard, and the episode statistics with shape `[envs, time]`.
        """
        config = self.config
        num_envs = rollout.env_ids.shape[0]
        num_shards = config.num_shards * num_envs // config.num_envs
        network = self.network(params)
        rollout, steps, episodes = collect_rollout(
            self.environment,
            network,
            rollout,
            rollout_key,
            config.num_steps,
            config.microbatch_size,
            num_shards,
        )

        next_values = bootstrap_values(network, steps, rollout.observations, num_shards)

        def estimate_advantages(shard: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array]:
            return gae(*shard, config.gamma, config.gae_lambda)

        arrays = (steps.rewards, steps.values, next_values, steps.terminated, steps.done)
        advantages, returns = map_shards(estimate_advantages, arrays, num_shards, axis=1)
        batch = PPOBatch(
            steps.observations, steps.actions, steps.log_probs, steps.values, advantages, returns
        )

        def by_shard(leaf: Array) -> Array:
            return jnp.swapaxes(leaf, 0, 1).reshape(num_shards, -1, *leaf.shape[2:])

        batch = jax.tree.map(by_shard, batch)
        minibatches = self._minibatches(shuffle_key, rollout.env_ids, batch.log_probs.shape)
        return rollout, batch, minibatches, jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), episodes)

    @jit_method
    def unbiased_episodes(self, episodes: Episodes, step: Int32[Array, ""]) -> Bool[Array, "envs time"]:
        """Return the mask of the episodes over which update `step`, counted from 0, reports means.

        All environments start at the same time. At first, only short episodes have ended, and a mean over
        them would be biased. Therefore, the mask is empty until every environment has finished an episode or
        has taken `max_episode_steps` steps.
        """
        ended, num_steps = episodes["episode_mask"], (step + 1) * self.config.num_steps
        in_first_episode = (episodes["episode_lengths"][:, -1] == num_steps) & ~ended[:, -1]
        is_biased = jnp.any(in_first_episode) & (num_steps < self.environment.max_episode_steps)
        return ended & ~is_biased

    @jit_method
    def advantage_stats(
        self, advantages: Samples, returns: Samples, values: Samples, shuffle_key: Key
    ) -> AdvantageStats:
        """Compute statistics of the advantages and values over all shards.

        `shuffle_key` must be the key that was passed to `collect`, so that the minibatches are the same.

        Returns:
            The mean and standard deviation of the advantages in each minibatch, and the explained variance of
            the values.
        """
        env_ids = jnp.arange(self.config.num_envs, dtype=jnp.int32)
        minibatches = self._minibatches(shuffle_key, env_ids, advantages.shape)
        chosen = jax.vmap(lambda rows: jnp.take_along_axis(advantages, rows, axis=1))(minibatches)
        flat = chosen.reshape(chosen.shape[0], -1)
        mean = jnp.mean(flat, axis=1)
        std = jnp.sqrt(jnp.mean(jnp.square(flat - mean[:, None]), axis=1))
        variance = jnp.mean(jnp.square(returns - jnp.mean(returns)))
        residual = jnp.mean(jnp.square(returns - values))
        return AdvantageStats(mean, std, 1 - residual / jnp.maximum(variance, 1e-8))

    @jit_method
    def shard_gradients(
        self,
        params: PyTree,
        batch: PPOBatch,
        minibatches: Int32[Array, "gradient_steps shards minibatch"],
        stats: AdvantageStats,
        i: Int32[Array, ""],
        step: Int32[Array, ""],
    ) -> Float[Array, "shards size"]:
        """Compute the gradients and metrics of minibatch `i` for each shard.

        The weight of the entropy bonus is that of update `step`, counted from 0.

        Returns:
            One vector per shard. It contains the gradients and metrics, averaged over the shard's samples in
            the minibatch and flattened with `ravel_pytree`.
        """
        config = self.config
        mean, std = stats.mean[i], stats.std[i]
        ent_coef = self.ent_coef(step)

        def loss(params: PyTree, microbatch: PPOBatch) -> tuple[Scalar, PPOMetrics]:
            return ppo_loss(self.network(params), microbatch, ent_coef, config)

        def one_shard(shard: tuple[PPOBatch, Int32[Array, " minibatch"]]) -> Float[Array, " size"]:
            samples, rows = shard
            minibatch = jax.tree.map(lambda leaf: leaf[rows], samples)
            if config.normalize_advantages:
                normalized = (minibatch.advantages - mean) / (std + 1e-8)
                minibatch = dataclasses.replace(minibatch, advantages=normalized)
            size = len(rows)
            micro = max(n for n in range(1, min(config.microbatch_size or size, size) + 1) if size % n == 0)
            microbatches = jax.tree.map(
                lambda leaf: leaf.reshape(size // micro, micro, *leaf.shape[1:]), minibatch
            )
            gradient = jax.grad(loss, has_aux=True)

            def add(total: PyTree, microbatch: PPOBatch) -> tuple[PyTree, None]:
                return jax.tree.map(jnp.add, total, gradient(params, microbatch)), None

            zeros = jax.tree.map(jnp.zeros_like, params), PPOMetrics.zeros()
            total, _ = jax.lax.scan(add, zeros, microbatches)
            return ravel_pytree(jax.tree.map(lambda leaf: leaf * (micro / size), total))[0]

        return map_rows(one_shard, (batch, minibatches[i]))

    @jit_method(donate=("params", "opt_state", "metrics"))
    def apply_gradients(
        self,
        params: PyTree,
        opt_state: optax.OptState,
        metrics: PPOMetrics,
        total: Float[Array, " size"],
        step: Int32[Array, ""],
    ) -> tuple[PyTree, optax.OptState, PPOMetrics, Scalar]:
        """Clip the gradients and take an Adam step with the learning rate of update `step`.

        Args:
            params: Parameters before the step.
            opt_state: Optimizer state before the step.
            metrics: Sums of the metrics of the earlier gradient steps in this update.
            total: Sum of the results of `shard_gradients` over all shards.
            step: Update number, counted from 0.

        Returns:
            The new parameters, the new optimizer state, the sums of the metrics including this gradient step,
            and the approximate KL divergence of this gradient step.
        """
        _, unravel = ravel_pytree((params, PPOMetrics.zeros()))
        gradients, current = unravel(total / self.config.num_shards)
        changes, opt_state = self.optimizer.update(gradients, opt_state, params)
        learning_rate = self.learning_rate(step)
        params = jax.tree.map(lambda old, change: old - learning_rate * change, params, changes)
        current = dataclasses.replace(current, gradient_norm=optax.tree.norm(gradients))
        return params, opt_state, jax.tree.map(jnp.add, metrics, current), current.approx_kl

    def ent_coef(self, step: Int32[Array, ""]) -> Scalar:
        """Compute the weight of the entropy bonus in update `step`, counted from 0."""
        config = self.config
        progress = step / config.num_updates
        return scheduled_value(config.ent_schedule, config.ent_coef, config.ent_coef_end, progress)

    def _minibatches(
        self, key: Key, env_ids: Int32[Array, " envs"], shape: tuple[int, ...]
    ) -> Int32[Array, "gradient_steps shards minibatch"]:
        """Shuffle the samples of each shard and assign them to minibatches.

        The permutation of a shard depends only on the key, the shard index and the epoch.

        Args:
            key: Key for shuffling.
            env_ids: Indices of the environments in the shards, which determine the shard indices.
            shape: Number of shards, and number of samples per shard.

        Returns:
            The indices of the samples within their shard.
        """
        config = self.config
        num_shards, size = shape
        shards = env_ids.reshape(num_shards, -1)[:, 0] // (config.num_envs // config.num_shards)

        def shuffle_epoch(epoch: Array) -> Array:
            def shuffle_shard(shard: Array) -> Array:
                shard_key = jax.random.fold_in(jax.random.fold_in(key, epoch), shard)
                return jax.random.permutation(shard_key, size)

            shuffled = jax.vmap(shuffle_shard)(shards)
            return shuffled.reshape(num_shards, config.num_minibatches, -1).swapaxes(0, 1)

        minibatches = jax.vmap(shuffle_epoch)(jnp.arange(config.update_epochs))
        return minibatches.reshape(-1, num_shards, size // config.num_minibatches).astype(jnp.int32)
