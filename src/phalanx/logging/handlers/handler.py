"""What the logger calls: a handler's interface, and the pictures that it is given."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from phalanx.logging.records import Data, Metrics

Render = Callable[[Any, str], Any]
"""A state's picture in a mode, `svg` or `rgb_array`, as `Environment.render` makes it; None for none."""

_SVG = re.compile(r"<svg\b.*</svg>", re.DOTALL)


class Handler:
    """One place where a run is written down; a handler overrides the events that concern it.

    A handler raises when it cannot do its work: the logger reports that and goes on without it.
    """

    def log_config(self, config: Any, facts: Data) -> None:
        """The run's settings, a config model or a mapping; and facts of its machine, data and network."""

    def log_task_start(self, task_data: Data) -> None:
        """An episode begins."""

    def log_step(self, step_data: Data) -> None:
        """One step of one environment."""

    def log_episode_summary(self, summary_data: Data) -> None:
        """An episode is over."""

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Metrics of a whole batch at an update."""

    def log_evaluation(self, record: Data) -> None:
        """Figures on held-out tasks: `step`, `split`, `mode`, and whatever was measured."""

    def log_picture(self, name: str, picture: "Picture", step: int) -> None:
        """A picture; those of sampled episodes come here too, after the episode itself."""

    def close(self) -> None:
        """The run is over; nothing is logged after this."""


class EpisodeCounter:
    """Numbers the episodes of one update, which would else overwrite one another under the same name."""

    def __init__(self) -> None:
        self._last = (-1, -1)

    def next(self, summary_data: Data) -> tuple[int, int]:
        """The update that an episode was sampled at, and its number among those of the update."""
        step = int(summary_data.get("episode_num", 0))
        self._last = (step, self._last[1] + 1 if step == self._last[0] else 0)
        return self._last


class Picture:
    """Something to look at: SVG text, pixels, or a state that is drawn when a handler asks for it."""

    def __init__(self, source: Any, render: Render | None = None) -> None:
        """`source` is SVG text, an array `[rows, columns, 3]` of bytes, or a state."""
        self._source = source
        self._render = render

    @property
    def is_of_state(self) -> bool:
        """Whether it shows a state, and was not given ready made."""
        return not isinstance(self._source, str | np.ndarray)

    @functools.cached_property
    def svg(self) -> str | None:
        """The picture as SVG text; None where it is of pixels, or its state cannot be drawn."""
        if isinstance(self._source, str):
            return svg_text(self._source)
        if not self.is_of_state:
            return None
        if self._render is not None:
            drawn = self._render(self._source, "svg")
            return None if drawn is None else svg_text(drawn)
        for method in ("_repr_svg_", "_repr_html_"):
            if (own := getattr(self._source, method, None)) is not None:
                return svg_text(own())
        return None

    @functools.cached_property
    def pixels(self) -> np.ndarray | None:
        """The picture as an array `[rows, columns, 3]` of bytes; None where there is none."""
        found = self._source
        if isinstance(found, str):
            return None
        if self.is_of_state:
            found = None if self._render is None else self._render(found, "rgb_array")
        return None if found is None else np.asarray(found, np.uint8)


def svg_text(drawn: Any) -> str:
    """The `<svg>` element of a drawing, given as text or with an `as_svg`."""
    text = drawn if isinstance(drawn, str) else drawn.as_svg()
    match = _SVG.search(text)
    if match is None:
        raise ValueError(f"a state's picture must contain an <svg> element, got {text[:60]!r}")
    return match[0]


def settings_of(config: Any) -> dict[str, Any]:
    """A config's values as plain nested settings, ready for JSON."""
    return dict(config) if isinstance(config, Mapping) else config.model_dump(mode="json")
