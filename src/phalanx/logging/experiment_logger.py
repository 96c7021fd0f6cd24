"""`ExperimentLogger`: decides when to log, calls the handlers and isolates their errors."""

import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from phalanx.logging.aggregation import find_invalid_keys, get_update_step, sample_rows, summarize_batch
from phalanx.logging.config import HasLogging, LoggingConfig, logging_section
from phalanx.logging.handlers.handler import EpisodeCounter, Handler, Picture, Render
from phalanx.logging.records import Record

_LOG = logging.getLogger("phalanx.logging")


class ExperimentLogger:
    """Passes the events of a run to its handlers.

    If a handler raises, the first error is logged as a warning of the Python logger `phalanx.logging`, and
    training and the other handlers continue. The handler is called again at the next event, because the cause
    may be temporary, for example a full disk.

    Args:
        config: Logging settings, or a config with a `logging` section.
        handlers: Handlers by name. Events that a handler has no method for are skipped.
        render: Renders sampled states, as `Environment.render` does. Default: `_repr_svg_` or `_repr_html_`
            of the state.
    """

    def __init__(
        self,
        config: LoggingConfig | HasLogging,
        handlers: Mapping[str, Any],
        *,
        render: Render | None = None,
    ) -> None:
        self.settings = logging_section(config)
        self.handlers = dict(handlers)
        self.render = render
        self.failures: dict[str, int] = {}
        """Number of errors of each handler that has failed."""
        self._warned: set[str] = set()
        self._episode_counter = EpisodeCounter()
        _LOG.setLevel(self.settings.log_level)

    def __enter__(self) -> "ExperimentLogger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log_config(self, config: Any, metadata: Record | None = None) -> None:
        """Log the settings of the run, a config or a mapping, and metadata such as the machine."""
        self._notify("log_config", lambda handler: handler.log_config(config, metadata or {}))

    def log_task_start(self, task_data: Record) -> None:
        """Log the start of an episode: `task_id`, `episode_num` and other values."""
        self._notify("log_task_start", lambda handler: handler.log_task_start(task_data))

    def log_step(self, step_data: Record) -> None:
        """Log one step: any of `step_num`, `action`, `reward`, `done`, `before_state` and `after_state`."""
        self._notify("log_step", lambda handler: handler.log_step(step_data))

    def log_episode_summary(self, summary_data: Record) -> None:
        """Log a finished episode, with some of the fields of a sampled episode (see `log_batch_step`).

        If there is a `final_state`, its image is logged as `episode_0/final`, `episode_1/final`, ...
        """
        self._notify("log_episode_summary", lambda handler: handler.log_episode_summary(summary_data))
        step, index = self._episode_counter.next(summary_data)
        if summary_data.get("final_state") is not None:
            self.log_picture(f"episode_{index}/final", summary_data["final_state"], step)

    def log_evaluation(self, record: Record) -> None:
        """Log an evaluation: `step` (the update), `split`, `mode` and the metrics."""
        if not isinstance(record.get("step"), int):
            raise ValueError(f"an evaluation needs the number of its update as `step`, got {dict(record)!r}")
        self._notify("log_evaluation", lambda handler: handler.log_evaluation(record))

    def log_picture(self, name: str, picture: Any, step: int) -> None:
        """Log an image: SVG text, a uint8 array `[rows, columns, 3]`, or a state to be rendered."""
        image = picture if isinstance(picture, Picture) else Picture(picture, self.render)
        self._notify("log_picture", lambda handler: handler.log_picture(name, image, step))

    def log_batch_step(
        self,
        batch_data: Mapping[str, Any],
        sampled_episodes: Callable[[], Iterable[Record]] | None = None,
    ) -> None:
        """Log an update of batched training: metrics and sampled episodes when they are due.

        On updates that are not logged, nothing is computed or transferred. Task ids and states of another
        batch size are left out, with one warning.

        Args:
            batch_data: All keys are optional: `update_step` (a Python integer, because an array on a device
                would be transferred in every update); one value per environment in `episode_returns`,
                `episode_lengths`, `similarity_scores`, `success_mask`, `task_ids`, `initial_states`,
                `final_states`, `step_states` and `episode_mask` (environments that have finished an episode;
                others are ignored). Any other scalar is a metric.
            sampled_episodes: Returns the episodes to log, with the arguments of `log_episode_summary`. It is
                called only when a sample is due. Default: sample rows of `batch_data`.
        """
        update_step = get_update_step(batch_data)
        aggregate = _is_due(update_step, self.settings.log_frequency)
        sample = _is_due(update_step, self.settings.sample_frequency)
        episodes: Iterable[Record] = ()
        if aggregate or (sample and sampled_episodes is None):
            metrics, episodes = summarize_batch(
                self._drop_invalid_keys(batch_data),
                aggregate=aggregate,
                num_samples=self.settings.num_samples if sample and sampled_episodes is None else 0,
                sample_rows=self._sample_rows,
            )
            if aggregate:
                self._log_metrics(metrics, update_step)
        if sample and sampled_episodes is not None:
            episodes = sampled_episodes()
        for episode in episodes:
            self.log_episode_summary(episode)

    def close(self) -> None:
        """Close all handlers and log how often each one failed."""
        self._notify("close", lambda handler: handler.close())
        for name, times in self.failures.items():
            if times > 1:
                _LOG.warning("handler %r failed %d times in this run", name, times)

    def _log_metrics(self, metrics: dict[str, float], update_step: int) -> None:
        self._notify(
            "log_aggregated_metrics", lambda handler: handler.log_aggregated_metrics(metrics, update_step)
        )

    def _sample_rows(self, update_step: int, num_envs: int, num_samples: int, finished: Any) -> Any:
        return sample_rows(update_step, num_envs, num_samples, finished)

    def _notify(self, event: str, call: Callable[[Handler], None]) -> None:
        for name, handler in self.handlers.items():
            if not hasattr(handler, event):
                continue
            try:
                call(handler)
            # A handler may raise any error, which must not end a long run.
            except Exception as error:
                self._report(name, event, error)

    def _report(self, name: str, event: str, error: Exception) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] == 1:
            _LOG.warning(
                "handler %r failed in %s: %s: %s; training continues, and further errors of this handler "
                "are only counted",
                name,
                event,
                type(error).__name__,
                error,
            )

    def _drop_invalid_keys(self, batch_data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keys that can be logged; warn once about each other key."""
        invalid = find_invalid_keys(batch_data)
        for key, why in invalid.items():
            if key not in self._warned:
                self._warned.add(key)
                _LOG.warning("batch_data[%r] %s; left out", key, why)
        return {key: value for key, value in batch_data.items() if key not in invalid}


def _is_due(update_step: int, frequency: int) -> bool:
    return frequency > 0 and update_step % frequency == 0
