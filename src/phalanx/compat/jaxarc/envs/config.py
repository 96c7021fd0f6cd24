"""`jaxarc.envs.config`: JaxARC's config classes."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_serializer, model_validator

from phalanx.arc.config import (
    ActionConfig as UnifiedActionConfig,
    ArcConfig,
    DatasetConfig as UnifiedDatasetConfig,
    EpisodeConfig as EnvironmentConfig,
    RewardConfig,
)
from phalanx.compat.renamed import RenamedFields
from phalanx.config import Config
from phalanx.logging import config as phalanx_config

__all__ = [
    "EnvironmentConfig",
    "JaxArcConfig",
    "LoggingConfig",
    "RewardConfig",
    "UnifiedActionConfig",
    "UnifiedDatasetConfig",
    "validate_batched_logging_config",
]

_LOG = logging.getLogger("phalanx.logging")


class LoggingConfig(RenamedFields, Config):
    """JaxARC's logging settings."""

    renamed: ClassVar = dict.fromkeys(
        ("queue_size", "worker_threads", "batch_size", "flush_interval", "enable_compression"),
        "nothing: logging is synchronous",
    )

    structured_logging: bool = True
    """Write records in the format `log_format`. If False, write human-readable text."""
    log_format: Literal["json", "text", "structured", "pickle"] = "json"
    """Format of the records of episodes, steps and tasks: JSON Lines (`json`), human-readable text (`text`),
    lines of `key=value` pairs (`structured`) or pickled dictionaries (`pickle`)."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Level of console output."""
    compression: bool = True
    """Compress log files with gzip after they are rotated."""
    include_full_states: bool = False
    """Include the arrays of initial and final states in episode records."""

    log_operations: bool = False
    """Write the action of each step."""
    log_grid_changes: bool = False
    """Write the cells that each step changes."""
    log_rewards: bool = False
    """Write the reward of each step."""
    log_episode_start: bool = True
    """Log the start of each episode."""
    log_episode_end: bool = True
    """Log a summary of each episode."""
    log_key_moments: bool = True
    """Write a record of each step that solves or ends an episode."""

    log_frequency: int = 10
    """Aggregated metrics are logged once every `log_frequency` updates, if `batched_logging_enabled` is
    set."""

    batched_logging_enabled: bool = False
    """Log metrics that are aggregated over the batch of environments."""
    sampling_enabled: bool = True
    """Log a sample of the episodes in the batch."""
    num_samples: int = 3
    """Number of episodes that are sampled and logged once every `sample_frequency` updates."""
    sample_frequency: int = 50
    """Sampled episodes are logged once every `sample_frequency` updates, if `sampling_enabled` is set."""

    log_aggregated_rewards: bool = True
    """Log the mean, standard deviation, maximum and minimum of episode returns."""
    log_aggregated_similarity: bool = True
    """Log the mean, standard deviation, maximum and minimum of final similarities."""
    log_loss_metrics: bool = True
    """Log scalars whose name ends with `loss`."""
    log_gradient_norms: bool = True
    """Log `gradient_norm`."""
    log_episode_lengths: bool = True
    """Log the mean, standard deviation, maximum and minimum of episode lengths."""
    log_success_rates: bool = True
    """Log the success rate."""

    def to_phalanx(self) -> phalanx_config.LoggingConfig:
        """Convert the settings to a `LoggingConfig` of `phalanx.logging`.

        Raises:
            ValueError: If a setting is invalid.
        """
        if errors := validate_batched_logging_config(self):
            raise ValueError("; ".join(f"logging.{error}" for error in errors))
        fields = {
            "action": self.log_operations,
            "reward": self.log_rewards,
            "grid_changes": self.log_grid_changes,
        }
        return phalanx_config.LoggingConfig(
            log_frequency=self.log_frequency if self.batched_logging_enabled else 0,
            sample_frequency=self.sample_frequency if self.sampling_enabled else 0,
            num_samples=self.num_samples,
            log_format=self.log_format if self.structured_logging else "text",
            log_level=self.log_level,
            compression=self.compression,
            include_full_states=self.include_full_states,
            step_fields=tuple(name for name, is_logged in fields.items() if is_logged),
            log_key_moments=self.log_key_moments,
        )


class JaxArcConfig(ArcConfig):
    """An ARC config with a `logging` section. The `episode` section is called `environment`."""

    logging: LoggingConfig = LoggingConfig()
    """Settings for the experiment logger."""

    @model_validator(mode="before")
    @classmethod
    def _reject_old_names(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "environment" in values:
            return {"episode" if name == "environment" else name: value for name, value in values.items()}
        return values

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Any) -> dict[str, Any]:
        return {"environment" if name == "episode" else name: value for name, value in handler(self).items()}

    def __repr_args__(self) -> Any:
        for name, value in super().__repr_args__():
            yield "environment" if name == "episode" else name, value

    @property
    def environment(self) -> EnvironmentConfig:
        """Settings for an episode: the `episode` section, under its JaxARC name."""
        return self.episode


def validate_batched_logging_config(config: LoggingConfig) -> list[str]:
    """Return the errors in the settings for batched logging, one sentence each.

    >>> validate_batched_logging_config(LoggingConfig(log_frequency=0))
    ['log_frequency must be positive']
    """
    errors = [
        f"{name} must be positive"
        for name in ("num_samples", "sample_frequency", "log_frequency")
        if getattr(config, name) <= 0
    ]
    if config.num_samples > 1000:
        _LOG.warning("num_samples is very large: %d", config.num_samples)
    return errors
