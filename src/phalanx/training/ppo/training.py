"""PPO as an algorithm that a run trains: any environment, network and distribution, on all devices.

What an update is, is in `update`; what ARC and proofs add, in `arc_training` and `proof_training`.
"""

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree
from pydantic import Field

from phalanx.core.environment import Environment, Key
from phalanx.core.evaluation import record_episodes
from phalanx.statistics import bootstrap_interval, interquartile_mean
from phalanx.training.algorithm import Algorithm, RunConfig, Start, TrainResult, Update, UpdateResult
from phalanx.training.ppo.config import PPOConfig
from phalanx.training.ppo.parallel import DataParallel
from phalanx.training.ppo.update import PPO, PPOState


class PPOTrainingConfig(RunConfig):
    """What the config of every training with PPO has."""

    seed: int = 0
    """Of the network, the episodes and the shuffling."""
    num_seeds: int = Field(default=1, ge=1)
    """Trainings at once, each from a seed of its own."""
    ppo: PPOConfig = PPOConfig()
    """How it learns."""


class PPOTraining(Algorithm[PPOState]):
    """A policy that PPO trains in an environment."""

    kind = "ppo"
    config_type = PPOTrainingConfig
    length = "ppo.num_updates"
    measured = "Success"
    """What `describe` calls the success of an evaluation."""

    def __init__(
        self,
        config: PPOTrainingConfig,
        environment: Environment,
        make_network: Callable[[Key], PyTree],
        *,
        max_episode_steps: int,
        devices: Sequence[Any] | None = None,
    ) -> None:
        """Sampled episodes have at most `max_episode_steps`; `devices` are all unless some are given."""
        super().__init__(
            config, num_updates=config.ppo.num_updates, seed=config.seed, num_seeds=config.num_seeds
        )
        shape = eqx.filter_eval_shape(make_network, jax.random.key(0))
        structure = eqx.filter(shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)
        self.ppo = PPO(environment, config.ppo, structure)
        self.make_network = make_network
        self._max_episode_steps, self._devices = max_episode_steps, devices

    def compile(self) -> tuple[Start, Update]:
        parallel = self._parallel
        return (lambda key: parallel.start(self.make_network, key)), parallel.update

    @functools.cached_property
    def _parallel(self) -> DataParallel:
        return DataParallel.create(self.ppo, self.num_seeds, self._devices)

    def whole(self, learner: PPOState) -> PPOState:
        return self._parallel.whole(learner)

    def share(self, whole: PPOState) -> PPOState:
        return self._parallel.share(whole)

    def start(self, key: Key) -> PPOState:
        network_key, learner_key = jax.random.split(key)
        return self.ppo.start(self.make_network(network_key), learner_key)

    def update(self, learner: PPOState) -> tuple[PPOState, UpdateResult]:
        return self.ppo.update(learner)

    def policy(self, learner: PPOState) -> Any:
        """The network."""
        return self.ppo.network(learner.network)

    def sample_episodes(self, learner: PPOState, key: Key, update: int) -> list[dict[str, Any]]:
        return self.record_episodes(self.ppo.environment, learner, key, update)

    def record_episodes(
        self, environment: Environment, learner: PPOState, key: Key, update: int
    ) -> list[dict[str, Any]]:
        """As many as the logger asks for, in an environment of the same observations and actions."""
        return record_episodes(
            environment,
            self.policy(learner),
            key,
            self.config.logging.num_samples,
            self._max_episode_steps,
            episode_num=update,
        )

    def describe(self, outcome: TrainResult) -> list[str]:
        """Success before and after, by family, and pass@k of sampled attempts; means over the seeds."""
        greedy = [line for line in outcome.evaluations if line["mode"] == "greedy"]
        if not greedy:
            return super().describe(outcome)
        first, last = (
            [line for line in greedy if line["step"] == edge["step"]] for edge in (greedy[0], greedy[-1])
        )
        before, after = (statistics.fmean(line["success_rate"] for line in lines) for lines in (first, last))
        told = [f"{self.measured}: {before:.1%} before, {after:.1%} after"]
        if len(last) > 1:
            scores = np.array([line["success_rate"] for line in last], np.float64)
            low, high = bootstrap_interval(scores)
            told.append(
                f"  interquartile mean of {len(last)} seeds {interquartile_mean(scores):.1%}, 95 % bootstrap "
                f"interval {low:.1%} to {high:.1%}"
            )
        families = last[0]["families"]
        for name in families:
            before, after = (
                statistics.fmean(line["families"][name]["success_rate"] for line in lines)
                for lines in (first, last)
            )
            told.append(f"  {name:<{max(map(len, families))}}  {before:6.1%} -> {after:6.1%}")
        sampled = [line["pass_at_k"] for line in outcome.evaluations if line.get("pass_at_k")]
        if sampled:
            shares = ", ".join(
                f"pass@{k} {statistics.fmean(line[k] for line in sampled):.1%}" for k in sampled[0]
            )
            told.append(f"Sampled attempts on held-out tasks: {shares}")
        return told
