"""Base class for algorithms that train a policy network in an environment."""

import statistics
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from phalanx.core.environment import Environment, Key
from phalanx.core.episodes import record_episodes
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.statistics import bootstrap_interval, interquartile_mean
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, jit_method
from phalanx.training.config import RunConfig
from phalanx.training.distributed import DeviceMesh

State = TypeVar("State", bound=TrainState)


class PolicyAlgorithm(Algorithm[State], Generic[State]):
    """Trains a policy network in an environment.

    Args:
        config: Settings of the run.
        environment: Environment to train in.
        make_network: Creates the policy network from a key; often the class of the network.
        max_episode_steps: Length limit of sampled episodes.
        mesh: Devices to train on; all by default.
    """

    score_name = "Success rate"
    """Name of the evaluation's success rate in the summary."""

    def __init__(
        self,
        config: RunConfig,
        environment: Environment,
        make_network: Callable[[Key], PolicyNetwork],
        *,
        max_episode_steps: int,
        mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__(config, environment, mesh)
        self.make_network, self.max_episode_steps = make_network, max_episode_steps
        shape = eqx.filter_eval_shape(make_network, jax.random.key(0))
        self.network_structure = eqx.filter(
            shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True
        )

    @property
    def _compilation_key(self) -> tuple[Any, ...]:
        return *super()._compilation_key, self.network_structure

    def network(self, params: PyTree) -> PolicyNetwork:
        """Return the network with these parameters."""
        return eqx.combine(params, self.network_structure)

    @jit_method
    def init_params(self, key: Key) -> PyTree:
        """Create initial parameters.

        A program of its own, so that the parameters do not depend on the number of environments.
        """
        return eqx.filter(self.make_network(key), eqx.is_array)

    def policy(self, state: State) -> PolicyNetwork:
        """Return the network."""
        return self.network(state.params)

    def sample_episodes(self, state: State, key: Key, update: int) -> list[dict[str, Any]]:
        return self.record_episodes(self.environment, state, key, update)

    def record_episodes(
        self, environment: Environment, state: State, key: Key, update: int
    ) -> list[dict[str, Any]]:
        """Record `logging.num_samples` episodes in an environment with the same observations and actions."""
        return record_episodes(
            environment,
            self.policy(state),
            key,
            self.config.logging.num_samples,
            self.max_episode_steps,
            episode_num=update,
        )

    def summarize(self, result: TrainResult) -> list[str]:
        """Describe the success rate before and after, by group, and pass@k; means over the seeds."""
        greedy = [line for line in result.evaluations if line["mode"] == "greedy"]
        if not greedy:
            return super().summarize(result)
        first, last = (
            [line for line in greedy if line["step"] == step]
            for step in (greedy[0]["step"], greedy[-1]["step"])
        )
        before, after = (statistics.fmean(line["success_rate"] for line in lines) for lines in (first, last))
        lines = [f"{self.score_name}: {before:.1%} before, {after:.1%} after"]
        if len(last) > 1:
            scores = np.array([line["success_rate"] for line in last], np.float64)
            low, high = bootstrap_interval(scores)
            lines.append(
                f"  interquartile mean of {len(last)} seeds {interquartile_mean(scores):.1%}, 95% bootstrap "
                f"interval {low:.1%} to {high:.1%}"
            )
        groups = _groups(last[0])
        for name in groups:
            before, after = (
                statistics.fmean(_groups(line)[name]["success_rate"] for line in lines)
                for lines in (first, last)
            )
            lines.append(f"  {name:<{max(map(len, groups))}}  {before:6.1%} -> {after:6.1%}")
        sampled = [line["pass_at_k"] for line in result.evaluations if line.get("pass_at_k")]
        if sampled:
            shares = ", ".join(
                f"pass@{k} {statistics.fmean(line[k] for line in sampled):.1%}" for k in sampled[0]
            )
            lines.append(f"Sampled attempts on held-out tasks: {shares}")
        if baselines := last[0].get("baselines"):
            lines.append("Baselines: " + ", ".join(f"{name} {rate:.1%}" for name, rate in baselines.items()))
        return lines


def _groups(record: dict[str, Any]) -> dict[str, Any]:
    groups: dict[str, Any] = record["groups"] if "groups" in record else record["families"]
    return groups
