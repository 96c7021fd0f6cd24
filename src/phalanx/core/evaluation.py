"""Settings and results of evaluations, which environments and algorithms define."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from phalanx.config import Config


class EvaluationConfig(Config):
    """Settings for evaluations during training."""

    every: int = Field(default=20, ge=0)
    """Updates between evaluations. With 0, a run is evaluated only before the first update and after the
    last one."""


class EpisodeEvaluationConfig(EvaluationConfig):
    """Settings for evaluations on episodes that are not trained on."""

    num_episodes: int = Field(default=20, ge=0)
    """Episodes per task. 0 disables the evaluation on episodes."""


@runtime_checkable
class EvaluationResult(Protocol):
    """Result of an evaluation, for `evaluations.jsonl` and for the terminal."""

    def as_record(self) -> dict[str, Any]:
        """Return a JSON record with at least `split`, `mode` and the metrics.

        If there are baselines, such as a random policy, the record has them under `baselines`.
        """

    def describe(self) -> Sequence[str]:
        """Describe the result in a few lines of text."""


@runtime_checkable
class TaskResults(EvaluationResult, Protocol):
    """Result that also has the results of single tasks, for `phalanx eval --per-task`."""

    def task_records(self) -> list[dict[str, Any]]:
        """Return one JSON record per task."""


@runtime_checkable
class SavableResult(EvaluationResult, Protocol):
    """Result with files, such as answers to submit. `phalanx eval` saves them to `RUN/submissions/NAME`."""

    @property
    def name(self) -> str:
        """Name for the folder."""

    def save(self, folder: Path, title: str | None = None) -> None:
        """Save the files to a folder.

        Args:
            folder: Folder to create.
            title: Heading in the report of the run; None uses a default.
        """
