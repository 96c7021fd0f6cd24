"""Pictures of sampled episodes as SVG files.

How a state is drawn is the caller's: a function such as `phalanx.arc.render.draw_state`, or the state's own.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from phalanx.core.files import atomic_write
from phalanx.logs.records import Data, Handler

Draw = Callable[[Any], Any]
"""A state's picture: SVG text, or a drawing with `as_svg`."""

_SVG = re.compile(r"<svg\b.*</svg>", re.DOTALL)


class SVGHandler(Handler):
    """Writes `episode_000050_env_0003/initial.svg`, `final.svg` and, where steps are given, `step_0001.svg`.

    Without `draw`, a state draws itself by its `_repr_svg_` or `_repr_html_`. No states, no pictures.
    """

    def __init__(self, output_dir: str | os.PathLike[str], draw: Draw | None = None) -> None:
        self.output_dir = Path(output_dir)
        self._draw = draw
        self._episode = 0

    def log_task_start(self, task_data: Data) -> None:
        """Remember which episode the next steps belong to."""
        self._episode = int(task_data.get("episode_num", 0))

    def log_step(self, step_data: Data) -> None:
        """The state after a step, if it is given."""
        if step_data.get("after_state") is not None:
            folder = self._folder({"episode_num": self._episode, **step_data})
            self._save(folder, f"step_{int(step_data.get('step_num', 0)):04d}", step_data["after_state"])

    def log_episode_summary(self, summary_data: Data) -> None:
        """The first and the last state, and the steps between them, as far as they are given."""
        pictures = {
            name: summary_data[f"{name}_state"]
            for name in ("initial", "final")
            if summary_data.get(f"{name}_state") is not None
        }
        for place, state in enumerate(_steps(summary_data), 1):
            pictures[f"step_{place:04d}"] = state
        for name, state in pictures.items():
            self._save(self._folder(summary_data), name, state)

    def _folder(self, data: Data) -> Path:
        environment = data.get("environment_id")
        name = f"episode_{int(data.get('episode_num', 0)):06d}"
        return self.output_dir / (name if environment is None else f"{name}_env_{int(environment):04d}")

    def _save(self, folder: Path, name: str, state: Any) -> None:
        svg = self._svg(state)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"{name}.svg", "w") as file:
            file.write(svg)

    def _svg(self, state: Any) -> str:
        if self._draw is not None:
            drawn = self._draw(state)
            return _svg_text(drawn if isinstance(drawn, str) else drawn.as_svg())
        for method in ("_repr_svg_", "_repr_html_"):
            if (own := getattr(state, method, None)) is not None:
                return _svg_text(own())
        raise TypeError(
            f"a {type(state).__name__} cannot draw itself; give SVGHandler a `draw` function for such states"
        )


def _svg_text(drawn: str) -> str:
    match = _SVG.search(drawn)
    if match is None:
        raise ValueError(f"a state's picture must contain an <svg> element, got {drawn[:60]!r}")
    return match[0]


def _steps(summary_data: Data) -> list[Any]:
    """The states of an episode one by one: given as a list, or as one state with a leading axis of time.

    The longest episode of a batch decides how long that axis is; a shorter one ends at its `total_steps`.
    """
    states = summary_data.get("step_states")
    if states is None:
        return []
    if type(states) in (list, tuple):
        return list(states)
    length = jax.tree.leaves(states)[0].shape[0]
    length = min(length, int(summary_data.get("total_steps") or length))
    return [jax.tree.map(lambda leaf, t=t: leaf[t], states) for t in range(length)]
