"""Behavior cloning with DAgger (Ross et al., 2011, arXiv:1011.0686) for any environment with an expert.

Each update runs episodes in which the policy and the expert share the steps, labels every visited state with
the expert's actions, and takes gradient steps on the labels.
"""

import concurrent.futures
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field

from phalanx.config import Config
from phalanx.core.environment import Environment, Key
from phalanx.core.expert import ExpertLabels
from phalanx.core.spaces import masked_choice
from phalanx.nn.policy_network import PolicyNetwork, apply_batch, select_action
from phalanx.training.algorithm import TrainState, UpdateResult
from phalanx.training.policy_algorithm import PolicyAlgorithm

Steps = tuple[PyTree, ExpertLabels]
"""Observations and labels of a number of steps."""


class BCConfig(Config):
    """Settings of behavior cloning."""

    episodes: Path | None = None
    """File with recorded episodes to learn from instead of the expert."""
    num_updates: int = Field(default=100, ge=1)
    """Number of updates."""
    num_envs: int = Field(default=256, ge=1)
    """Number of parallel episodes."""
    num_steps: int = Field(default=8, ge=1)
    """Steps per episode and update; the expert labels each of them."""
    epochs: int = Field(default=2, ge=1)
    """Passes over the steps of an update."""
    minibatch: int = Field(default=256, ge=1)
    """Maximum number of steps in a gradient step."""
    expert_share: float = Field(default=1.0, ge=0, le=1)
    """Initial probability that the expert acts instead of the policy."""
    expert_share_end: float = Field(default=0.1, ge=0, le=1)
    """Probability that the expert acts from `expert_until` on. With 1 for both, states come from the expert
    alone."""
    expert_until: float = Field(default=0.2, ge=0, le=1)
    """Fraction of the run in which the probability changes linearly."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Initial learning rate of Adam."""
    learning_rate_end: float = Field(default=1e-4, ge=0)
    """Final learning rate; it decays along a cosine."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger norm are scaled down to it."""

    @property
    def steps_per_update(self) -> int:
        """Labeled steps in one update."""
        return self.num_envs * self.num_steps

    def expert_prob(self, update: int) -> float:
        """Compute the probability that the expert acts in an update, counted from 0."""
        progress = min(1.0, update / (self.expert_until * self.num_updates)) if self.expert_until else 1.0
        return self.expert_share + (self.expert_share_end - self.expert_share) * progress

    def learning_rate_at(self, update: Int32[Array, ""]) -> Float[Array, ""]:
        """Compute the learning rate of an update, counted from 0."""
        cosine = 0.5 + 0.5 * jnp.cos(jnp.pi * jnp.clip(update / self.num_updates, 0.0, 1.0))
        return self.learning_rate_end + (self.learning_rate - self.learning_rate_end) * cosine


class BCState(TrainState):
    """Parameters, optimizer state, step and the key of the next update."""

    key: Key


class BC(PolicyAlgorithm[BCState]):
    """Trains an environment's policy network to imitate the environment's expert."""

    name = "bc"
    num_updates_setting = "cloning.num_updates"
    headline = ("loss", "accuracy")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = self.settings
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(settings.max_gradient_norm), optax.scale_by_adam(eps=1e-5)
        )
        self.recorded = None
        if settings.episodes is not None:
            self.recorded = self.environment.load_expert_episodes(settings.episodes)
        elif self.environment.expert() is None:
            raise ValueError(f"{type(self.environment).__name__} has no expert, which behavior cloning needs")
        # A thread prepares the tasks of the next update while XLA's threads run the gradient steps.
        self._worker: concurrent.futures.ThreadPoolExecutor | None = None
        self._prepared: dict[int, concurrent.futures.Future[tuple[Environment, np.random.Generator]]] = {}
        self._jit_reset = eqx.filter_jit(self._reset)
        self._jit_act, self._jit_step = eqx.filter_jit(self._act), eqx.filter_jit(self._step)
        self._jit_learn = eqx.filter_jit(self._learn)

    @property
    def settings(self) -> BCConfig:
        """Behavior cloning settings of the run."""
        return self.config.cloning

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
        settings, update = self.settings, int(state.step)
        key, rollout_key = jax.random.split(state.key)
        episodes: dict[str, Any] = {}
        if self.recorded is None:
            environment, rng = self._next_tasks(update)
            steps, episodes = self._collect(environment, self.policy(state), rollout_key, rng, update)
        else:
            rng = np.random.default_rng((self.seed, update))
            steps = self.recorded.sample(rng, settings.steps_per_update)
        count = len(jax.tree.leaves(steps)[0])
        params, opt_state, history = state.params, state.opt_state, []
        for _ in range(settings.epochs):
            order = rng.permutation(count)
            for first in range(0, count, settings.minibatch):
                # The last minibatch is filled up with the first steps, so that all have one shape.
                rows = order.take(np.arange(first, first + min(settings.minibatch, count)), mode="wrap")
                minibatch = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], steps)
                params, opt_state, metrics = self._jit_learn(minibatch, params, opt_state, state.step)
                history.append(metrics)
        metrics = jax.tree.map(lambda *values: jnp.mean(jnp.stack(values)), *history)
        metrics |= {"learning_rate": settings.learning_rate_at(state.step)}
        return (
            BCState(params, opt_state, state.step + 1, key),
            UpdateResult(metrics, episodes, {self.unit: np.int64(count)}),
        )

    def _next_tasks(self, update: int) -> tuple[Environment, np.random.Generator]:
        """Return the environment and the generator of an update, and start to prepare the next ones."""
        prepared = self._prepared.pop(update, None)
        if update + 1 < self.num_updates:
            self._worker = self._worker or concurrent.futures.ThreadPoolExecutor(1, "refresh-tasks")
            self._prepared = {update + 1: self._worker.submit(self.prepare_tasks, update + 1)}
        return self.prepare_tasks(update) if prepared is None else prepared.result()

    def prepare_tasks(self, update: int) -> tuple[Environment, np.random.Generator]:
        """Create the environment with the tasks of an update, and the generator for its remaining draws.

        They depend on the seed and the update only.
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
        """Run episodes of the policy and the expert. Returns labeled steps and episode statistics."""
        settings = self.settings
        expert, expert_prob = environment.expert(), settings.expert_prob(update)
        assert expert is not None
        reset_key, key = jax.random.split(key)
        states, observations = self._jit_reset(environment, reset_key)
        memory, lengths = expert.init(states), jnp.zeros(settings.num_envs, jnp.int32)
        seen, labeled, ended = [], [], []
        for step_key in jax.random.split(key, settings.num_steps):
            own = self._jit_act(network, observations, step_key)
            labels = expert.label(states, memory)
            acts = (rng.random(settings.num_envs) < expert_prob) | expert.must_act(own, labels)
            seen.append(jax.tree.map(np.asarray, observations))
            labeled.append(labels)
            first = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], labels.actions)
            acts &= labels.mask[:, 0]
            states, observations, lengths, actions, episodes = self._jit_step(
                environment, states, observations, lengths, own, first, acts, step_key
            )
            memory = expert.advance(memory, labels, actions, np.asarray(episodes["episode_mask"]))
            ended.append(jax.tree.map(np.asarray, episodes))
        steps = jax.tree.map(lambda *parts: np.concatenate(parts), *zip(seen, labeled, strict=True))
        answered = steps[1].mask.any(axis=1)
        if not answered.all():
            steps = jax.tree.map(lambda leaf: leaf[answered], steps)
        return steps, jax.tree.map(lambda *parts: np.stack(parts), *ended)

    def _reset(self, environment: Environment, key: Key) -> tuple[PyTree, PyTree]:
        states, observations = environment.batch_reset(jax.random.split(key, self.settings.num_envs))
        return environment.detach_names(states), observations

    def _act(self, network: PolicyNetwork, observations: PyTree, key: Key) -> PyTree:
        """Sample the policy's actions."""
        keys = jax.random.split(key, self.settings.num_envs)
        return jax.vmap(functools.partial(select_action, network))(observations, keys)

    def _step(
        self,
        environment: Environment,
        states: PyTree,
        observations: PyTree,
        lengths: Int32[Array, " batch"],
        own: PyTree,
        expert: PyTree,
        expert_acts: Bool[Array, " batch"],
        key: Key,
    ) -> tuple[PyTree, PyTree, Int32[Array, " batch"], PyTree, dict[str, Array]]:
        """Take a step with the actions of the policy or the expert, and reset finished episodes."""

        def choose(mine: Array, theirs: Array) -> Array:
            rows = expert_acts.reshape(-1, *[1] * (jnp.ndim(mine) - 1))
            return jnp.where(rows, theirs, mine)

        actions = jax.tree.map(choose, own, expert)
        states, observations, rewards, done, info = environment.batch_step(states, actions)
        lengths = lengths + 1
        keys = jax.random.split(jax.random.fold_in(key, 1), done.shape[0])
        states, observations = environment.batch_reset_where(done, keys, states, observations)
        episodes = {
            "episode_mask": done,
            "episode_returns": rewards,
            "episode_lengths": lengths,
            **environment.episode_metrics(info),
        }
        return environment.detach_names(states), observations, jnp.where(done, 0, lengths), actions, episodes

    def _learn(
        self, steps: Steps, params: PyTree, opt_state: optax.OptState, update: Int32[Array, ""]
    ) -> tuple[PyTree, optax.OptState, dict[str, Array]]:
        """Take a gradient step on the probability that the policy takes one of the expert's actions."""

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
        changes, opt_state = self.optimizer.update(gradients, opt_state)
        learning_rate = self.settings.learning_rate_at(update)
        params = jax.tree.map(lambda old, change: old - learning_rate * change, params, changes)
        metrics = {"loss": value, "accuracy": accuracy, "gradient_norm": optax.tree.norm(gradients)}
        return params, opt_state, metrics
