"""What the logger calls: the handler's interface.

The handlers themselves are in the `*_handler` modules; what becomes of one that raises is in `experiment`.
"""

from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]
"""What is told about a task's start, a step or an episode, by name."""
Metrics = Mapping[str, float]


class Handler:
    """One place where a run is written down; a handler overrides the events that concern it.

    A handler raises when it cannot do its work: the logger reports that and goes on without it.
    """

    def log_task_start(self, task_data: Data) -> None:
        """An episode begins."""

    def log_step(self, step_data: Data) -> None:
        """One step of one environment."""

    def log_episode_summary(self, summary_data: Data) -> None:
        """An episode is over."""

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Metrics of a whole batch at an update."""

    def close(self) -> None:
        """The run is over; nothing is logged after this."""


def scalars_of(data: Data) -> dict[str, float]:
    """The entries that are numbers (truth values too), for places that only know numbers."""
    return {name: float(value) for name, value in data.items() if is_scalar(value)}


def is_scalar(value: Any) -> bool:
    """Whether this is one number: Python's, NumPy's or a JAX array without axes."""
    if isinstance(value, int | float):
        return True
    return getattr(value, "shape", None) == () and getattr(value.dtype, "kind", "") in "biuf"
