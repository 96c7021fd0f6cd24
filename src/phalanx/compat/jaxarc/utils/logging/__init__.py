"""`jaxarc.utils.logging`: the experiment logger and its handlers, as in JaxARC's design document for batched
logging."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from phalanx.compat.jaxarc.envs.config import JaxArcConfig, LoggingConfig
from phalanx.logging import experiment_logger
from phalanx.logging.aggregation import UpdateSummary, summarize_update
from phalanx.logging.handlers import console, file
from phalanx.logging.handlers.svg import SVGHandler
from phalanx.logging.handlers.wandb import WandbHandler

__all__ = [
    "ExperimentLogger",
    "FileHandler",
    "MinimalAsyncLogger",
    "RichHandler",
    "SVGHandler",
    "WandbHandler",
]


class ExperimentLogger(experiment_logger.ExperimentLogger):
    """Experiment logger that accepts JaxARC's configs and samples episodes in the same way as JaxARC."""

    def __init__(
        self, config: LoggingConfig | JaxArcConfig, handlers: Mapping[str, Any], **options: Any
    ) -> None:
        self.config = JaxArcConfig(logging=config) if isinstance(config, LoggingConfig) else config
        super().__init__(self.config.logging.to_phalanx(), handlers, **options)

    def log_task_start(self, task_data: Mapping[str, Any]) -> None:
        """Log the start of an episode if `log_episode_start` is set."""
        if self.config.logging.log_episode_start:
            super().log_task_start(task_data)

    def log_episode_summary(self, summary_data: Mapping[str, Any]) -> None:
        """Log a finished episode if `log_episode_end` is set."""
        if self.config.logging.log_episode_end:
            super().log_episode_summary(summary_data)

    def _aggregate_batch_metrics(self, batch_data: Mapping[str, Any]) -> dict[str, float]:
        return self._summarize(batch_data, True, 0).metrics

    def _sample_episodes_from_batch(self, batch_data: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self._summarize(batch_data, False, self.config.logging.num_samples).episodes

    def _summarize(self, batch_data: Mapping[str, Any], aggregate: bool, num_samples: int) -> UpdateSummary:
        metrics, episodes = summarize_update(
            batch_data, aggregate=aggregate, num_samples=num_samples, sample_rows=_sample_rows
        )
        return UpdateSummary(
            {name: value for name, value in metrics.items() if _is_selected(name, self.config.logging)},
            # JaxARC's sampled episodes always have a similarity.
            [{"final_similarity": 0.0} | episode for episode in episodes],
        )


MinimalAsyncLogger = ExperimentLogger
"""Alias of `ExperimentLogger`, which logs synchronously. Data is transferred from the device only for updates
that are logged."""


class FileHandler(file.FileHandler):
    """A file handler that accepts JaxARC's configs."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        config: LoggingConfig | JaxArcConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(output_dir, **options)
        self.settings = _logging_section(config).to_phalanx()
        self.log_config(config, {})


class RichHandler(console.RichHandler):
    """A console handler that accepts JaxARC's configs."""

    def __init__(self, config: LoggingConfig | JaxArcConfig | None = None, **options: Any) -> None:
        super().__init__(_logging_section(config).to_phalanx(), **options)


def _logging_section(config: LoggingConfig | JaxArcConfig | None) -> LoggingConfig:
    if config is None:
        return LoggingConfig()
    return config if isinstance(config, LoggingConfig) else config.logging


def _sample_rows(update_step: int, num_envs: int, num_samples: int, finished: Any) -> Any:
    import jax

    key = jax.random.PRNGKey(np.uint32(update_step & 0xFFFFFFFF))
    if finished is None:
        if num_samples >= num_envs:
            return np.arange(num_envs)
        return np.asarray(jax.random.choice(key, num_envs, shape=(num_samples,), replace=False))
    order = np.asarray(jax.random.permutation(key, num_envs))
    return order[np.argsort(~finished[order], kind="stable")][:num_samples]


_SWITCHES = {
    "reward_": "log_aggregated_rewards",
    "similarity_": "log_aggregated_similarity",
    "episode_length_": "log_episode_lengths",
    "success_rate": "log_success_rates",
    "gradient_norm": "log_gradient_norms",
}
"""Maps prefixes of metric names to the settings that enable these metrics."""


def _is_selected(name: str, settings: LoggingConfig) -> bool:
    for prefix, switch in _SWITCHES.items():
        if name.startswith(prefix):
            return bool(getattr(settings, switch))
    return settings.log_loss_metrics or not name.endswith("loss")
