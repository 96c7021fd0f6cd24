"""What is logged, how often and in which form.

Where it goes is decided by the handlers that an `ExperimentLogger` is given.
"""

import logging
from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, runtime_checkable

from phalanx.config import Config

_LOG = logging.getLogger("phalanx.logging")

_ASYNC = "was removed: logging is synchronous, with one transfer to the host for each update that logs"


class LoggingConfig(Config):
    """All logging behavior and formats."""

    preset_group = "logging"
    removed_settings: ClassVar[Mapping[str, str]] = {
        "queue_size": _ASYNC,
        "worker_threads": _ASYNC,
        "batch_size": f"{_ASYNC}; the number of environments is a setting of the training",
        "flush_interval": f"{_ASYNC}; every line is flushed as it is written",
        "enable_compression": f"{_ASYNC}; `compression` compresses rotated files",
    }
    """Settings that older files may still have, and what became of them."""

    structured_logging: bool = True
    """Episodes, steps and tasks as records for programs; off, as text for people whatever `log_format` is."""
    log_format: Literal["json", "text", "structured"] = "json"
    """JSON lines, sentences, or `key=value` lines; the aggregated metrics are always JSON lines."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The console shows single steps at DEBUG, tasks, episodes and metrics at INFO, else complaints only."""
    compression: bool = True
    """Compress the files that a rotation has closed."""
    include_full_states: bool = False
    """Write the arrays of the initial and final states into the episodes' records."""

    log_operations: bool = False
    """Write the action of every step that is logged on its own."""
    log_grid_changes: bool = False
    """Write the cells that a step changed."""
    log_rewards: bool = False
    """Write the reward of every step that is logged on its own."""
    log_episode_start: bool = True
    """Pass the start of each task on to the handlers."""
    log_episode_end: bool = True
    """Pass the summary of each episode on to the handlers."""
    log_key_moments: bool = True
    """Write steps that end an episode or solve it, even where other steps are not written."""

    log_frequency: int = 10
    """Aggregate the metrics of a batch every so many updates."""

    batched_logging_enabled: bool = False
    """Aggregate the metrics of batches at all."""
    sampling_enabled: bool = True
    """Log a few episodes of a batch one by one."""
    num_samples: int = 3
    """How many episodes of a batch are sampled."""
    sample_frequency: int = 50
    """Sample episodes every so many updates."""

    log_aggregated_rewards: bool = True
    """Mean, deviation, greatest and least episode return."""
    log_aggregated_similarity: bool = True
    """Mean, deviation, greatest and least final similarity."""
    log_loss_metrics: bool = True
    """`policy_loss`, `value_loss` and every other scalar whose name ends in `loss`."""
    log_gradient_norms: bool = True
    """`gradient_norm`."""
    log_episode_lengths: bool = True
    """Mean, deviation, greatest and least episode length."""
    log_success_rates: bool = True
    """The share of episodes that succeeded."""


class ExperimentConfig(Config):
    """A config that has nothing but its `logging` section."""

    logging: LoggingConfig = LoggingConfig()


@runtime_checkable
class LoggedConfig(Protocol):
    """Any config with a `logging` section, such as a training run's."""

    @property
    def logging(self) -> LoggingConfig: ...


def logged_config(config: LoggingConfig | LoggedConfig) -> LoggedConfig:
    """The config itself if it has a `logging` section; a bare section gets a config around it."""
    return ExperimentConfig(logging=config) if isinstance(config, LoggingConfig) else config


def validate_batched_logging_config(config: LoggingConfig) -> list[str]:
    """What is wrong with the settings of batched logging, one sentence each; empty if nothing is.

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
