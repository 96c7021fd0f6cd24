"""Behavior cloning with DAgger (Ross et al., 2011, arXiv:1011.0686) for any environment with an expert.

Each update runs episodes, labels every visited state with the expert's actions, and takes gradient steps on
these labels. At each step of an episode, either the policy or the expert chooses the action that is taken.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.sharding import Mesh, PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Int32, PyTree
from pydantic import Field

from phalanx.core.environment import Environment, Key
from phalanx.core.expert import Expert, ExpertLabels
from phalanx.core.spaces import masked_choice
from phalanx.core.vector import batch_metrics, select_rows
from phalanx.nn.policy_network import PolicyNetwork, apply_batch, select_action
from phalanx.training.algorithm import TrainState, UpdateResult
from phalanx.training.config import PolicyRunConfig, RunConfig
from phalanx.training.device_mesh import AXIS, create_mesh, mean_over_devices
from phalanx.training.optimizer import OptimizerConfig
from phalanx.training.policy_algorithm import PolicyAlgorithm

Steps = tuple[PyTree, ExpertLabels]
"""Observations of several steps, and the expert's labels for these observations."""


class BCConfig(PolicyRunConfig):
    """Configuration for behavior cloning."""

    preset_group = "bc"

    num_envs: int = Field(default=256, ge=1)
    """Number of parallel environments."""
    num_steps: int = Field(default=8, ge=1)
    """Number of steps in each environment per update. Steps that the expert cannot label are not trained
    on."""
    update_epochs: int = Field(default=2, ge=1)
    """Number of epochs over the labeled steps in each update."""
    minibatch_size: int = Field(default=256, ge=1)
    """Maximum number of labeled steps per gradient step."""
    expert_prob_start: float = Field(default=1.0, ge=0, le=1)
    """Initial probability that the expert, rather than the policy, chooses the action at a step. The expert's
    labels are trained on in either case."""
    expert_prob_end: float = Field(default=0.1, ge=0, le=1)
    """Final probability that the expert chooses the action at a step. If `expert_prob_start` and
    `expert_prob_end` are both 1, only the expert acts, as in behavior cloning without DAgger."""
    expert_anneal_fraction: float = Field(default=0.2, ge=0, le=1)
    """Fraction of the run after which `expert_prob_end` is reached. Until then, the probability changes
    linearly."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=3e-3, end_learning_rate=1e-4, lr_schedule="cosine", max_grad_norm=1.0, eps=1e-5
    )
    """Settings for Adam, the learning-rate schedule and gradient clipping. The learning rate changes once per
    update."""

    def expert_prob_at(self, update: int) -> float:
        """Return the probability that the expert chooses the action at a step in update `update`.

        Updates are counted from 0.
        """
        annealed = self.expert_anneal_fraction * self.num_updates
        progress = min(1.0, update / annealed) if annealed else 1.0
        return self.expert_prob_start + (self.expert_prob_end - self.expert_prob_start) * progress


class BCState(TrainState):
    """Training state for behavior cloning, with the PRNG key for the next update."""

    key: Key


class BC(PolicyAlgorithm[BCState]):
    """Trains an environment's policy network to imitate the environment's expert."""

    name = "bc"
    config_type: ClassVar[type[RunConfig]] = BCConfig
    headline = ("loss", "accuracy")
    trains_value = False

    def __init__(
        self,
        config: BCConfig,
        environment: Environment | None = None,
        network: Callable[[Key], PolicyNetwork] | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        # The expert runs on the host, so several devices would not help.
        super().__init__(config, environment, network, mesh or create_mesh(jax.devices()[:1]))
        if self.spec.expert is None:
            name = config.env.id or type(self.environment).__name__
            raise ValueError(f"{name} has no expert, which behavior cloning needs: set EnvSpec.expert")
        self.create_expert: Callable[[Any], Expert] = self.spec.expert

    def init(self, key: Key, params: PyTree | None = None) -> BCState:
        params_key, key = jax.random.split(key)
        params = self.init_params(params_key) if params is None else params
        return self.place(BCState(params, self.optimizer.init(params), jnp.int32(0), key))

    def update(self, state: BCState) -> tuple[BCState, UpdateResult]:
        config, update = self.config, int(state.step)
        environment = self.training_environment(update)
        key, rollout_key = jax.random.split(state.key)
        rng = np.random.default_rng((self.config.seed, update))
        steps, episodes = self._collect(environment, state.params, rollout_key, rng, update)
        labeled = np.flatnonzero(steps[1].mask.any(axis=1))
        if not len(labeled):
            raise ValueError(f"the expert labeled none of the states of update {update + 1}")
        minibatches = self._minibatches(labeled, rng)
        num_minibatches = np.int32(config.update_epochs * -(-len(labeled) // config.minibatch_size))
        params, opt_state, metrics = _learn(
            self, state.params, state.opt_state, steps, minibatches, num_minibatches, state.step
        )
        state = BCState(params, opt_state, state.step + 1, key)
        return state, UpdateResult(metrics, episodes, {self.unit: np.int64(len(labeled))})

    def _minibatches(
        self, labeled: Int[np.ndarray, " labeled"], rng: np.random.Generator
    ) -> Int32[np.ndarray, "minibatches size"]:
        """Shuffle the labeled steps once per epoch and divide them into minibatches.

        The number of labeled steps varies, so that there are as many rows as if all steps were labeled. The
        last minibatch of an epoch and unused rows are padded with -1.
        """
        config = self.config
        size = -(-config.minibatch_size // self.mesh.size) * self.mesh.size
        most = -(-config.num_envs * config.num_steps // config.minibatch_size)
        rows = np.full((config.update_epochs * most, size), -1, np.int32)
        used = -(-len(labeled) // config.minibatch_size)
        for epoch in range(config.update_epochs):
            order = np.full(used * config.minibatch_size, -1, np.int32)
            order[: len(labeled)] = rng.permutation(labeled)
            chosen = rows[epoch * used : (epoch + 1) * used, : config.minibatch_size]
            chosen[:] = order.reshape(used, config.minibatch_size)
        return rows

    def _collect(
        self, environment: Environment, params: PyTree, key: Key, rng: np.random.Generator, update: int
    ) -> tuple[Steps, dict[str, np.ndarray]]:
        """Take `num_steps` steps in each environment. At each step, either the policy or the expert acts.

        Returns:
            The steps, some of which the expert may not have labeled, and the episode statistics with shape
            `[num_steps, num_envs]`.
        """
        config = self.config
        expert, expert_prob = self.create_expert(environment), config.expert_prob_at(update)
        reset_key, key = jax.random.split(key)
        states, observations = _reset(self, environment, reset_key)
        memory = expert.init(states)
        lengths, returns = jnp.zeros(config.num_envs, jnp.int32), jnp.zeros(config.num_envs)
        seen, labeled, ended = [], [], []
        for step_key in jax.random.split(key, config.num_steps):
            own = _act(self, params, observations, step_key)
            labels = expert.label(states, memory)
            acts = (rng.random(config.num_envs) < expert_prob) | expert.must_act(own, labels)
            seen.append(jax.tree.map(np.asarray, observations))
            labeled.append(labels)
            first = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], labels.actions)
            acts &= labels.mask[:, 0]
            states, observations, actions, episodes = _step(
                self, environment, states, observations, lengths, returns, own, first, acts, step_key
            )
            is_running = ~episodes["episode_mask"]
            lengths, returns = (
                episodes[name] * is_running for name in ("episode_lengths", "episode_returns")
            )
            memory = expert.advance(memory, labels, actions, np.asarray(episodes["episode_mask"]))
            ended.append(jax.tree.map(np.asarray, episodes))
        steps = jax.tree.map(lambda *parts: np.concatenate(parts), *zip(seen, labeled, strict=True))
        return steps, jax.tree.map(lambda *parts: np.stack(parts), *ended)

    def loss(
        self, params: PyTree, steps: Steps, weights: Float[Array, " batch"]
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
        """Compute the sums of the loss, the accuracy and the weights over a minibatch.

        If the expert labels a state with several actions, the loss is the negative logarithm of the sum of
        their probabilities.
        """
        network, space = self.network(params), self.environment.action_space

        def one(pi: Any, labels: ExpertLabels) -> tuple[Array, Array]:
            # A large number instead of infinity, whose gradient would be NaN.
            log_probs = jax.vmap(getattr(pi, "label_log_prob", pi.log_prob))(labels.actions)
            log_probs = jnp.where(labels.mask, log_probs, -1e30)
            chosen, expected = masked_choice(space, pi.mode()), masked_choice(space, labels.actions)
            return -jax.nn.logsumexp(log_probs), jnp.any((chosen == expected) & labels.mask)

        observations, labels = steps
        distributions, _ = apply_batch(network, observations)
        losses, correct = jax.vmap(one)(distributions, labels)
        losses = jnp.where(weights > 0, losses, 0.0)
        return jnp.sum(losses), (jnp.sum(weights * correct), jnp.sum(weights))


@functools.partial(jax.jit, static_argnums=0)
def _reset(algorithm: BC, environment: Environment, key: Key) -> tuple[PyTree, PyTree]:
    return environment.batch_reset(jax.random.split(key, algorithm.config.num_envs))


@functools.partial(jax.jit, static_argnums=0)
def _act(algorithm: BC, params: PyTree, observations: PyTree, key: Key) -> PyTree:
    """Sample actions from the policy."""
    keys = jax.random.split(key, algorithm.config.num_envs)
    return jax.vmap(functools.partial(select_action, algorithm.network(params)))(observations, keys)


@functools.partial(jax.jit, static_argnums=0)
def _step(
    algorithm: BC,
    environment: Environment,
    states: PyTree,
    observations: PyTree,
    lengths: Int32[Array, " batch"],
    returns: Float[Array, " batch"],
    own: PyTree,
    expert: PyTree,
    expert_acts: Bool[Array, " batch"],
    key: Key,
) -> tuple[PyTree, PyTree, PyTree, dict[str, Array]]:
    """Take one step in each environment and reset environments whose episode has ended.

    Args:
        algorithm: The algorithm.
        environment: Environment with the tasks of this update.
        states: States of the environments.
        observations: Observations of these states.
        lengths: Number of steps so far in the current episode of each environment.
        returns: Sum of the rewards so far in the current episode of each environment.
        own: Actions of the policy.
        expert: Actions of the expert.
        expert_acts: Whether to take the expert's action in each environment.
        key: Key for resetting environments.

    Returns:
        The new states and observations, the actions that were taken, and the episode statistics.
    """
    actions = select_rows(expert_acts, expert, own)
    states, observations, rewards, done, _ = environment.batch_step(states, actions)
    episodes = {
        "episode_mask": done,
        "episode_returns": returns + rewards,
        "episode_lengths": lengths + 1,
        **batch_metrics(environment, states),
    }
    keys = jax.random.split(jax.random.fold_in(key, 1), done.shape[0])
    states, observations = environment.batch_reset_where(done, keys, states, observations)
    return states, observations, actions, episodes


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def _learn(
    algorithm: BC,
    params: PyTree,
    opt_state: optax.OptState,
    steps: Steps,
    minibatches: Int32[Array, "minibatches size"],
    num_minibatches: Int32[Array, ""],
    update: Int32[Array, ""],
) -> tuple[PyTree, optax.OptState, dict[str, Array]]:
    """Take one gradient step per minibatch, each of which increases the probability of the expert's actions.

    Every device has its share of the rows of each minibatch.

    Args:
        algorithm: The algorithm.
        params: Parameters of the policy.
        opt_state: Optimizer state.
        steps: Observations and labels of all steps.
        minibatches: Indices of the steps of each minibatch. -1 stands for no step.
        num_minibatches: Number of minibatches to use.
        update: Update number, counted from 0.
    """
    learning_rate = algorithm.learning_rate(update)

    def learn(
        params: PyTree, opt_state: optax.OptState, steps: Steps, minibatches: Array, num_minibatches: Array
    ) -> tuple[PyTree, optax.OptState, dict[str, Array]]:
        def gradient_step(index: Array, carry: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
            params, opt_state, total = carry
            rows = minibatches[index]
            minibatch = jax.tree.map(lambda leaf: leaf[rows], steps)
            value_and_grad = jax.value_and_grad(algorithm.loss, has_aux=True)
            (loss, (correct, weight)), grads = value_and_grad(params, minibatch, (rows >= 0).astype(float))
            # The devices have different numbers of labeled steps.
            loss, correct, weight, grads = mean_over_devices((loss, correct, weight, grads))
            loss, correct, grads = jax.tree.map(lambda leaf: leaf / weight, (loss, correct, grads))
            changes, opt_state = algorithm.optimizer.update(grads, opt_state, params)
            params = jax.tree.map(lambda old, change: old - learning_rate * change, params, changes)
            metrics = {"loss": loss, "accuracy": correct, "gradient_norm": optax.tree.norm(grads)}
            return params, opt_state, jax.tree.map(jnp.add, total, metrics)

        zeros = dict.fromkeys(("loss", "accuracy", "gradient_norm"), jnp.zeros(()))
        return jax.lax.fori_loop(0, num_minibatches, gradient_step, (params, opt_state, zeros))

    mapped = jax.shard_map(
        learn,
        mesh=algorithm.mesh,
        in_specs=(P(), P(), P(), P(None, AXIS), P()),
        out_specs=P(),
        check_vma=False,
    )
    params, opt_state, total = mapped(params, opt_state, steps, minibatches, num_minibatches)
    metrics = {name: value / num_minibatches for name, value in total.items()}
    return params, opt_state, {**metrics, "learning_rate": learning_rate}
