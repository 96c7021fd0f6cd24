"""Settings for evaluations, protocols for their results, and `evaluate_episodes` for policy networks."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from pydantic import Field

from phalanx.config import Config
from phalanx.formatting import format_count
from phalanx.nn.policy_network import select_action

if TYPE_CHECKING:
    from phalanx.core.environment import Environment

_SEED = 0x5EED
"""Seed with which `evaluate_episodes` samples its episodes. It is fixed, so that the results of different
runs can be compared."""


class EvaluationConfig(Config):
    """Base class for the settings of evaluations during training."""

    every: int = Field(default=20, ge=0)
    """Number of updates between two evaluations. If 0, a run is evaluated only before the first update and
    after the last update."""


class EpisodeEvaluationConfig(EvaluationConfig):
    """Settings for evaluations that run episodes."""

    num_episodes: int = Field(default=20, ge=0)
    """Number of evaluation episodes. 0 disables these evaluations."""
    seed: int = Field(default=0, ge=0)
    """Seed for the initial states of the episodes. Results with different seeds are independent."""


@runtime_checkable
class EvaluationResult(Protocol):
    """Interface for evaluation results.

    Results are written to `evaluations.jsonl` and printed in the terminal.
    """

    def as_record(self) -> dict[str, Any]:
        """Return the result as a dictionary that can be written as JSON.

        It contains at least the keys `split` and `mode`, and one key per metric. If there are baselines, such
        as a random policy, their results are under `baselines`.
        """

    def describe(self) -> Sequence[str]:
        """Return a description of the result, as a few lines of text."""


@runtime_checkable
class PerTaskEvaluationResult(EvaluationResult, Protocol):
    """Evaluation result that also contains one result per task, for `phalanx eval --per-task`."""

    def task_records(self) -> list[dict[str, Any]]:
        """Return one JSON record per task."""


@runtime_checkable
class SubmittableResult(EvaluationResult, Protocol):
    """Evaluation result that can be saved as files, such as answers to submit to a benchmark.

    `phalanx eval` saves the files to `RUN/submissions/NAME`, where `NAME` is the value of the `name`
    property.
    """

    @property
    def name(self) -> str:
        """Name of the subfolder of `RUN/submissions` in which the files are saved."""

    def save(self, folder: Path, title: str | None = None) -> None:
        """Save the result as files in a folder.

        Args:
            folder: Folder to create.
            title: Heading under which the report of the run shows these files. If None, a default heading is
                used.
        """


@dataclasses.dataclass(frozen=True)
class DictEvaluationResult:
    """Evaluation result that consists of a JSON record and, optionally, a description as lines of text."""

    record: dict[str, Any]
    lines: tuple[str, ...] = ()
    """Lines of the description. If there are none, `describe` lists the numbers in `record` instead."""

    def as_record(self) -> dict[str, Any]:
        """Return the result as a dictionary that can be written as JSON."""
        return self.record

    def describe(self) -> Sequence[str]:
        """Return `lines`. If `lines` is empty, return one line with the numbers in the record."""
        if self.lines:
            return self.lines
        numbers = {name: value for name, value in self.record.items() if isinstance(value, int | float)}
        text = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        return (f"{self.record['split']}, {self.record['mode']}: {text}",)


@dataclasses.dataclass(frozen=True)
class EvaluationEpisodes:
    """The episodes that an evaluation runs with greedy actions, as the arguments that start them."""

    environment: "Environment"
    reset: Callable[[Any, Any], tuple[Any, Any]]
    """Function `reset(environment, starts)` that returns a batch of initial states and observations."""
    starts: Any
    """Pytree of arrays with one row per episode."""
    groups: Sequence[str] = ()
    """Name of the group of each episode, or nothing if there are no groups."""


def sampled_episodes(environment: "Environment", settings: EpisodeEvaluationConfig) -> EvaluationEpisodes:
    """Return the episodes that `evaluate_episodes` runs."""
    keys = jax.random.split(_evaluation_key(settings), settings.num_episodes)
    return EvaluationEpisodes(environment, type(environment).batch_reset, keys)


def _evaluation_key(settings: EpisodeEvaluationConfig) -> Any:
    key = jax.random.key(_SEED)
    return jax.random.fold_in(key, settings.seed) if settings.seed else key


def evaluate_episodes(
    environment: "Environment", network: Any, settings: EpisodeEvaluationConfig, split: str = "train"
) -> list[EvaluationResult]:
    """Evaluate a policy network with greedy actions, on a fixed set of episodes.

    The initial states depend only on the environment and the settings, so they are the same in all runs.

    Args:
        environment: The environment.
        network: The `PolicyNetwork`.
        settings: Number of episodes and seed. If the number is 0, nothing is evaluated.
        split: Name of the split in the result. `train` means that the episodes may also occur in training.

    Returns:
        A list with one result: the mean return, the mean length and, if the environment reports success, the
        success rate and its standard error. The list is empty if nothing is evaluated.
    """
    from phalanx.core.episodes import rollout_episodes

    num_episodes = settings.num_episodes
    if not num_episodes:
        return []
    states, observations = _reset(environment, _evaluation_key(settings), num_episodes)
    act = eqx.Partial(select_action, network)
    results = rollout_episodes(environment, act, states, observations, None, environment.max_episode_steps)
    metrics = {"episode_return": results.returns, "episode_length": results.lengths}
    if "success_mask" in results.episode_metrics:
        metrics["success_rate"] = results.episode_metrics["success_mask"]
    means = {name: float(np.mean(values)) for name, values in jax.device_get(metrics).items()}
    record: dict[str, Any] = {"split": split, "mode": "greedy", "num_episodes": num_episodes, **means}
    line = f"mean return {means['episode_return']:.4g}, mean length {means['episode_length']:.4g}"
    rate, error = means.get("success_rate"), ""
    if rate is not None:
        if num_episodes > 1:
            record["success_rate_se"] = math.sqrt(rate * (1 - rate) / (num_episodes - 1))
            error = f" ± {100 * record['success_rate_se']:.1f}"
        line = f"{100 * rate:.1f}{error}% of {format_count(num_episodes, 'episode')} solved, {line}"
    else:
        line = f"{format_count(num_episodes, 'episode')}, {line}"
    return [DictEvaluationResult(record, (f"{split}, greedy: {line}",))]


@functools.partial(jax.jit, static_argnums=2)
def _reset(environment: "Environment", key: Any, num_episodes: int) -> Any:
    return environment.batch_reset(jax.random.split(key, num_episodes))
