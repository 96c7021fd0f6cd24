"""Cloning as an algorithm that a run trains: play, ask the expert, learn what it would have done.

The expert's plans are in `expert`, episodes from files in `episode_files`, the settings in `config`.
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

from phalanx.arc.actions import Action
from phalanx.arc.augmentation import augment_tasks
from phalanx.arc.browser.export import export_agent
from phalanx.arc.datasets import GENERATED
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.episode_files import LabeledSteps, read_recorded_episodes
from phalanx.arc.evaluation import evaluate_arc
from phalanx.arc.expert import ArcExpert, ArcLabels
from phalanx.arc.generators.generate import generate_tasks
from phalanx.arc.networks.arc import create_arc_network
from phalanx.arc.observation import observed_grid
from phalanx.arc.operations import Operation
from phalanx.arc.state import ArcState
from phalanx.arc.task_buffer import PaddedShape, TaskBuffer
from phalanx.core.environment import Key
from phalanx.nn.policy_network import select_action
from phalanx.training.algorithm import TrainResult, TrainState, UpdateResult
from phalanx.training.arc_training import baselines, held_out, sampled, told_beside
from phalanx.training.cloning.config import CloningTrainingConfig
from phalanx.training.distributed import DeviceMesh
from phalanx.training.policy_algorithm import PolicyAlgorithm

_CELLS_IGNORED = jnp.array([Operation.COPY_INPUT, Operation.SUBMIT, *range(Operation.NEXT_DEMO_PAIR, 42)])
"""Operations whose cells do not matter: which of them an expert names teaches nothing."""


class BCState(TrainState):
    """Parameters, optimizer state, step and the key of the next update."""

    key: Key


class Steps(eqx.Module):
    """Labeled steps."""

    observations: PyTree
    actions: Action
    """What the expert does, [steps, choices]: any of some actions that are equally good."""


class CloningTraining(PolicyAlgorithm[BCState]):
    """A policy for ARC that learns what an expert does, mostly in the states that it reaches itself.

    Where tasks are generated, every update has new ones, so that nothing can be learned by heart.
    """

    name = "bc"
    num_updates_setting = "cloning.num_updates"
    score_name = "Handed in right on held-out tasks"
    config_type = CloningTrainingConfig
    headline = ("loss", "agreement")

    def __init__(self, config: CloningTrainingConfig) -> None:
        # An agent hands in: neither training nor evaluation ends an episode because its grid is right.
        settled = config.arc.episode.model_copy(update={"require_submit": True, "mode": "training"})
        self.arc = config.arc.model_copy(update={"episode": settled})
        super().__init__(
            config,
            ArcEnvironment.create(self.arc),
            functools.partial(create_arc_network, config.network, self.arc),
            max_episode_steps=self.arc.episode.max_episode_steps,
            mesh=DeviceMesh(jax.devices()[:1]),
        )
        self._unseen = held_out(config.model_copy(update={"arc": self.arc}))
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(config.cloning.max_gradient_norm), optax.scale_by_adam(eps=1e-5)
        )
        self.recorded: LabeledSteps | None = None
        if config.cloning.episodes is not None:
            self.recorded = read_recorded_episodes(config.cloning.episodes, self.environment)
        self._begin = eqx.filter_jit(self._started)
        self._act, self._advance = eqx.filter_jit(self._sampled), eqx.filter_jit(self._stepped)
        self._learn = eqx.filter_jit(self._gradient_step)
        # While one update learns on XLA's threads, a thread beside it makes the tasks of the next.
        self._beside = concurrent.futures.ThreadPoolExecutor(1, "fresh-tasks")
        self._made: dict[int, concurrent.futures.Future[TaskBuffer]] = {}

    def with_seed(self, seed: int) -> "CloningTraining":
        return type(self)(self.config.model_copy(update={"seed": seed}))

    def init(self, key: Key, params: PyTree | None = None) -> BCState:
        params_key, key = jax.random.split(key)
        params = self.init_params(params_key) if params is None else params
        return BCState(params, self.optimizer.init(params), jnp.int32(0), key)

    def update(self, state: BCState) -> tuple[BCState, UpdateResult]:
        settings, update = self.config.cloning, int(state.step)
        key, play_key = jax.random.split(state.key)
        rng = np.random.default_rng((self.seed, update))
        episodes: dict[str, Any] = {}
        if self.recorded is None:
            steps, episodes = self._played(state, play_key, rng)
        else:
            steps = Steps(*self.recorded.drawn(rng, settings.steps_per_update))
        count = len(jax.tree.leaves(steps.observations)[0])
        params, opt_state, told = state.params, state.opt_state, []
        for _ in range(settings.epochs):
            order = rng.permutation(count)
            for first in range(0, count, settings.minibatch):
                # The last minibatch is filled up with the first steps of the order.
                chosen = order.take(np.arange(first, first + min(settings.minibatch, count)), mode="wrap")
                minibatch = jax.tree.map(lambda leaf, rows=chosen: np.asarray(leaf)[rows], steps)
                params, opt_state, metrics = self._learn(minibatch, params, opt_state, state.step)
                told.append(metrics)
        metrics = jax.tree.map(lambda *values: jnp.mean(jnp.stack(values)), *told)
        metrics |= {"learning_rate": settings.learning_rate_at(state.step)}
        return (
            BCState(params, opt_state, state.step + 1, key),
            UpdateResult(metrics, episodes, {"environment_steps": np.int64(count)}),
        )

    def _played(
        self, state: BCState, key: Key, rng: np.random.Generator
    ) -> tuple[Steps, dict[str, np.ndarray]]:
        """Episodes of the policy and the expert, labeled, and what became of those that ended."""
        settings, number = self.config.cloning, int(state.step)
        environment = self.environment.with_tasks(self._fresh(number, rng))
        expert = ArcExpert(self.arc, environment.task_buffer.tasks)
        network, share = self.policy(state), settings.expert_share_at(number)
        reset_key, key = jax.random.split(key)
        states, observations = self._begin(environment, reset_key)
        followed = np.zeros(settings.num_envs, np.int64)
        seen, labeled, ended = [], [], []
        for step_key in jax.random.split(key, settings.num_steps):
            own = self._act(network, observations, step_key)
            where = (np.asarray(states.task_index), np.asarray(states.pair_index))
            labels = expert.labels(*where, np.asarray(observed_grid(observations)), followed)
            # A policy that would hand a wrong grid in learns more from going on.
            too_early = (np.asarray(own.operation) == Operation.SUBMIT) & (
                labels.operations[:, 0] != Operation.SUBMIT
            )
            leads = (rng.random(settings.num_envs) < share) | too_early
            seen.append(jax.tree.map(np.asarray, observations))
            labeled.append(labels)
            states, observations, right, over = self._advance(
                environment, states, observations, own, labels.firsts(), leads, step_key
            )
            fresh = np.asarray(over["episode_mask"])
            followed = expert.follow(followed, np.asarray(right), fresh)
            ended.append(jax.tree.map(np.asarray, over))
        flat = ArcLabels(*(np.concatenate(parts) for parts in zip(*labeled, strict=True)))
        steps = Steps(jax.tree.map(lambda *parts: np.concatenate(parts), *seen), flat.choices())
        return steps, jax.tree.map(lambda *parts: np.stack(parts), *ended)

    def _fresh(self, update: int, rng: np.random.Generator) -> TaskBuffer:
        """The tasks of an update, in a buffer that always has the same shapes."""
        if self.arc.dataset.source == GENERATED:
            made = self._made.pop(update, None)
            if update + 1 < self.num_updates:
                self._made = {update + 1: self._beside.submit(self._generated, update + 1)}
            return self._generated(update) if made is None else made.result()
        every = self.environment.task_buffer
        tasks = [every[int(n)] for n in rng.permutation(len(every))[: self.config.cloning.fresh_tasks]]
        if self.config.cloning.augment:
            tasks = augment_tasks(tasks, jax.random.key(int(rng.integers(2**31))))
        return TaskBuffer.from_tasks(tasks, **self._room._asdict())

    def _generated(self, update: int) -> TaskBuffer:
        """Tasks that follow from the seed and an update's number alone, whoever makes them and when."""
        data = self.arc.dataset
        tasks = generate_tasks(
            data.families,
            self.config.cloning.fresh_tasks,
            # One of its own for every update of every training; 0 to 999 are those of data sets.
            seed=1000 * (1 + update) + self.seed % 1000,
            split="training",
            max_height=data.max_grid_height,
            max_width=data.max_grid_width,
        )
        return TaskBuffer.from_tasks(tasks, **self._room._asdict())

    @functools.cached_property
    def _room(self) -> PaddedShape:
        every, count = self.environment.task_buffer.tasks, self.config.cloning.fresh_tasks
        most = max(len(task.pairs) for task in every)
        count = count if self.arc.dataset.source == GENERATED else min(count, len(every))
        return PaddedShape(count, count * most, self.arc.grid_shape[0])

    def _started(self, environment: ArcEnvironment, key: Key) -> tuple[ArcState, PyTree]:
        """New episodes in all environments."""
        states, observations = environment.batch_reset(jax.random.split(key, self.config.cloning.num_envs))
        return environment.detach_names(states), observations

    def _sampled(self, network: Any, observations: PyTree, key: Key) -> Action:
        """What the policy does in each environment."""
        keys = jax.random.split(key, self.config.cloning.num_envs)

        def one(observation: PyTree, key: Key) -> Action:
            return select_action(network, observation, key)

        return jax.vmap(one)(observations, keys)

    def _stepped(
        self,
        environment: ArcEnvironment,
        states: ArcState,
        observations: PyTree,
        own: Action,
        labels: Action,
        leads: Bool[Array, " batch"],
        key: Key,
    ) -> tuple[ArcState, PyTree, Bool[Array, " batch"], dict[str, Array]]:
        """A step, by the expert where it leads, and new episodes where some ended.

        Whether what was done is what the expert would have done is told too, and what became of the episodes.
        """
        actions = jax.tree.map(lambda mine, theirs: jnp.where(leads, theirs, mine), own, labels)
        right = jax.tree.reduce(jnp.logical_and, jax.tree.map(jnp.equal, actions, labels))
        states, observations, rewards, done, info = environment.batch_step(states, actions)
        lengths = states.step_count
        keys = jax.random.split(jax.random.fold_in(key, 1), done.shape[0])
        states, observations = environment.batch_reset_where(done, keys, states, observations)
        over = {
            "episode_mask": done,
            "episode_returns": rewards,
            "episode_lengths": lengths,
            **environment.episode_metrics(info),
        }
        return environment.detach_names(states), observations, right, over

    def _gradient_step(
        self, steps: Steps, network: PyTree, optimizer: optax.OptState, update: Int32[Array, ""]
    ) -> tuple[PyTree, optax.OptState, dict[str, Array]]:
        def loss(arrays: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
            policy = self.network(arrays)

            def one(observation: PyTree, actions: Any) -> tuple[Array, Array]:
                distribution, _ = policy(observation)
                chances = jax.vmap(functools.partial(_log_prob, distribution))(actions)
                agrees = jnp.any(distribution.mode().operation == actions.operation)
                return -jax.nn.logsumexp(chances), agrees

            losses, agreed = jax.vmap(one)(steps.observations, steps.actions)
            return jnp.mean(losses), jnp.mean(agreed.astype(jnp.float32))

        (value, agreement), gradient = jax.value_and_grad(loss, has_aux=True)(network)
        changes, optimizer = self.optimizer.update(gradient, optimizer)
        rate = self.config.cloning.learning_rate_at(update)
        network = jax.tree.map(lambda leaf, change: leaf - rate * change, network, changes)
        return (
            network,
            optimizer,
            {"loss": value, "agreement": agreement, "gradient_norm": optax.tree.norm(gradient)},
        )

    def evaluate(self, state: BCState, update: int, final: bool) -> list[dict[str, Any]]:
        network, settings = self.policy(state), self.config.evaluation
        results = [evaluate_arc(self._unseen, network)]
        if final and settings.attempts:
            results.append(sampled(self._unseen, network, settings))
        return [result.as_record("held-out") | baselines(self._unseen) for result in results]

    def summarize(self, result: TrainResult) -> list[str]:
        return super().summarize(result) + told_beside(self._unseen, self.environment)

    def data_fingerprint(self) -> str:
        recorded = "" if self.recorded is None else self.recorded.fingerprint
        return self.environment.task_buffer.fingerprint + recorded

    def export(self, state: BCState, folder: Path) -> None:
        export_agent(self.policy(state), self.arc, self._unseen.task_buffer, folder)


def _log_prob(distribution: Any, action: Any) -> Float[Array, ""]:
    """Of an expert's action, whatever its cells where they do not matter; next to nothing for none at all."""
    known = jnp.asarray(distribution.ids) == action.operation
    operation = jnp.sum(jnp.where(known, distribution.operations, 0.0))
    ignored = jnp.any(action.operation == _CELLS_IGNORED)
    # A large number in place of infinity, whose gradient would be NaN otherwise.
    there = jax.tree.map(lambda field: jnp.maximum(field, 0), action)
    told = jnp.where(ignored, operation, distribution.log_prob(there))
    return jnp.where(action.operation >= 0, told, -1e30)
