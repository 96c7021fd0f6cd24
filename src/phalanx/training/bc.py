"""Behavior cloning with DAgger (Ross et al., 2011, arXiv:1011.0686) for any environment with an expert.

Each update runs episodes, labels every visited state with the expert's actions, and takes gradient steps on
these labels. At each step of an episode, either the policy or the expert chooses the action that is taken.
"""

import concurrent.futures
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field

from phalanx.core.environment import Environment, Key
from phalanx.core.expert import ExpertLabels
from phalanx.core.spaces import masked_choice
from phalanx.core.vector import select_rows
from phalanx.nn.policy_network import PolicyNetwork, apply_batch, select_action
from phalanx.training.algorithm import TrainState, UpdateResult
from phalanx.training.config import PolicyRunConfig, RunConfig
from phalanx.training.device_mesh import DeviceMesh
from phalanx.training.optimizer import OptimizerConfig
from phalanx.training.policy_algorithm import PolicyAlgorithm

Steps = tuple[PyTree, ExpertLabels]
"""Observations of several steps, and the expert's labels for these observations."""


class BCConfig(PolicyRunConfig):
    """Configuration for behavior cloning."""

    preset_group = "bc"
    renamed_settings: ClassVar[Mapping[str, str]] = {
        "cloning.fresh_tasks": "env.dataset.tasks_per_update",
        "cloning.expert_until": "expert_anneal_fraction",
        "cloning.learning_rate_end": "optimizer.end_learning_rate",
        "arc": "env",
        "expert_prob": "expert_prob_start",
    }

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

    def __init__(
        self,
        config: BCConfig,
        environment: Environment | None = None,
        network: Callable[[Key], PolicyNetwork] | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        # The expert runs on the host, so several devices would not help.
        super().__init__(config, environment, network, mesh or DeviceMesh(jax.devices()[:1]))
        if self.environment.expert() is None:
            raise ValueError(f"{type(self.environment).__name__} has no expert, which behavior cloning needs")
        # A thread prepares the tasks of the next update while XLA's threads run the gradient steps.
        self._worker: concurrent.futures.ThreadPoolExecutor | None = None
        self._prepared: dict[int, concurrent.futures.Future[tuple[Environment, np.random.Generator]]] = {}

    def with_seed(self, seed: int) -> "BC":
        other = super().with_seed(seed)
        other._worker, other._prepared = None, {}
        return other

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
        self._worker, self._prepared = None, {}

    def init(self, key: Key, params: PyTree | None = None) -> BCState:
        params_key, key = jax.random.split(key)
        params = self.init_params(params_key) if params is None else params
        return BCState(params, self.optimizer.init(params), jnp.int32(0), key)

    def update(self, state: BCState) -> tuple[BCState, UpdateResult]:
        config, update = self.config, int(state.step)
        key, rollout_key = jax.random.split(state.key)
        environment, rng = self._next_tasks(update)
        steps, episodes = self._collect(environment, self.policy(state), rollout_key, rng, update)
        count = len(jax.tree.leaves(steps)[0])
        params, opt_state, history = state.params, state.opt_state, []
        for _ in range(config.update_epochs):
            order = rng.permutation(count)
            for first in range(0, count, config.minibatch_size):
                # The last minibatch wraps around to the first steps, so that all minibatches have the same
                # shape.
                rows = order.take(np.arange(first, first + min(config.minibatch_size, count)), mode="wrap")
                minibatch = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], steps)
                params, opt_state, metrics = self._learn(minibatch, params, opt_state, state.step)
                history.append(metrics)
        metrics = jax.tree.map(lambda *values: jnp.mean(jnp.stack(values)), *history)
        metrics |= {"learning_rate": self.learning_rate(state.step)}
        state = BCState(params, opt_state, state.step + 1, key)
        return state, UpdateResult(metrics, episodes, {self.unit: np.int64(count)})

    def _next_tasks(self, update: int) -> tuple[Environment, np.random.Generator]:
        """Return the result of `prepare_tasks(update)`, and start `prepare_tasks(update + 1)` in a thread.

        The next call then only has to wait for the thread.
        """
        prepared = self._prepared.pop(update, None)
        if update + 1 < self.num_updates:
            self._worker = self._worker or concurrent.futures.ThreadPoolExecutor(1, "refresh-tasks")
            self._prepared = {update + 1: self._worker.submit(self.prepare_tasks, update + 1)}
        return self.prepare_tasks(update) if prepared is None else prepared.result()

    def prepare_tasks(self, update: int) -> tuple[Environment, np.random.Generator]:
        """Create the environment with the tasks of an update.

        Returns:
            The environment, and the random generator for the rest of the update. Both depend only on the seed
            and the update number.
        """
        rng = np.random.default_rng((self.seed, update))
        return self.environment.refresh_tasks(rng, self.seed, update), rng

    def _collect(
        self,
        environment: Environment,
        network: PolicyNetwork,
        key: Key,
        rng: np.random.Generator,
        update: int,
    ) -> tuple[Steps, dict[str, np.ndarray]]:
        """Take `num_steps` steps in each environment. At each step, either the policy or the expert acts.

        Returns:
            The labeled steps, excluding those that the expert could not label, and the episode statistics
            with shape `[num_steps, num_envs]`.
        """
        config = self.config
        expert, expert_prob = environment.expert(), config.expert_prob_at(update)
        assert expert is not None
        reset_key, key = jax.random.split(key)
        states, observations = self._reset(environment, reset_key)
        memory = expert.init(states)
        lengths, returns = jnp.zeros(config.num_envs, jnp.int32), jnp.zeros(config.num_envs)
        seen, labeled, ended = [], [], []
        for step_key in jax.random.split(key, config.num_steps):
            own = self._act(network, observations, step_key)
            labels = expert.label(states, memory)
            acts = (rng.random(config.num_envs) < expert_prob) | expert.must_act(own, labels)
            seen.append(jax.tree.map(np.asarray, observations))
            labeled.append(labels)
            first = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], labels.actions)
            acts &= labels.mask[:, 0]
            states, observations, actions, episodes = self._step(
                environment, states, observations, lengths, returns, own, first, acts, step_key
            )
            is_running = ~episodes["episode_mask"]
            lengths, returns = (
                episodes[name] * is_running for name in ("episode_lengths", "episode_returns")
            )
            memory = expert.advance(memory, labels, actions, np.asarray(episodes["episode_mask"]))
            ended.append(jax.tree.map(np.asarray, episodes))
        steps = jax.tree.map(lambda *parts: np.concatenate(parts), *zip(seen, labeled, strict=True))
        answered = steps[1].mask.any(axis=1)
        steps = jax.tree.map(lambda leaf: leaf[answered], steps)
        return steps, jax.tree.map(lambda *parts: np.stack(parts), *ended)

    @eqx.filter_jit
    def _reset(self, environment: Environment, key: Key) -> tuple[PyTree, PyTree]:
        states, observations = environment.batch_reset(jax.random.split(key, self.config.num_envs))
        return environment.detach_names(states), observations

    @eqx.filter_jit
    def _act(self, network: PolicyNetwork, observations: PyTree, key: Key) -> PyTree:
        """Sample actions from the policy."""
        keys = jax.random.split(key, self.config.num_envs)
        return jax.vmap(functools.partial(select_action, network))(observations, keys)

    @eqx.filter_jit
    def _step(
        self,
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
        states, observations, rewards, done, info = environment.batch_step(states, actions)
        keys = jax.random.split(jax.random.fold_in(key, 1), done.shape[0])
        states, observations = environment.batch_reset_where(done, keys, states, observations)
        episodes = {
            "episode_mask": done,
            "episode_returns": returns + rewards,
            "episode_lengths": lengths + 1,
            **environment.episode_metrics(info),
        }
        return environment.detach_names(states), observations, actions, episodes

    @eqx.filter_jit
    def _learn(
        self, steps: Steps, params: PyTree, opt_state: optax.OptState, update: Int32[Array, ""]
    ) -> tuple[PyTree, optax.OptState, dict[str, Array]]:
        """Take a gradient step that increases the probability of the expert's actions.

        If the expert labels a state with several actions, the loss is the negative logarithm of the sum of
        their probabilities.
        """

        def loss(params: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
            network = self.network(params)

            def one(pi: Any, labels: ExpertLabels) -> tuple[Array, Array]:
                # A large number instead of infinity, whose gradient would be NaN.
                log_probs = jax.vmap(getattr(pi, "label_log_prob", pi.log_prob))(labels.actions)
                log_probs = jnp.where(labels.mask, log_probs, -1e30)
                space = self.environment.action_space
                chosen, expected = masked_choice(space, pi.mode()), masked_choice(space, labels.actions)
                return -jax.nn.logsumexp(log_probs), jnp.any((chosen == expected) & labels.mask)

            observations, labels = steps
            distributions, _ = apply_batch(network, observations)
            losses, correct = jax.vmap(one)(distributions, labels)
            return jnp.mean(losses), jnp.mean(correct.astype(jnp.float32))

        (value, accuracy), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        changes, opt_state = self.optimizer.update(gradients, opt_state, params)
        learning_rate = self.learning_rate(update)
        params = jax.tree.map(lambda old, change: old - learning_rate * change, params, changes)
        metrics = {"loss": value, "accuracy": accuracy, "gradient_norm": optax.tree.norm(gradients)}
        return params, opt_state, metrics
