"""`jaxarc.envs.config`: JaxARC's names of the ARC config and its sections."""

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from phalanx.arc.config import (
    ActionConfig as UnifiedActionConfig,
    ArcConfig,
    DatasetConfig as UnifiedDatasetConfig,
    EpisodeConfig as EnvironmentConfig,
    RewardConfig,
)
from phalanx.logging.config import LoggingConfig, validate_batched_logging_config

__all__ = [
    "EnvironmentConfig",
    "JaxArcConfig",
    "LoggingConfig",
    "RewardConfig",
    "UnifiedActionConfig",
    "UnifiedDatasetConfig",
    "validate_batched_logging_config",
]


class JaxArcConfig(ArcConfig):
    """An ARC config with a `logging` section, whose section `episode` can also be given as `environment`."""

    logging: LoggingConfig = LoggingConfig()
    """Settings of the experiment logger."""

    @model_validator(mode="before")
    @classmethod
    def _reject_old_names(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "environment" in values:
            return {"episode" if name == "environment" else name: value for name, value in values.items()}
        return values

    @property
    def environment(self) -> EnvironmentConfig:
        """The section `episode`."""
        return self.episode
