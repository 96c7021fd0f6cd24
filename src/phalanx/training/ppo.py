"""Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347) for any environment and network.

Each update collects `num_steps` steps in each of `num_envs` environments, estimates advantages with GAE and
takes `update_epochs * num_minibatches` gradient steps, all in one compiled program. With several devices,
each has its own environments and samples, and the gradients are averaged.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.core.environment import Environment, Key
from phalanx.core.vector import map_where, zeros_like_shapes
from phalanx.nn.policy_network import PolicyNetwork, apply_batch
from phalanx.training.algorithm import TrainState, UpdateResult, jit_method
from phalanx.training.config import PolicyRunConfig, RunConfig
from phalanx.training.device_mesh import AXIS, mean_over_devices
from phalanx.training.optimizer import OptimizerConfig, ScheduleName, scheduled_value
from phalanx.training.policy_algorithm import PolicyAlgorithm
from phalanx.training.rollout import Episodes, Rollout, RolloutState, collect_rollout, init_rollout

Scalar = Float[Array, ""]
Samples = Float[Array, " samples"]
Column = Float[Array, "rows 1"]
Metrics = dict[str, Scalar]
"""Losses and diagnostics by name, averaged over samples."""

_VALUE_BATCH = 32
"""Batch size for computing the values of the final observations of truncated episodes. It is small because
few episodes are truncated at the same time."""


class PPOConfig(PolicyRunConfig):
    """Configuration for PPO."""

    preset_group = "ppo"
    num_envs: int = Field(default=1024, ge=1)
    """Total number of parallel environments on all devices. The number of devices must divide it."""
    num_steps: int = Field(default=16, ge=1)
    """Number of steps in each environment per update."""
    total_timesteps: int | None = Field(default=None, ge=1)
    """Number of environment steps in the run, over all environments. If set, `num_updates` is computed from
    it and rounded down, but is at least 1. If None, `num_updates` is used."""
    update_epochs: int = Field(default=2, ge=1)
    """Number of epochs over the samples in each update."""
    num_minibatches: int = Field(default=8, ge=1)
    """Number of minibatches, and therefore gradient steps, per epoch."""
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
        if self.steps_per_update % self.num_minibatches:
            raise ValueError(
                f"num_minibatches must divide the {self.steps_per_update} samples of an update, got "
                f"{self.num_minibatches}; change num_minibatches, num_steps or num_envs"
            )
        return self

    @property
    def steps_per_update(self) -> int:
        """Number of environment steps per update, over all environments."""
        return self.num_envs * self.num_steps


class PPOState(TrainState):
    """Training state for PPO, with the states of the environments and the key for the next update."""

    rollout: RolloutState
    key: Key


class PPOBatch(eqx.Module):
    """Samples of an update, a minibatch or a microbatch. The arrays have the shape `[samples, ...]`."""

    observations: PyTree
    actions: PyTree
    log_probs: Samples
    values: Samples
    advantages: Samples
    returns: Samples
    """Value targets."""


def bootstrap_values(
    network: PolicyNetwork, rollout: Rollout, last_observations: PyTree
) -> Float[Array, "time batch"]:
    """Estimate the value of the observation after each step, before any reset.

    In the middle of an episode, this is the value at the next step, which is already known. It is 0 after
    termination. The network computes it only after truncation and after the last step of the rollout.

    Args:
        network: Network that estimates the values.
        rollout: The rollout.
        last_observations: Observations after the last step of the rollout and any reset.
    """

    def estimate_value(observation: PyTree) -> Array:
        return network(observation)[1]

    last_values = jax.vmap(estimate_value)(last_observations)
    following = jnp.concatenate([rollout.values[1:], last_values[None]])
    following = jnp.where(rollout.terminated, 0.0, following)
    truncated = (rollout.done & ~rollout.terminated).reshape(-1)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.next_observations)
    found = map_where(estimate_value, truncated, flat, following.reshape(-1), _VALUE_BATCH)
    return found.reshape(following.shape)


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
) -> tuple[Scalar, Metrics]:
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
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "loss": loss,
        "entropy": entropy,
        # Schulman's k3 estimator: unbiased and non-negative.
        "approx_kl": jnp.mean(ratio - 1 - log_ratio),
        "clip_fraction": jnp.mean((jnp.abs(ratio - 1) > config.clip_eps).astype(jnp.float32)),
    }


def shuffle_indices(key: Key, count: int) -> Int32[Array, " count"]:
    """Return a random permutation of the integers below `count`."""
    # Sorting integers whose high bits are random and whose low bits are the index takes less than half the
    # time of `jax.random.permutation`.
    index_bits = max(count - 1, 1).bit_length()
    if index_bits > 16:
        return jax.random.permutation(key, count).astype(jnp.int32)
    random = jax.random.bits(key, (count,), jnp.uint32) >> index_bits << index_bits
    mixed = jnp.sort(random | jnp.arange(count, dtype=jnp.uint32))
    return (mixed & ((1 << index_bits) - 1)).astype(jnp.int32)


def mean_and_std(values: Float[Array, "rows samples"]) -> tuple[Column, Column]:
    """Compute the mean and the standard deviation of each row, over the samples of all devices."""
    mean = mean_over_devices(values.mean(axis=1, keepdims=True))
    return mean, jnp.sqrt(mean_over_devices(jnp.square(values - mean).mean(axis=1, keepdims=True)))


class PPO(PolicyAlgorithm[PPOState]):
    """Trains an environment's policy network with PPO."""

    name = "ppo"
    config_type: ClassVar[type[RunConfig]] = PPOConfig

    def init(self, key: Key, params: PyTree | None = None) -> PPOState:
        config, devices = self.config, self.mesh.size
        minibatch_size = config.steps_per_update // config.num_minibatches
        if config.num_envs % devices or minibatch_size % devices:
            raise ValueError(
                f"{config.num_envs} environments and {minibatch_size} samples per minibatch cannot be "
                f"divided among {devices} devices; change num_envs or num_minibatches"
            )
        state = self._create_state(self.training_environment(0), key, params)
        return self.place(state, _specs(state))

    @jit_method(optimize=False)
    def _create_state(self, environment: Environment, key: Key, params: PyTree | None) -> PPOState:
        params_key, reset_key, key = jax.random.split(key, 3)
        if params is None:
            params = eqx.filter(self.make_network(params_key), eqx.is_array)
        env_ids = jnp.arange(self.config.num_envs, dtype=jnp.int32)
        rollout = init_rollout(environment, reset_key, env_ids)
        return PPOState(params, self.optimizer.init(params), jnp.int32(0), rollout, key)

    def update(self, state: PPOState) -> tuple[PPOState, UpdateResult]:
        before, environment = map(self.training_environment, (max(int(state.step) - 1, 0), int(state.step)))
        if environment is not before and not self.tasks.keeps_episodes:
            rollout = init_rollout(environment, jax.random.fold_in(state.key, 1), state.rollout.env_ids)
            state = self.place(dataclasses.replace(state, rollout=rollout), _specs(state))
        state, metrics, episodes = _update(self, environment, state)
        return state, UpdateResult(metrics, episodes, {self.unit: self.config.steps_per_update})

    def update_on_device(
        self, environment: Environment, state: PPOState
    ) -> tuple[PPOState, Metrics, Episodes]:
        """Compute one device's share of an update, which has its own part of the environments.

        Returns:
            The new state, the metrics, which are equal on all devices, and the statistics of the device's
            episodes, with shape `[time, batch]`.
        """
        config, network = self.config, self.network(state.params)
        key, rollout_key, shuffle_key = jax.random.split(state.key, 3)
        rollout, steps, episodes = collect_rollout(
            environment, network, state.rollout, rollout_key, config.num_steps, config.microbatch_size
        )
        next_values = bootstrap_values(network, steps, rollout.observations)
        transitions = steps.rewards, steps.values, next_values, steps.terminated, steps.done
        advantages, returns = gae(*transitions, config.gamma, config.gae_lambda)
        collected = steps.observations, steps.actions, steps.log_probs, steps.values, advantages, returns
        samples = PPOBatch(*jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), collected))
        shuffle_key = jax.random.fold_in(shuffle_key, jax.lax.axis_index(AXIS))
        minibatches = self.minibatches(shuffle_key, advantages.size)
        advantages = samples.advantages[minibatches]
        if config.normalize_advantages:
            mean, std = mean_and_std(advantages)
            advantages = (advantages - mean) / (std + 1e-8)
        ent_coef, learning_rate = self.ent_coef(state.step), self.learning_rate(state.step)

        def gradient_step(
            carry: tuple[PyTree, optax.OptState, Bool[Array, ""]], inputs: tuple[Array, Array]
        ) -> tuple[tuple[PyTree, optax.OptState, Bool[Array, ""]], Metrics]:
            params, opt_state, _ = carry
            rows, advantages = inputs
            minibatch = jax.tree.map(lambda leaf: leaf[rows], samples)
            minibatch = dataclasses.replace(minibatch, advantages=advantages)
            grads, metrics = mean_over_devices(self.gradients(params, minibatch, ent_coef))
            changes, opt_state = self.optimizer.update(grads, opt_state, params)
            params = jax.tree.map(lambda old, change: old - learning_rate * change, params, changes)
            metrics |= {"gradient_norm": optax.tree.norm(grads), "gradient_steps": jnp.float32(1)}
            return (params, opt_state, metrics["approx_kl"] > (config.target_kl or jnp.inf)), metrics

        def step_unless_stopped(carry: Any, inputs: Any) -> tuple[Any, Metrics]:
            skipped = zeros_like_shapes(jax.eval_shape(gradient_step, carry, inputs)[1])
            return jax.lax.cond(carry[2], lambda *_: (carry, skipped), gradient_step, carry, inputs)

        (params, opt_state, _), metrics = jax.lax.scan(
            gradient_step if config.target_kl is None else step_unless_stopped,
            (state.params, state.opt_state, jnp.bool_(False)),
            (minibatches, advantages),
        )
        num_taken = metrics.pop("gradient_steps").sum()
        _, std = mean_and_std(returns.reshape(1, -1))
        residual = mean_over_devices(jnp.square(returns - steps.values).mean())
        logged = {
            **{name: values.sum() / num_taken for name, values in metrics.items()},
            "learning_rate": learning_rate,
            "ent_coef": ent_coef,
            "gradient_steps": num_taken,
            "explained_variance": 1 - residual / jnp.maximum(jnp.square(std[0, 0]), 1e-8),
        }
        episodes["episode_mask"] = self.unbiased_episodes(environment, episodes, state.step)
        return PPOState(params, opt_state, state.step + 1, rollout, key), logged, episodes

    def minibatches(self, key: Key, count: int) -> Int32[Array, "gradient_steps samples"]:
        """Shuffle the indices of `count` samples once per epoch and divide them into minibatches."""
        keys = jax.random.split(key, self.config.update_epochs)
        epochs = jax.vmap(lambda key: shuffle_indices(key, count))(keys)
        return epochs.reshape(-1, count // self.config.num_minibatches)

    def unbiased_episodes(
        self, environment: Environment, episodes: Episodes, step: Int32[Array, ""]
    ) -> Bool[Array, "time envs"]:
        """Return the mask of the episodes over which update `step`, counted from 0, reports means.

        All environments start at the same time. At first, only short episodes have ended, and a mean over
        them would be biased. Therefore, the mask is empty until every environment has finished an episode or
        has taken `max_episode_steps` steps.
        """
        ended, num_steps = episodes["episode_mask"], (step + 1) * self.config.num_steps
        in_first_episode = (episodes["episode_lengths"][-1] == num_steps) & ~ended[-1]
        number = jax.lax.psum(jnp.sum(in_first_episode), AXIS)
        return ended & ((number == 0) | (num_steps >= environment.max_episode_steps))

    def gradients(self, params: PyTree, minibatch: PPOBatch, ent_coef: Scalar) -> tuple[PyTree, Metrics]:
        """Compute the gradients and metrics of a minibatch, in microbatches of `microbatch_size` samples."""

        def loss(params: PyTree, microbatch: PPOBatch) -> tuple[Scalar, Metrics]:
            return ppo_loss(self.network(params), microbatch, ent_coef, self.config)

        gradient = functools.partial(jax.grad(loss, has_aux=True), params)
        size = len(minibatch.log_probs)
        largest = min(self.config.microbatch_size or size, size)
        count = next(n for n in range(-(-size // largest), size + 1) if size % n == 0)

        def add(total: PyTree, microbatch: PPOBatch) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, gradient(microbatch)), None

        rows = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), minibatch)
        shapes = jax.eval_shape(gradient, jax.tree.map(lambda leaf: leaf[0], rows))
        total, _ = jax.lax.scan(add, zeros_like_shapes(shapes), rows)
        return jax.tree.map(lambda leaf: leaf / count, total)

    def ent_coef(self, step: Int32[Array, ""]) -> Scalar:
        """Compute the weight of the entropy bonus in update `step`, counted from 0."""
        config = self.config
        progress = step / config.num_updates
        return scheduled_value(config.ent_schedule, config.ent_coef, config.ent_coef_end, progress)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _update(ppo: PPO, environment: Environment, state: PPOState) -> tuple[PPOState, Metrics, Episodes]:
    """Run `PPO.update_on_device` on all devices."""
    ppo, specs = copy.copy(ppo), _specs(state)
    ppo.environment = environment
    mapped = jax.shard_map(
        ppo.update_on_device,
        mesh=ppo.mesh,
        in_specs=(P(), specs),
        out_specs=(specs, P(), P(None, AXIS)),
        # Otherwise, gradients would already be summed over the devices, and the mean would be wrong.
        check_vma=False,
    )
    return mapped(environment, state)


def _specs(state: PPOState) -> PyTree:
    """Distribute the environments over the devices. All devices have copies of the other arrays."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: P(AXIS) if path[0].name == "rollout" else P(), state
    )
