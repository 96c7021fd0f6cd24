"""Settings of evaluations, protocols of their results, and the evaluation of policy networks on episodes."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from pydantic import Field

from phalanx.config import Config
from phalanx.nn.policy_network import select_action

if TYPE_CHECKING:
    from phalanx.core.environment import Environment

_SEED = 0x5EED
"""Seed of the episodes of `evaluate_episodes`. It is the same for all runs."""


class EvaluationConfig(Config):
    """Settings for evaluations during training."""

    every: int = Field(default=20, ge=0)
    """Number of updates between two evaluations. If 0, a run is evaluated only before the first update and
    after the last update."""


class EpisodeEvaluationConfig(EvaluationConfig):
    """Settings for evaluations on episodes that are not used for training."""

    num_episodes: int = Field(default=20, ge=0)
    """Number of episodes per task. 0 disables the evaluation on episodes."""


@runtime_checkable
class EvaluationResult(Protocol):
    """Result of an evaluation, which is written to `evaluations.jsonl` and printed in the terminal."""

    def as_record(self) -> dict[str, Any]:
        """Return a JSON record with at least `split`, `mode` and the metrics.

        If there are baselines, such as a random policy, their results are under the key `baselines`.
        """

    def describe(self) -> Sequence[str]:
        """Return a description of the result, as a few lines of text."""


@runtime_checkable
class TaskResults(EvaluationResult, Protocol):
    """Evaluation result that also contains the results of each task, for `phalanx eval --per-task`."""

    def task_records(self) -> list[dict[str, Any]]:
        """Return one JSON record per task."""


@runtime_checkable
class SavableResult(EvaluationResult, Protocol):
    """Evaluation result that can be saved as files, such as answers to submit to a benchmark.

    `phalanx eval` saves the files to `RUN/submissions/NAME`, where `NAME` is the property `name`.
    """

    @property
    def name(self) -> str:
        """Name of the folder for the files."""

    def save(self, folder: Path, title: str | None = None) -> None:
        """Save the files to a folder.

        Args:
            folder: Folder to create.
            title: Heading in the report of the run. None uses a default title.
        """


@dataclasses.dataclass(frozen=True)
class EvaluationRecord:
    """Evaluation result that consists of a record and, optionally, lines of text."""

    record: dict[str, Any]
    lines: tuple[str, ...] = ()
    """Description of the result. If it is empty, the numbers of the record are listed instead."""

    def as_record(self) -> dict[str, Any]:
        """Return the record."""
        return self.record

    def describe(self) -> Sequence[str]:
        """Return `lines`. If `lines` is empty, return one line with the numbers of the record."""
        if self.lines:
            return self.lines
        numbers = {name: value for name, value in self.record.items() if isinstance(value, int | float)}
        text = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        return (f"{self.record['split']}, {self.record['mode']}: {text}",)


def evaluate_episodes(
    environment: "Environment", network: Any, settings: EvaluationConfig
) -> list[EvaluationResult]:
    """Evaluate a policy network with greedy actions, on a set of episodes that is the same in all runs.

    Args:
        environment: The environment.
        network: The `PolicyNetwork`.
        settings: An `EpisodeEvaluationConfig`. With `num_episodes=0`, nothing is evaluated.

    Returns:
        One result with the mean return, length and success rate, or an empty list if nothing is evaluated.
    """
    from phalanx.core.episodes import rollout_episodes

    num_episodes = getattr(settings, "num_episodes", 0)
    if not num_episodes:
        return []
    states, observations = _reset(environment, jax.random.split(jax.random.key(_SEED), num_episodes))
    act = eqx.Partial(select_action, network)
    results = rollout_episodes(environment, act, states, observations, None, environment.max_episode_steps)
    metrics = {"episode_return": results.returns, "episode_length": results.lengths}
    if "success_mask" in results.episode_metrics:
        metrics["success_rate"] = results.episode_metrics["success_mask"]
    means = {name: float(np.mean(values)) for name, values in jax.device_get(metrics).items()}
    return [EvaluationRecord({"split": "train", "mode": "greedy", "num_episodes": num_episodes, **means})]


@eqx.filter_jit
def _reset(environment: "Environment", keys: Any) -> Any:
    return environment.batch_reset(keys)
