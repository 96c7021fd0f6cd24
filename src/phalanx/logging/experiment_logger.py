"""The experiment logger: what a training loop calls, and how its handlers are kept apart.

What a batch's metrics are is in `batch_data`; where they are written is in `handlers`.
"""

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from phalanx.logging.aggregation import misfits, read_batch, update_step_of
from phalanx.logging.config import LoggedConfig, LoggingConfig, logged_config, validate_batched_logging_config
from phalanx.logging.handlers.handler import EpisodeCounter, Handler, Picture, Render
from phalanx.logging.records import Data

_LOG = logging.getLogger("phalanx.logging")


class ExperimentLogger:
    """Passes what happens in a run on to its handlers.

    A handler that raises is reported once, by a warning of the Python logger `phalanx.logging`; it is called
    again next time (a full disk may have room again), and neither the others nor the training notice.

    `render` makes pictures of sampled states for handlers that want them, as `Environment.render` does;
    without it, a state draws itself by its `_repr_svg_` or `_repr_html_`.
    """

    def __init__(
        self,
        config: LoggingConfig | LoggedConfig,
        handlers: Mapping[str, Handler],
        *,
        render: Render | None = None,
    ) -> None:
        self.config = logged_config(config)
        self.handlers = dict(handlers)
        self.render = render
        self.failures: dict[str, int] = {}
        """How many times each handler has failed; handlers that have not are left out."""
        self._reported: set[str] = set()
        self._places = EpisodeCounter()
        if errors := validate_batched_logging_config(self.config.logging):
            raise ValueError("; ".join(f"logging.{error}" for error in errors))
        _LOG.setLevel(self.config.logging.log_level)

    def __enter__(self) -> "ExperimentLogger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log_config(self, config: Any, facts: Data | None = None) -> None:
        """The run's settings, a config model or a mapping; and facts: machine, data, size of the network."""
        self._tell("log_config", lambda handler: handler.log_config(config, facts or {}))

    def log_task_start(self, task_data: Data) -> None:
        """An episode begins: `task_id`, `episode_num` and whatever else is known."""
        if self.config.logging.log_episode_start:
            self._tell("log_task_start", lambda handler: handler.log_task_start(task_data))

    def log_step(self, step_data: Data) -> None:
        """One step: `step_num`, `action`, `reward`, `done`, `before_state`, `after_state`, where known."""
        self._tell("log_step", lambda handler: handler.log_step(step_data))

    def log_episode_summary(self, summary_data: Data) -> None:
        """An episode is over: the fields of a sampled episode (see `log_batch_step`), or some of them.

        Where its `final_state` is known, handlers are given a picture of it, as `episode_0/final` and so on.
        """
        if not self.config.logging.log_episode_end:
            return
        self._tell("log_episode_summary", lambda handler: handler.log_episode_summary(summary_data))
        step, place = self._places.next(summary_data)
        if summary_data.get("final_state") is not None:
            self.log_picture(f"episode_{place}/final", summary_data["final_state"], step)

    def log_evaluation(self, record: Data) -> None:
        """Figures on held-out tasks at an update: `step`, `split`, `mode`, and whatever was measured."""
        if not isinstance(record.get("step"), int):
            raise ValueError(f"an evaluation needs the update that it is of as `step`, got {dict(record)!r}")
        self._tell("log_evaluation", lambda handler: handler.log_evaluation(record))

    def log_picture(self, name: str, picture: Any, step: int) -> None:
        """A picture: SVG text, an array `[rows, columns, 3]` of bytes, or a state to be drawn."""
        shown = picture if isinstance(picture, Picture) else Picture(picture, self.render)
        self._tell("log_picture", lambda handler: handler.log_picture(name, shown, step))

    def log_batch_step(self, batch_data: Mapping[str, Any]) -> None:
        """Log an update of batched training.

        Every key is optional. `update_step` (a Python integer: one on a device would have to be fetched at
        every update); by environment `episode_returns`, `episode_lengths`, `similarity_scores`,
        `success_mask`, `task_ids`, `initial_states`, `final_states`, `step_states`, and `episode_mask` (which
        of them have finished an episode; the others count for nothing). Any other key with a single number
        is a metric of its own name. Ids or states of another batch are left out and reported once.

        Nothing is computed or transferred on an update that logs nothing.
        """
        settings = self.config.logging
        update_step = update_step_of(batch_data)
        aggregate = settings.batched_logging_enabled and update_step % settings.log_frequency == 0
        sample = settings.sampling_enabled and update_step % settings.sample_frequency == 0
        if not aggregate and not sample:
            return
        reading = read_batch(self._fitting(batch_data), settings, aggregate=aggregate, sample=sample)
        if aggregate:
            self._tell(
                "log_aggregated_metrics",
                lambda handler: handler.log_aggregated_metrics(reading.metrics, update_step),
            )
        for episode in reading.episodes:
            self.log_episode_summary(episode)

    def close(self) -> None:
        """Close every handler, and say which of them failed how often."""
        self._tell("close", lambda handler: handler.close())
        for name, times in self.failures.items():
            if times > 1:
                _LOG.warning("handler %r failed %d times in this run", name, times)

    def _aggregate_batch_metrics(self, batch_data: Mapping[str, Any]) -> dict[str, float]:
        return read_batch(batch_data, self.config.logging, aggregate=True, sample=False).metrics

    def _sample_episodes_from_batch(self, batch_data: Mapping[str, Any]) -> list[dict[str, Any]]:
        return read_batch(batch_data, self.config.logging, aggregate=False, sample=True).episodes

    def _tell(self, event: str, call: Callable[[Handler], None]) -> None:
        for name, handler in self.handlers.items():
            try:
                call(handler)
            # A handler may be anyone's and fail in any way; a run of days must not end with it.
            except Exception as error:
                self._report(name, event, error)

    def _report(self, name: str, event: str, error: Exception) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] == 1:
            _LOG.warning(
                "handler %r failed in %s: %s: %s; training goes on, and its later failures are only counted",
                name,
                event,
                type(error).__name__,
                error,
            )

    def _fitting(self, batch_data: Mapping[str, Any]) -> Mapping[str, Any]:
        """What can be logged of it; the rest is reported once."""
        strange = misfits(batch_data)
        for key, why in strange.items():
            if key not in self._reported:
                self._reported.add(key)
                _LOG.warning("batch_data[%r] %s; left out", key, why)
        return {key: value for key, value in batch_data.items() if key not in strange}


MinimalAsyncLogger = ExperimentLogger
"""The name of seed 2. Nothing here is asynchronous: an update that logs nothing costs nothing."""
