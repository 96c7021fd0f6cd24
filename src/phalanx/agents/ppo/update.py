"""Proximal policy optimization: a whole update as one function, for any environment and network.

Playing is in `rollouts`; a training that `phalanx.runs` can run is in `training`.
"""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.agents.networks.distributions import MakeDistribution
from phalanx.agents.ppo.config import PPOConfig, generalized_advantages
from phalanx.agents.ppo.rollouts import Rollout, RolloutState, collect, start_rollouts
from phalanx.core.environment import Environment, Key
from phalanx.runs.algorithm import Report


class Learner(eqx.Module):
    """Everything that changes while training."""

    network: PyTree
    """The arrays of the network; what is not an array is in `PPO.structure`."""
    optimizer: optax.OptState
    rollouts: RolloutState
    key: Key
    update: Int32[Array, ""]
    """Updates made so far."""


class Sample(eqx.Module):
    """What a gradient step learns from, for each environment step."""

    observations: PyTree
    actions: PyTree
    log_probs: Float[Array, "*batch"]
    values: Float[Array, "*batch"]
    advantages: Float[Array, "*batch"]
    targets: Float[Array, "*batch"]


class Losses(eqx.Module):
    """Means over the gradient steps of an update."""

    policy_loss: Float[Array, "*steps"]
    value_loss: Float[Array, "*steps"]
    total_loss: Float[Array, "*steps"]
    entropy: Float[Array, "*steps"]
    approx_kl: Float[Array, "*steps"]
    clip_fraction: Float[Array, "*steps"]
    gradient_norm: Float[Array, "*steps"]


@dataclasses.dataclass(frozen=True)
class PPO:
    """The static half of a training: what is played, by what kind of network, with which settings."""

    environment: Environment
    distribution: MakeDistribution
    """From what the network gives for an observation to the policy there."""
    config: PPOConfig
    structure: Any
    """The network without its arrays."""
    axis: str | None = None
    """The mesh axis that the environments are spread over, where there is one."""

    @classmethod
    def of(
        cls, environment: Environment, distribution: MakeDistribution, config: PPOConfig, network: PyTree
    ) -> "PPO":
        """For networks like this one."""
        return cls(environment, distribution, config, eqx.filter(network, eqx.is_array, inverse=True))

    def network(self, arrays: PyTree) -> Any:
        """The network as a function."""
        return eqx.combine(arrays, self.structure)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam after clipping, still without its learning rate, which follows the update's number."""
        limit = self.config.max_gradient_norm
        clip = optax.identity() if limit is None else optax.clip_by_global_norm(limit)
        return optax.chain(clip, optax.scale_by_adam(eps=1e-5))

    def start(self, network: PyTree, key: Key, env_ids: Int32[Array, " batch"] | None = None) -> Learner:
        """Before the first update; `env_ids` are those of this device's environments, all without."""
        if env_ids is None:
            env_ids = jnp.arange(self.config.num_envs, dtype=jnp.int32)
        arrays = eqx.filter(network, eqx.is_array)
        reset_key, key = jax.random.split(key)
        rollouts = start_rollouts(self.environment, reset_key, env_ids)
        learner = Learner(arrays, self.optimizer.init(arrays), rollouts, key, jnp.int32(0))
        # Copies, because a donated learner takes its arrays with it: the caller may need its network again,
        # and an observation may share an array with its state, which could not be donated twice.
        return jax.tree.map(jnp.copy, learner)

    def update(self, learner: Learner) -> tuple[Learner, Report]:
        """Play, estimate advantages, take gradient steps."""
        config = self.config
        key, play_key, shuffle_key = jax.random.split(learner.key, 3)
        rollouts, rollout, episodes = collect(
            self.environment,
            self.distribution,
            self.network(learner.network),
            learner.rollouts,
            play_key,
            config.num_steps,
            config.chunk,
        )
        advantages, targets = generalized_advantages(
            rollout.rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.gae_lambda,
        )
        samples = Sample(
            rollout.observations, rollout.actions, rollout.log_probs, rollout.values, advantages, targets
        )
        network, optimizer, losses, taken = self._learn(learner, samples, shuffle_key)
        metrics = {field.name: getattr(losses, field.name) for field in dataclasses.fields(losses)}
        metrics |= {
            "gradient_steps": taken,
            "explained_variance": self._explained_variance(rollout, targets),
            "learning_rate": config.learning_rate_at(learner.update),
            "entropy_coefficient": config.entropy_coefficient_at(learner.update),
        }
        counts = {"environment_steps": jnp.int32(config.steps_per_update)}
        return (
            Learner(network, optimizer, rollouts, key, learner.update + 1),
            Report(metrics, episodes, counts),
        )

    def _learn(
        self, learner: Learner, samples: Sample, key: Key
    ) -> tuple[PyTree, optax.OptState, Losses, Float[Array, ""]]:
        """All epochs; means of the losses over the gradient steps that were taken, and their number."""
        config = self.config
        rows = self._grouped(samples)
        step = functools.partial(
            self._gradient_step,
            rows,
            config.learning_rate_at(learner.update),
            config.entropy_coefficient_at(learner.update),
        )
        order = self._order(key, learner.rollouts.env_ids, rows.log_probs.shape)
        carry = (learner.network, learner.optimizer, jnp.bool_(False))
        (network, optimizer, _), (losses, taken) = jax.lax.scan(step, carry, order)
        count = jnp.sum(taken)
        means = jax.tree.map(lambda loss: jnp.sum(jnp.where(taken > 0, loss, 0.0)) / count, losses)
        return network, optimizer, means, count

    def _grouped(self, samples: Sample) -> Sample:
        """[time, batch] as [groups, steps]: environments in groups, each group's steps in one row."""
        time, batch = samples.log_probs.shape
        # On several devices each has its share of the groups.
        groups = self.config.num_shuffle_groups * batch // self.config.num_envs

        def regroup(leaf: Array) -> Array:
            by_environment = jnp.swapaxes(leaf, 0, 1)
            return by_environment.reshape(groups, batch // groups * time, *leaf.shape[2:])

        return jax.tree.map(regroup, samples)

    def _order(
        self, key: Key, env_ids: Int32[Array, " batch"], shape: tuple[int, ...]
    ) -> Int32[Array, "gradient_steps groups minibatch"]:
        """Which steps of each group are in which minibatch; a group's order depends on its number alone."""
        config = self.config
        groups, steps = shape
        first = env_ids.reshape(groups, -1)[:, 0] // (config.num_envs // config.num_shuffle_groups)

        def one_epoch(epoch: Array) -> Array:
            def one_group(group: Array) -> Array:
                drawn = jax.random.fold_in(jax.random.fold_in(key, epoch), group)
                return jax.random.permutation(drawn, steps)

            shuffled = jax.vmap(one_group)(first)
            return shuffled.reshape(groups, config.minibatches, -1).swapaxes(0, 1)

        order = jax.vmap(one_epoch)(jnp.arange(config.epochs))
        return order.reshape(-1, groups, steps // config.minibatches).astype(jnp.int32)

    def _gradient_step(
        self,
        rows: Sample,
        learning_rate: Float[Array, ""],
        entropy_coefficient: Float[Array, ""],
        carry: tuple[PyTree, optax.OptState, Array],
        chosen: Int32[Array, "groups minibatch"],
    ) -> tuple[tuple[PyTree, optax.OptState, Array], tuple[Losses, Float[Array, ""]]]:
        """One minibatch, unless the policy has moved too far already."""
        network, optimizer, stopped = carry

        def go() -> tuple[PyTree, optax.OptState, Losses]:
            taken = jax.tree.map(lambda leaf: jax.vmap(lambda row, i: row[i])(leaf, chosen), rows)
            batch = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), taken)
            if self.config.normalize_advantages:
                batch = dataclasses.replace(batch, advantages=self._normalized(batch.advantages))
            gradients, losses = self._gradients(network, batch, entropy_coefficient)
            gradients, losses = self._mean_over_devices((gradients, losses))
            changes, new_optimizer = self.optimizer.update(gradients, optimizer, network)
            new = jax.tree.map(lambda old, change: old - learning_rate * change, network, changes)
            return new, new_optimizer, dataclasses.replace(losses, gradient_norm=optax.tree.norm(gradients))

        if self.config.target_kl is None:
            network, optimizer, losses = go()
            return (network, optimizer, stopped), (losses, jnp.float32(1))
        nothing = Losses(*[jnp.float32(0)] * len(dataclasses.fields(Losses)))
        network, optimizer, losses = jax.lax.cond(stopped, lambda: (network, optimizer, nothing), go)
        taken = jnp.where(stopped, 0.0, 1.0)
        return (network, optimizer, stopped | (losses.approx_kl > self.config.target_kl)), (losses, taken)

    def _gradients(
        self, network: PyTree, batch: Sample, entropy_coefficient: Float[Array, ""]
    ) -> tuple[PyTree, Losses]:
        """Means over the minibatch, a chunk at a time."""
        size = batch.log_probs.shape[0]
        chunk = max(n for n in range(1, min(self.config.chunk or size, size) + 1) if size % n == 0)
        chunks = jax.tree.map(lambda leaf: leaf.reshape(size // chunk, chunk, *leaf.shape[1:]), batch)
        gradient = jax.grad(self._loss, has_aux=True)

        def add(total: tuple[PyTree, Losses], part: Sample) -> tuple[tuple[PyTree, Losses], None]:
            return jax.tree.map(jnp.add, total, gradient(network, part, entropy_coefficient)), None

        shapes = jax.eval_shape(
            gradient, network, jax.tree.map(lambda leaf: leaf[0], chunks), entropy_coefficient
        )
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, _ = jax.lax.scan(add, nothing, chunks)
        return jax.tree.map(lambda leaf: leaf * (chunk / size), total)

    def _loss(
        self, arrays: PyTree, batch: Sample, entropy_coefficient: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Losses]:
        config = self.config
        network = self.network(arrays)

        def one(observation: PyTree, action: PyTree) -> tuple[Array, Array, Array]:
            parameters, value = network(observation)
            policy = self.distribution(parameters, observation)
            return policy.log_prob(action), policy.entropy(), value

        log_probs, entropies, values = jax.vmap(one)(batch.observations, batch.actions)
        advantages = batch.advantages
        log_ratios = log_probs - batch.log_probs
        ratios = jnp.exp(log_ratios)
        clipped = jnp.clip(ratios, 1 - config.clip, 1 + config.clip)
        policy_loss = -jnp.mean(jnp.minimum(ratios * advantages, clipped * advantages))
        errors = jnp.square(values - batch.targets)
        if config.value_clip is not None:
            near = batch.values + jnp.clip(values - batch.values, -config.value_clip, config.value_clip)
            errors = jnp.maximum(errors, jnp.square(near - batch.targets))
        value_loss = 0.5 * jnp.mean(errors)
        entropy = jnp.mean(entropies)
        total = policy_loss + config.value_coefficient * value_loss - entropy_coefficient * entropy
        # Schulman's estimate of the divergence: unbiased, and never negative.
        divergence = jnp.mean(ratios - 1 - log_ratios)
        clip_fraction = jnp.mean((jnp.abs(ratios - 1) > config.clip).astype(jnp.float32))
        losses = Losses(policy_loss, value_loss, total, entropy, divergence, clip_fraction, jnp.float32(0))
        return total, losses

    def _normalized(self, advantages: Float[Array, " batch"]) -> Float[Array, " batch"]:
        mean = self._mean_over_devices(jnp.mean(advantages))
        variance = self._mean_over_devices(jnp.mean(jnp.square(advantages - mean)))
        return (advantages - mean) / (jnp.sqrt(variance) + 1e-8)

    def _explained_variance(self, rollout: Rollout, targets: Float[Array, "time batch"]) -> Float[Array, ""]:
        """1 where the values tell the targets exactly, 0 where they tell nothing."""
        mean = self._mean_over_devices(jnp.mean(targets))
        spread = self._mean_over_devices(jnp.mean(jnp.square(targets - mean)))
        residual = self._mean_over_devices(jnp.mean(jnp.square(targets - rollout.values)))
        return 1 - residual / jnp.maximum(spread, 1e-8)

    def _mean_over_devices(self, tree: Any) -> Any:
        return tree if self.axis is None else jax.lax.pmean(tree, self.axis)
