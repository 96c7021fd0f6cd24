"""Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347) for any environment and network.

Each update collects `num_steps` steps in each of `num_envs` environments, estimates advantages with GAE and
takes `update_epochs * num_minibatches` gradient steps. The environments are divided into `num_env_shards`
shards. Every shard runs the same program with the same shapes, and gradients are summed in shard order, so
the weights are bit-identical for any number of devices and processes.
"""

import dataclasses
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.training.algorithm import TrainState, UpdateResult, jit_method
from phalanx.training.config import RunConfig
from phalanx.training.policy_algorithm import PolicyAlgorithm
from phalanx.training.rollout import (
    Episodes,
    RolloutState,
    collect_rollout,
    init_rollout,
    map_rows,
    map_shards,
)

Schedule = Literal["constant", "linear", "cosine"]
Scalar = Float[Array, ""]
Samples = Float[Array, "*shards samples"]


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


class PPOTrainingConfig(RunConfig):
    """Settings that all PPO runs have."""

    seed: int = 0
    """Seed of the network, the episodes and the shuffling."""
    num_seeds: int = Field(default=1, ge=1)
    """Number of runs, with the seeds `seed`, `seed + 1`, ..."""
    ppo: PPOConfig = PPOConfig()
    """PPO settings."""


class PPOState(TrainState):
    """Parameters, optimizer state, step, environment states (sharded) and the key of the next update."""

    rollout: RolloutState
    key: Key
    sharded_fields: ClassVar[tuple[str, ...]] = ("rollout",)


class PPOBatch(eqx.Module):
    """Samples of one update, grouped by shard, or of one microbatch."""

    observations: PyTree
    actions: PyTree
    log_probs: Samples
    values: Samples
    advantages: Samples
    returns: Samples
    """Value targets."""


class PPOMetrics(eqx.Module):
    """Losses and diagnostics of a gradient step, or their sums over several."""

    policy_loss: Scalar
    value_loss: Scalar
    total_loss: Scalar
    entropy: Scalar
    approx_kl: Scalar
    clip_fraction: Scalar
    gradient_norm: Scalar

    @classmethod
    def zeros(cls) -> "PPOMetrics":
        """Return zeros to add to."""
        return cls(*(jnp.zeros(()) for _ in dataclasses.fields(cls)))

    def mean(self, count: int) -> dict[str, Scalar]:
        """Divide the sums by the number of gradient steps."""
        return {field.name: getattr(self, field.name) / count for field in dataclasses.fields(self)}


class AdvantageStats(eqx.Module):
    """Statistics over all shards."""

    mean: Float[Array, " gradient_steps"]
    """Mean advantage of each minibatch."""
    std: Float[Array, " gradient_steps"]
    explained_variance: Scalar


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

    `next_values` are the values of the next observations, before any reset. The bootstrap value is 0 after
    termination, and the value of the final observation after truncation (`done` but not `terminated`).

    >>> one = jnp.ones((1, 1))
    >>> truncated, _ = gae(one, one, 3 * one, one < 0, one > 0, 0.5, 0.9)
    >>> terminated, _ = gae(one, one, 3 * one, one > 0, one > 0, 0.5, 0.9)
    >>> float(truncated[0, 0]), float(terminated[0, 0])
    (1.5, 0.0)
    """
    shapes = [array.shape for array in (rewards, values, next_values, terminated, done)]
    if len(shapes[0]) != 2 or len(set(shapes)) > 1:
        # Otherwise arrays of shape [T, B, 1] and [T, B] would broadcast to [T, B, B].
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

    def evaluate(observation: PyTree, action: PyTree) -> tuple[Array, Array, Array]:
        pi, value = network(observation)
        return pi.log_prob(action), pi.entropy(), value

    log_probs, entropies, values = jax.vmap(evaluate)(batch.observations, batch.actions)
    log_ratio = log_probs - batch.log_probs
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantages, clipped_ratio * batch.advantages))
    value_losses = jnp.square(values - batch.returns)
    if config.value_clip is not None:
        change = jnp.clip(values - batch.values, -config.value_clip, config.value_clip)
        value_losses = jnp.maximum(value_losses, jnp.square(batch.values + change - batch.returns))
    value_loss, entropy = 0.5 * jnp.mean(value_losses), jnp.mean(entropies)
    loss = policy_loss + config.value_coefficient * value_loss - ent_coef * entropy
    approx_kl = jnp.mean(ratio - 1 - log_ratio)  # Schulman's k3 estimator: unbiased and non-negative
    clip_fraction = jnp.mean((jnp.abs(ratio - 1) > config.clip).astype(jnp.float32))
    metrics = PPOMetrics(policy_loss, value_loss, loss, entropy, approx_kl, clip_fraction, jnp.zeros(()))
    return loss, metrics


class PPO(PolicyAlgorithm[PPOState]):
    """Trains an environment's policy network with PPO."""

    name = "ppo"
    config_type: ClassVar[type[RunConfig]] = PPOTrainingConfig
    num_updates_setting = "ppo.num_updates"

    @property
    def settings(self) -> PPOConfig:
        """PPO settings of the run."""
        return self.config.ppo

    def init(self, key: Key, params: PyTree | None = None) -> PPOState:
        self.mesh.check_num_shards(
            self.settings.num_shuffle_groups, "ppo.shuffle_groups, lowered to divide ppo.num_envs"
        )
        params_key, key = jax.random.split(key)
        # A copy, because the first update reuses the memory of its state.
        params = self.init_params(params_key) if params is None else jax.tree.map(jnp.copy, params)
        reset_key, key = jax.random.split(key)
        env_ids = jnp.arange(self.settings.num_envs, dtype=jnp.int32)
        rollout = self.init_rollout(reset_key, env_ids[self.mesh.local_slice(len(env_ids))])
        return PPOState(
            params=self.mesh.replicate(params),
            opt_state=self.mesh.replicate(self.optimizer.init(params)),
            step=jnp.int32(0),
            rollout=self.mesh.shard(rollout),
            key=key,
        )

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam with gradient clipping; `apply_gradients` multiplies by the learning rate."""
        limit = self.settings.max_gradient_norm
        clip = optax.identity() if limit is None else optax.clip_by_global_norm(limit)
        return optax.chain(clip, optax.scale_by_adam(eps=1e-5))

    def update(self, state: PPOState) -> tuple[PPOState, UpdateResult]:
        config, mesh = self.settings, self.mesh
        key, rollout_key, shuffle_key = jax.random.split(state.key, 3)
        rollout, batch, minibatches, episodes = mesh.map(
            self.collect, state.params, state.rollout, rollout_key, shuffle_key, out=(0, 0, 1, 0)
        )
        (advantages, returns, values), episodes = mesh.all_gather(
            ((batch.advantages, batch.returns, batch.values), episodes)
        )
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
        logged = metrics.mean(i + 1) | self.schedule_values(state.step)
        logged |= {"gradient_steps": np.int32(i + 1), "explained_variance": stats.explained_variance}
        counts = {self.unit: config.num_envs * config.num_steps}
        return (
            PPOState(params, opt_state, state.step + 1, rollout, key),
            UpdateResult(logged, episodes, counts),
        )

    @jit_method
    def init_rollout(self, key: Key, env_ids: Int32[Array, " envs"]) -> RolloutState:
        """Reset the environments."""
        return init_rollout(self.environment, key, env_ids)

    @jit_method
    def collect(
        self, params: PyTree, rollout: RolloutState, rollout_key: Key, shuffle_key: Key
    ) -> tuple[RolloutState, PPOBatch, Int32[Array, "gradient_steps shards minibatch"], Episodes]:
        """Collect rollouts, compute advantages and assign samples to minibatches.

        Returns:
            The environment states, the samples by shard, the sample indices of each minibatch, and the
            episode statistics with the environment axis first.
        """
        config = self.settings
        num_envs = rollout.env_ids.shape[0]
        num_shards = config.num_shuffle_groups * num_envs // config.num_envs
        rollout, steps, episodes = collect_rollout(
            self.environment,
            self.network(params),
            rollout,
            rollout_key,
            config.num_steps,
            config.chunk,
            num_shards,
        )

        def estimate_advantages(shard: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array]:
            return gae(*shard, config.gamma, config.gae_lambda)

        arrays = (steps.rewards, steps.values, steps.next_values, steps.terminated, steps.done)
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
    def advantage_stats(
        self, advantages: Samples, returns: Samples, values: Samples, shuffle_key: Key
    ) -> AdvantageStats:
        """Compute mean and std of each minibatch's advantages over all shards, and the explained variance."""
        env_ids = jnp.arange(self.settings.num_envs, dtype=jnp.int32)
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
        """Compute one raveled vector per shard: mean gradients and metrics of its part of minibatch `i`."""
        config = self.settings
        mean, std = stats.mean[i], stats.std[i]
        ent_coef = config.entropy_coefficient_at(step)

        def loss(params: PyTree, microbatch: PPOBatch) -> tuple[Scalar, PPOMetrics]:
            return ppo_loss(self.network(params), microbatch, ent_coef, config)

        def one_shard(shard: tuple[PPOBatch, Int32[Array, " minibatch"]]) -> Float[Array, " size"]:
            samples, rows = shard
            minibatch = jax.tree.map(lambda leaf: leaf[rows], samples)
            if config.normalize_advantages:
                normalized = (minibatch.advantages - mean) / (std + 1e-8)
                minibatch = dataclasses.replace(minibatch, advantages=normalized)
            size = len(rows)
            micro = max(n for n in range(1, min(config.chunk or size, size) + 1) if size % n == 0)
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
        """Clip the gradient and take an Adam step with the learning rate of update `step`.

        Also adds the metrics, including `gradient_norm`, to `metrics` and returns this step's `approx_kl`.
        """
        _, unravel = ravel_pytree((params, PPOMetrics.zeros()))
        gradients, current = unravel(total / self.settings.num_shuffle_groups)
        changes, opt_state = self.optimizer.update(gradients, opt_state, params)
        learning_rate = self.settings.learning_rate_at(step)
        params = jax.tree.map(lambda old, change: old - learning_rate * change, params, changes)
        current = dataclasses.replace(current, gradient_norm=optax.tree.norm(gradients))
        return params, opt_state, jax.tree.map(jnp.add, metrics, current), current.approx_kl

    @jit_method
    def schedule_values(self, step: Int32[Array, ""]) -> dict[str, Scalar]:
        """Compute the scheduled settings of update `step`, for logging."""
        return {
            "learning_rate": self.settings.learning_rate_at(step),
            "entropy_coefficient": self.settings.entropy_coefficient_at(step),
        }

    def _minibatches(
        self, key: Key, env_ids: Int32[Array, " envs"], shape: tuple[int, ...]
    ) -> Int32[Array, "gradient_steps shards minibatch"]:
        """Assign the samples of each shard to minibatches. A shard's shuffle depends only on its index."""
        config = self.settings
        num_shards, size = shape
        shards = env_ids.reshape(num_shards, -1)[:, 0] // (config.num_envs // config.num_shuffle_groups)

        def shuffle_epoch(epoch: Array) -> Array:
            def shuffle_shard(shard: Array) -> Array:
                shard_key = jax.random.fold_in(jax.random.fold_in(key, epoch), shard)
                return jax.random.permutation(shard_key, size)

            shuffled = jax.vmap(shuffle_shard)(shards)
            return shuffled.reshape(num_shards, config.minibatches, -1).swapaxes(0, 1)

        minibatches = jax.vmap(shuffle_epoch)(jnp.arange(config.epochs))
        return minibatches.reshape(-1, num_shards, size // config.minibatches).astype(jnp.int32)
