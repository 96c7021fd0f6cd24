"""`Handler`, the base class for handlers, and `Picture`, an image passed to handlers."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from phalanx.logging.records import Metrics, Record

Render = Callable[[Any, str], Any]
"""Function such as `Environment.render`: `render(state, mode)` renders a state in `svg` or `rgb_array` mode.

It returns None if it does not support the mode.
"""

_SVG = re.compile(r"<svg\b.*</svg>", re.DOTALL)


class Handler:
    """Base class for handlers. A subclass overrides the methods for the events that it handles.

    A handler may raise any exception. The logger reports the exception and continues.
    """

    def log_config(self, config: Any, metadata: Record) -> None:
        """Log the settings of a run (a `Config` or a mapping) and metadata, such as the CPU model."""

    def log_task_start(self, task_data: Record) -> None:
        """Log the start of an episode."""

    def log_step(self, step_data: Record) -> None:
        """Log one step of one environment."""

    def log_episode_summary(self, summary_data: Record) -> None:
        """Log a finished episode."""

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Log the metrics of an update, aggregated over the batch."""

    def log_evaluation(self, record: Record) -> None:
        """Log an evaluation. The record contains `step`, `split`, `mode` and the metrics."""

    def log_picture(self, name: str, picture: "Picture", step: int) -> None:
        """Log an image. An image of a sampled episode is logged after the episode itself."""

    def close(self) -> None:
        """Release all resources. Nothing is logged afterward."""


class EpisodeIndexAssigner:
    """Numbers the sampled episodes of each update from 0, to give their metrics and images distinct names."""

    def __init__(self) -> None:
        self._last = (-1, -1)

    def next(self, summary_data: Record) -> tuple[int, int]:
        """Return the update in which the episode was sampled and the episode's index in this update."""
        step = int(summary_data.get("episode_num", 0))
        self._last = (step, self._last[1] + 1 if step == self._last[0] else 0)
        return self._last


class Picture:
    """An image, available as SVG, pixels or both. A state is rendered when `svg` or `pixels` is first read.

    Args:
        source: SVG text, a uint8 array `[height, width, 3]`, or a state.
        render: Function that renders the state. If None, the state's `_repr_svg_` or `_repr_html_` is called.
    """

    def __init__(self, source: Any, render: Render | None = None) -> None:
        self._source = source
        self._render = render

    @property
    def is_state(self) -> bool:
        """Whether the image is rendered from a state."""
        return not isinstance(self._source, str | np.ndarray)

    @functools.cached_property
    def svg(self) -> str | None:
        """The image as SVG text. None for an array or for a state that cannot be rendered as SVG."""
        if isinstance(self._source, str):
            return extract_svg(self._source)
        if not self.is_state:
            return None
        if self._render is not None:
            drawing = self._render(self._source, "svg")
            return None if drawing is None else extract_svg(drawing)
        for name in ("_repr_svg_", "_repr_html_"):
            if (method := getattr(self._source, name, None)) is not None:
                return extract_svg(method())
        return None

    @functools.cached_property
    def pixels(self) -> np.ndarray | None:
        """The image as a uint8 array `[height, width, 3]`.

        None for SVG text or for a state that cannot be rendered as pixels.
        """
        pixels = self._source
        if isinstance(pixels, str):
            return None
        if self.is_state:
            pixels = None if self._render is None else self._render(pixels, "rgb_array")
        return None if pixels is None else np.asarray(pixels, np.uint8)


def extract_svg(drawing: Any) -> str:
    """Return the `<svg>` element of a drawing, which is a string or an object with an `as_svg` method."""
    text = drawing if isinstance(drawing, str) else drawing.as_svg()
    match = _SVG.search(text)
    if match is None:
        raise ValueError(f"the rendering of a state must contain an <svg> element, got {text[:60]!r}")
    return match[0]


def config_values(config: Any) -> dict[str, Any]:
    """Return the settings of a config or mapping as a dictionary."""
    return dict(config) if isinstance(config, Mapping) else config.model_dump(mode="json")
