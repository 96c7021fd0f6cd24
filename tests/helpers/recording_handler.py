"""Handlers for tests: one records all events, the other always fails."""

from typing import Any

from phalanx.logging import Handler


class RecordingHandler(Handler):
    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.steps: list[Any] = []
        self.episodes: list[Any] = []
        self.metrics: dict[int, Any] = {}
        self.closed = False

    def log_task_start(self, task_data: Any) -> None:
        self.tasks.append(task_data)

    def log_step(self, step_data: Any) -> None:
        self.steps.append(step_data)

    def log_episode_summary(self, summary_data: Any) -> None:
        self.episodes.append(summary_data)

    def log_aggregated_metrics(self, metrics: Any, step: int) -> None:
        self.metrics[step] = metrics

    def close(self) -> None:
        self.closed = True


class BrokenHandler(Handler):
    def log_task_start(self, task_data: Any) -> None:
        raise RuntimeError("no space left")

    log_step = log_episode_summary = log_task_start  # type: ignore[assignment]

    def log_aggregated_metrics(self, metrics: Any, step: int) -> None:
        raise RuntimeError("no space left")

    def close(self) -> None:
        raise RuntimeError("cannot close")
