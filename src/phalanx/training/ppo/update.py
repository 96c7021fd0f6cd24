"""Proximal policy optimization: a whole update as one function, for any environment and network.

Playing is in `rollouts`; a training that `phalanx.training` can run is in `training`.
"""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int32, PyTree

from phalanx.core.environment import Environment, Key
from phalanx.core.vector import select_rows
from phalanx.training.algorithm import UpdateResult
from phalanx.training.ppo.config import PPOConfig, gae
from phalanx.training.rollout import Episodes, RolloutState, collect, map_groups, map_shards, start_rollouts


class PPOState(eqx.Module):
    """Everything that changes while training."""

    network: PyTree
    """The arrays of the network; what is not an array is in `PPO.structure`."""
    optimizer: optax.OptState
    rollouts: RolloutState
    key: Key
    update: Int32[Array, ""]
    """Updates made so far."""


class PPOBatch(eqx.Module):
    """What a gradient step learns from, for each environment step."""

    observations: PyTree
    actions: PyTree
    log_probs: Float[Array, "*batch"]
    values: Float[Array, "*batch"]
    advantages: Float[Array, "*batch"]
    targets: Float[Array, "*batch"]


class PPOMetrics(eqx.Module):
    """Of a minibatch, or their means over the gradient steps of an update."""

    policy_loss: Float[Array, "*steps"]
    value_loss: Float[Array, "*steps"]
    total_loss: Float[Array, "*steps"]
    entropy: Float[Array, "*steps"]
    approx_kl: Float[Array, "*steps"]
    clip_fraction: Float[Array, "*steps"]
    gradient_norm: Float[Array, "*steps"]

    @classmethod
    def nothing(cls) -> "PPOMetrics":
        """Zeros, to add to."""
        return cls(*[jnp.float32(0)] * len(dataclasses.fields(cls)))


class PPORollout(eqx.Module):
    """What an update has played and learns from, of some of the groups."""

    rollouts: RolloutState
    """Where the environments are now."""
    rows: PPOBatch
    """[groups, steps]."""
    told: Float[Array, "groups 3 steps"]
    """Advantages, targets and values once more: what statistics over all groups are made of."""
    order: Int32[Array, "gradient_steps groups minibatch"]
    """Which steps of each group are in which minibatch."""
    episodes: Episodes
    entropy_coefficient: Float[Array, ""]


class AdvantageStats(eqx.Module):
    """What all groups have in common."""

    mean: Float[Array, " gradient_steps"]
    """Of the advantages of every minibatch."""
    deviation: Float[Array, " gradient_steps"]
    explained_variance: Float[Array, ""]


class Progress(eqx.Module):
    """The network between the gradient steps of an update."""

    network: PyTree
    optimizer: optax.OptState
    stopped: Bool[Array, ""]
    """Whether the policy has moved too far for another step."""
    sums: PPOMetrics
    taken: Int32[Array, ""]
    """Steps that were taken, and added up in `sums`."""


@dataclasses.dataclass(frozen=True)
class PPO:
    """The static half of a training: what is played, by what kind of network, with which settings."""

    environment: Environment
    config: PPOConfig
    structure: Any
    """The network without its arrays."""

    @classmethod
    def of(cls, environment: Environment, config: PPOConfig, network: PyTree) -> "PPO":
        """For networks like this one."""
        return cls(environment, config, eqx.filter(network, eqx.is_array, inverse=True))

    def network(self, arrays: PyTree) -> Any:
        """The network as a function."""
        return eqx.combine(arrays, self.structure)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam after clipping, still without its learning rate, which follows the update's number."""
        limit = self.config.max_gradient_norm
        clip = optax.identity() if limit is None else optax.clip_by_global_norm(limit)
        return optax.chain(clip, optax.scale_by_adam(eps=1e-5))

    def start(self, network: PyTree, key: Key, env_ids: Int32[Array, " batch"] | None = None) -> PPOState:
        """Before the first update; `env_ids` are those of this device's environments, all without."""
        if env_ids is None:
            env_ids = jnp.arange(self.config.num_envs, dtype=jnp.int32)
        arrays = eqx.filter(network, eqx.is_array)
        reset_key, key = jax.random.split(key)
        rollouts = start_rollouts(self.environment, reset_key, env_ids)
        learner = PPOState(arrays, self.optimizer.init(arrays), rollouts, key, jnp.int32(0))
        # Copies, because a donated learner takes its arrays with it: the caller may need its network again,
        # and an observation may share an array with its state, which could not be donated twice.
        return jax.tree.map(jnp.copy, learner)

    def update(self, learner: PPOState) -> tuple[PPOState, UpdateResult]:
        """Play, estimate advantages, take gradient steps: the whole as one function.

        `ppo.parallel` calls the same parts one by one, with the groups shared out among processes.
        """
        played = self.play(learner)
        told = jax.lax.optimization_barrier(played.told)
        statistics = self.statistics(told, learner.key)

        def step(progress: Progress, number: Array) -> tuple[Progress, None]:
            def go() -> Progress:
                vectors = self.gradients(progress.network, played, statistics, number)
                return self.apply(progress, jax.lax.optimization_barrier(vectors), learner.update)

            if self.config.target_kl is None:
                return go(), None
            return jax.lax.cond(progress.stopped, lambda: progress, go), None

        progress, _ = jax.lax.scan(step, self.begin(learner), jnp.arange(self.config.gradient_steps))
        metrics = self.metrics(progress, statistics, learner.update)
        counts = {"environment_steps": jnp.int32(self.config.steps_per_update)}
        after = self.end(learner.key, learner.update, progress, played.rollouts)
        return after, UpdateResult(metrics, played.episodes, counts)

    def play(self, learner: PPOState) -> PPORollout:
        """Step the environments that the learner has, and see what the steps were worth."""
        config = self.config
        _, play_key, shuffle_key = jax.random.split(learner.key, 3)
        groups = self._groups(learner.rollouts.env_ids.shape[0])
        rollouts, rollout, episodes = collect(
            self.environment,
            self.network(learner.network),
            learner.rollouts,
            play_key,
            config.num_steps,
            config.chunk,
            groups,
        )
        worth = (rollout.rewards, rollout.values, rollout.next_values, rollout.terminated, rollout.done)

        def advantages_of(group: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array]:
            rewards, values, next_values, terminated, done = group
            return gae(rewards, values, next_values, terminated, done, config.gamma, config.gae_lambda)

        advantages, targets = map_shards(advantages_of, worth, groups, axis=1)
        samples = PPOBatch(
            rollout.observations, rollout.actions, rollout.log_probs, rollout.values, advantages, targets
        )
        rows = self._grouped(samples)
        return PPORollout(
            rollouts,
            rows,
            jnp.stack([rows.advantages, rows.targets, rows.values], axis=1),
            self._order(shuffle_key, learner.rollouts.env_ids, rows.log_probs.shape),
            episodes,
            config.entropy_coefficient_at(learner.update),
        )

    def statistics(self, told: Float[Array, "groups 3 steps"], key: Key) -> AdvantageStats:
        """From what all groups tell, with the learner's key."""
        advantages, targets, values = told[:, 0], told[:, 1], told[:, 2]
        shuffle_key = jax.random.split(key, 3)[2]
        env_ids = jnp.arange(self.config.num_envs, dtype=jnp.int32)
        order = self._order(shuffle_key, env_ids, advantages.shape)
        chosen = jax.vmap(lambda step: jnp.take_along_axis(advantages, step, axis=1))(order)
        flat = chosen.reshape(chosen.shape[0], -1)
        mean = jnp.mean(flat, axis=1)
        deviation = jnp.sqrt(jnp.mean(jnp.square(flat - mean[:, None]), axis=1))
        spread = jnp.mean(jnp.square(targets - jnp.mean(targets)))
        residual = jnp.mean(jnp.square(targets - values))
        return AdvantageStats(mean, deviation, 1 - residual / jnp.maximum(spread, 1e-8))

    def begin(self, learner: PPOState) -> Progress:
        """Before the first gradient step of an update."""
        return Progress(
            learner.network, learner.optimizer, jnp.bool_(False), PPOMetrics.nothing(), jnp.int32(0)
        )

    def gradients(
        self, network: PyTree, played: PPORollout, statistics: AdvantageStats, number: Int32[Array, ""]
    ) -> Float[Array, "groups numbers"]:
        """A vector for each group: gradients and losses, means over its part of a minibatch.

        They are all that processes tell one another at a gradient step.
        """
        mean, deviation = statistics.mean[number], statistics.deviation[number]

        def one_group(group: tuple[PPOBatch, Int32[Array, " minibatch"]]) -> Float[Array, " numbers"]:
            own, here = group
            batch = jax.tree.map(lambda leaf: leaf[here], own)
            if self.config.normalize_advantages:
                normalized = (batch.advantages - mean) / (deviation + 1e-8)
                batch = dataclasses.replace(batch, advantages=normalized)
            means = self._group_gradients(network, batch, played.entropy_coefficient)
            return ravel_pytree(means)[0]

        return map_groups(one_group, (played.rows, played.order[number]))

    def apply(
        self, progress: Progress, vectors: Float[Array, "groups numbers"], update: Int32[Array, ""]
    ) -> Progress:
        """One gradient step with the vectors of all groups, which are added up in the order of the groups.

        So neither the number of processes nor that of their threads shows in a single bit.
        """
        _, unflatten = ravel_pytree((progress.network, PPOMetrics.nothing()))
        gradients, losses = unflatten(functools.reduce(jnp.add, vectors) / vectors.shape[0])
        changes, optimizer = self.optimizer.update(gradients, progress.optimizer, progress.network)
        rate = self.config.learning_rate_at(update)
        network = jax.tree.map(lambda old, change: old - rate * change, progress.network, changes)
        losses = dataclasses.replace(losses, gradient_norm=optax.tree.norm(gradients))
        limit = self.config.target_kl
        after = Progress(
            network,
            optimizer,
            jnp.bool_(False) if limit is None else losses.approx_kl > limit,
            jax.tree.map(jnp.add, progress.sums, losses),
            progress.taken + 1,
        )
        # Of several seeds some may have stopped.
        return after if limit is None else select_rows(progress.stopped, progress, after)

    def metrics(
        self, progress: Progress, statistics: AdvantageStats, update: Int32[Array, ""]
    ) -> dict[str, Float[Array, ""]]:
        """Of the whole update: means over the gradient steps that were taken."""
        count = progress.taken.astype(jnp.float32)
        names = [field.name for field in dataclasses.fields(PPOMetrics)]
        return {name: getattr(progress.sums, name) / count for name in names} | {
            "gradient_steps": count,
            "explained_variance": statistics.explained_variance,
            "learning_rate": self.config.learning_rate_at(update),
            "entropy_coefficient": self.config.entropy_coefficient_at(update),
        }

    def end(self, key: Key, update: Int32[Array, ""], progress: Progress, rollouts: RolloutState) -> PPOState:
        """After the last gradient step of an update that began with this key and number."""
        following = jax.random.split(key, 3)[0]
        return PPOState(progress.network, progress.optimizer, rollouts, following, update + 1)

    def _groups(self, environments: int) -> int:
        """How many groups so many environments are: each process and device has its share of them."""
        return self.config.num_shuffle_groups * environments // self.config.num_envs

    def _grouped(self, samples: PPOBatch) -> PPOBatch:
        """[time, batch] as [groups, steps]: environments in groups, each group's steps in one row."""
        time, batch = samples.log_probs.shape
        groups = self._groups(batch)

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

    def _group_gradients(
        self, network: PyTree, batch: PPOBatch, entropy_coefficient: Float[Array, ""]
    ) -> tuple[PyTree, PPOMetrics]:
        """Means over a group's part of a minibatch, a chunk at a time."""
        size = batch.log_probs.shape[0]
        chunk = max(n for n in range(1, min(self.config.chunk or size, size) + 1) if size % n == 0)
        chunks = jax.tree.map(lambda leaf: leaf.reshape(size // chunk, chunk, *leaf.shape[1:]), batch)
        gradient = jax.grad(self._loss, has_aux=True)

        def add(total: tuple[PyTree, PPOMetrics], part: PPOBatch) -> tuple[tuple[PyTree, PPOMetrics], None]:
            return jax.tree.map(jnp.add, total, gradient(network, part, entropy_coefficient)), None

        nothing = jax.tree.map(jnp.zeros_like, network), PPOMetrics.nothing()
        total, _ = jax.lax.scan(add, nothing, chunks)
        return jax.tree.map(lambda leaf: leaf * (chunk / size), total)

    def _loss(
        self, arrays: PyTree, batch: PPOBatch, entropy_coefficient: Float[Array, ""]
    ) -> tuple[Float[Array, ""], PPOMetrics]:
        config = self.config
        network = self.network(arrays)

        def one(observation: PyTree, action: PyTree) -> tuple[Array, Array, Array]:
            policy, value = network(observation)
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
        losses = PPOMetrics(
            policy_loss, value_loss, total, entropy, divergence, clip_fraction, jnp.float32(0)
        )
        return total, losses
