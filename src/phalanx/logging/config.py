"""Logging settings, such as how often metrics and sampled episodes are logged, and in which format."""

from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from phalanx.config import Config


class LoggingConfig(Config):
    """Settings for an `ExperimentLogger` and its handlers."""

    log_frequency: int = Field(default=10, ge=0)
    """Metrics are logged once every `log_frequency` updates. 0 turns metrics off."""
    sample_frequency: int = Field(default=50, ge=0)
    """Sampled episodes are logged once every `sample_frequency` updates. 0 turns off sampled episodes and the
    episodes of the trained policy that are recorded at the end of a run."""
    num_samples: int = Field(default=3, ge=1)
    """Number of sampled episodes that are logged once every `sample_frequency` updates. Every episode is
    rendered, so large values slow down training."""
    log_format: Literal["json", "text", "structured", "pickle"] = "json"
    """File format for episodes, steps and tasks: JSON Lines (`json`), readable text (`text`), lines of
    `key=value` pairs (`structured`) or pickled dictionaries (`pickle`). Metrics and evaluations are always
    written as JSON Lines, which the report reads."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Level of console output. INFO shows tasks, episodes, metrics and evaluations, and DEBUG also shows the
    steps that are passed to `ExperimentLogger.log_step`. WARNING and ERROR show only log messages of at least
    that level."""
    compression: bool = True
    """Compress log files with gzip after they are rotated. Files are rotated only if the `rotate_bytes`
    argument of `FileHandler` is given."""
    include_full_states: bool = False
    """Include the arrays of the initial and final states in episode records."""
    step_fields: tuple[Literal["action", "reward", "grid_changes"], ...] = ()
    """Fields to write to the `steps` file for each step that your code passes to `ExperimentLogger.log_step`.
    Training does not log individual steps. If empty, only the steps selected by `log_key_moments` are
    written."""
    log_key_moments: bool = True
    """Write the steps that solve or end an episode to the `steps` file, even if `step_fields` is empty. Like
    `step_fields`, this applies only to steps that are passed to `ExperimentLogger.log_step`."""


@runtime_checkable
class HasLogging(Protocol):
    """A config with a `logging` section, such as the config of a training run."""

    @property
    def logging(self) -> LoggingConfig: ...


def logging_section(config: LoggingConfig | HasLogging | None) -> LoggingConfig:
    """Return the logging settings of a config, or the default settings if the config is None."""
    if config is None:
        return LoggingConfig()
    return config if isinstance(config, LoggingConfig) else config.logging
