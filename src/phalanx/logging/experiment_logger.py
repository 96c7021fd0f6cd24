"""`ExperimentLogger`, which decides when to log, calls the handlers and isolates their errors."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from phalanx.logging.aggregation import UpdateSummary, find_invalid_keys, get_update_step, summarize_update
from phalanx.logging.config import HasLogging, LoggingConfig, logging_section
from phalanx.logging.handlers.handler import EpisodeIndexAssigner, Picture, Render
from phalanx.logging.records import Record

_LOG = logging.getLogger("phalanx.logging")


class ExperimentLogger:
    """Passes the events of a run to handlers.

    If a handler raises an exception, training and the other handlers continue. The first exception of each
    handler is logged as a warning by the `phalanx.logging` Python logger. The handler is called again at the
    next event, because the cause may be temporary, for example a full disk.

    Args:
        config: Logging settings, or a config with a `logging` section.
        handlers: Handlers by name. A handler that has no method for an event is not called for that event.
        render: Function that renders sampled states, such as `Environment.render`. If None, the state's
            `_repr_svg_` or `_repr_html_` is called.
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
        """Number of exceptions that each handler has raised, by handler name. Handlers that have not failed
        are not included."""
        self._warned: set[str] = set()
        self._episode_indices = EpisodeIndexAssigner()
        _LOG.setLevel(self.settings.log_level)

    def __enter__(self) -> "ExperimentLogger":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def log_config(self, config: Any, metadata: Record | None = None) -> None:
        """Log the settings of the run, and metadata such as information about the machine.

        Args:
            config: A `Config` or a mapping.
            metadata: Metadata by name. None means no metadata.
        """
        self._notify("log_config", config, metadata or {})

    def log_task_start(self, task_data: Record) -> None:
        """Log the start of an episode. `task_data` contains `task_id`, `episode_num` and any other fields."""
        self._notify("log_task_start", task_data)

    def log_step(self, step_data: Record) -> None:
        """Log one step of one environment.

        `step_data` contains any of `step_num`, `action`, `reward`, `done`, `success`, `before_state` and
        `after_state`.
        """
        self._notify("log_step", step_data)

    def log_episode_summary(self, summary_data: Record) -> None:
        """Log a finished episode.

        If `summary_data` has a `final_state`, the state is also logged as an image. The image is named
        `episode_0/final` for the first episode of an update, `episode_1/final` for the second one, and so on.

        Args:
            summary_data: Any of `episode_num` (the update in which the episode was sampled),
                `environment_id`, `task_id`, `total_reward`, `total_steps`, `final_similarity`, `success`,
                `initial_state`, `final_state` and `step_states`.
        """
        self._notify("log_episode_summary", summary_data)
        step, index = self._episode_indices.next(summary_data)
        if summary_data.get("final_state") is not None:
            self.log_picture(f"episode_{index}/final", summary_data["final_state"], step)

    def log_evaluation(self, record: Record) -> None:
        """Log an evaluation.

        Args:
            record: `step` (the update number, which is required), `split`, `mode` and the metrics.

        Raises:
            ValueError: If `step` is missing or not an integer.
        """
        if not isinstance(record.get("step"), int):
            raise ValueError(f"an evaluation needs the number of its update as `step`, got {dict(record)!r}")
        self._notify("log_evaluation", record)

    def log_picture(self, name: str, picture: Any, step: int) -> None:
        """Log an image.

        Args:
            name: Name of the image.
            picture: SVG text, a uint8 array `[height, width, 3]`, a `Picture`, or a state to be rendered.
            step: Update number.
        """
        image = picture if isinstance(picture, Picture) else Picture(picture, self.render)
        self._notify("log_picture", name, image, step)

    def log_batch_step(
        self,
        batch_data: Mapping[str, Any],
        sampled_episodes: Callable[[], Iterable[Record]] | None = None,
    ) -> None:
        """Log one update of batched training.

        Metrics are logged every `log_frequency` updates and sampled episodes every `sample_frequency`
        updates. For all other updates, nothing is computed or transferred to the host. Task ids and states
        are omitted with a warning if they do not have one entry per environment.

        Args:
            batch_data: Values by name. All keys are optional. `update_step` should be a Python integer,
                because an array on a device would be transferred in every update. `episode_returns`,
                `episode_lengths`, `similarity_scores`, `success_mask`, `task_ids`, `initial_states`,
                `final_states` and `step_states` have one entry per environment. `episode_mask` is true for
                the environments that have finished an episode; other environments are ignored. Scalars with
                any other name are logged as metrics.
            sampled_episodes: Function that returns the episodes to log, as records for `log_episode_summary`.
                It is called only when sampled episodes are due. If None, episodes are sampled from
                `batch_data`.
        """
        update_step = get_update_step(batch_data)
        aggregate = _is_due(update_step, self.settings.log_frequency)
        sample = _is_due(update_step, self.settings.sample_frequency)
        num_samples = self.settings.num_samples if sample and sampled_episodes is None else 0
        episodes: Iterable[Record] = ()
        if aggregate or num_samples:
            metrics, episodes = self._summarize(self._drop_invalid_keys(batch_data), aggregate, num_samples)
            if aggregate:
                self._notify("log_aggregated_metrics", metrics, update_step)
        if sample and sampled_episodes is not None:
            episodes = sampled_episodes()
        for episode in episodes:
            self.log_episode_summary(episode)

    def close(self) -> None:
        """Close all handlers.

        For each handler that failed more than once, log a warning with the number of failures. The first
        failure of a handler is logged when it occurs.
        """
        self._notify("close")
        for name, times in self.failures.items():
            if times > 1:
                _LOG.warning("handler %r failed %d times in this run", name, times)

    def _summarize(self, batch_data: Mapping[str, Any], aggregate: bool, num_samples: int) -> UpdateSummary:
        return summarize_update(batch_data, aggregate=aggregate, num_samples=num_samples)

    def _notify(self, event: str, *arguments: Any) -> None:
        """Call the method named `event` of each handler that has one. Log the first error of each handler."""
        for name, handler in self.handlers.items():
            try:
                if (method := getattr(handler, event, None)) is not None:
                    method(*arguments)
            # A handler may raise any error, which must not end a long run.
            except Exception as error:
                self.failures[name] = self.failures.get(name, 0) + 1
                if self.failures[name] == 1:
                    _LOG.warning(
                        f"handler {name!r} failed in {event}: {type(error).__name__}: {error}; training "
                        "continues, and further errors of this handler are only counted"
                    )

    def _drop_invalid_keys(self, batch_data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `batch_data` without the keys that cannot be logged. Warn once about each of these keys."""
        invalid = find_invalid_keys(batch_data)
        for key, why in invalid.items():
            if key not in self._warned:
                self._warned.add(key)
                _LOG.warning("batch_data[%r] %s; left out", key, why)
        return {key: value for key, value in batch_data.items() if key not in invalid}


def _is_due(update_step: int, frequency: int) -> bool:
    return frequency > 0 and update_step % frequency == 0
