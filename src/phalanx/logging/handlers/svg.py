"""Pictures of sampled episodes as SVG files.

The caller passes the function that draws a state, such as `phalanx.arc.rendering.draw_state`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.io.atomic import atomic_write
from phalanx.logging.handlers.handler import Handler, Picture, svg_text
from phalanx.logging.records import Data

Draw = Callable[[Any], Any]
"""A state's picture: SVG text, or a drawing with `as_svg`."""


class SVGHandler(Handler):
    """Writes `episode_000050_env_0003/initial.svg`, `final.svg` and, where steps are given, `step_0001.svg`.

    Without `draw`, a state draws itself by its `_repr_svg_` or `_repr_html_`. No states, no pictures. Other
    pictures that are logged become `NAME_000050.svg`.
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
            name = f"step_{int(step_data.get('step_num', 0)):04d}"
            self._save(folder / f"{name}.svg", self._svg(step_data["after_state"]))

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
            self._save(self._folder(summary_data) / f"{name}.svg", self._svg(state))

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """A picture that was given ready made; those of states are drawn with their episode."""
        if not picture.is_of_state and picture.svg is not None:
            self._save(self.output_dir / f"{name}_{step:06d}.svg", picture.svg)

    def _folder(self, data: Data) -> Path:
        environment = data.get("environment_id")
        name = f"episode_{int(data.get('episode_num', 0)):06d}"
        return self.output_dir / (name if environment is None else f"{name}_env_{int(environment):04d}")

    def _save(self, path: Path, svg: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, "w") as file:
            file.write(svg)

    def _svg(self, state: Any) -> str:
        svg = Picture(state).svg if self._draw is None else svg_text(self._draw(state))
        if svg is None:
            kind = type(state).__name__
            raise TypeError(f"a {kind} cannot draw itself; give SVGHandler a `draw` function for such states")
        return svg


def _steps(summary_data: Data) -> list[Any]:
    """The states of an episode one by one: given as a list, or as one state with a leading axis of time.

    The longest episode of a batch decides how long that axis is; a shorter one ends at its `total_steps`.
    """
    import jax

    states = summary_data.get("step_states")
    if states is None:
        return []
    if type(states) in (list, tuple):
        return list(states)
    length = jax.tree.leaves(states)[0].shape[0]
    length = min(length, int(summary_data.get("total_steps") or length))
    return [jax.tree.map(lambda leaf, t=t: leaf[t], states) for t in range(length)]
