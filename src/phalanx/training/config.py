"""Settings that every training run has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from phalanx.config import PRESET_FOLDER, Config, load_config
from phalanx.core.evaluation import EvaluationConfig
from phalanx.logging.config import LoggingConfig

AnyRunConfig = TypeVar("AnyRunConfig", bound="RunConfig")


class CheckpointConfig(Config):
    """When to save checkpoints and which ones to keep. The last update is always saved."""

    every: int = Field(default=50, ge=1)
    """Updates between checkpoints."""
    minutes: float | None = Field(default=10.0, gt=0)
    """Longest time between checkpoints, in minutes. None disables this limit."""
    keep: int = Field(default=2, ge=1)
    """Number of newest checkpoints to keep."""
    best_metric: str | None = None
    """Evaluation metric, such as `success_rate`, by which the best checkpoint is kept in addition to the
    newest ones. An evaluation with a new best value saves a checkpoint; `RUN@best` refers to it."""
    best_mode: Literal["max", "min"] = "max"
    """Set to `min` if lower values of `best_metric` are better."""
    renamed_settings: ClassVar[Mapping[str, str]] = {"best": "best_metric"}


class RunConfig(Config):
    """Base class for the settings of a training run. Algorithms add their own."""

    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluations during training."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    logging: LoggingConfig = LoggingConfig()
    """Metrics and sampled episodes."""

    @classmethod
    def load(
        cls: type[AnyRunConfig], preset: str | Path | None = None, overrides: Sequence[str] = ()
    ) -> AnyRunConfig:
        """Create a config from a preset and overrides.

        Args:
            preset: Name of a preset or path of a YAML file. Without it, the preset `default` is used if the
                class has one.
            overrides: Settings as `key=value`.
        """
        group = cls.preset_group
        if preset is None and group and (PRESET_FOLDER / group / "default.yaml").is_file():
            preset = "default"
        return load_config(cls, preset, overrides)
