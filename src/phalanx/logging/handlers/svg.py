"""Handler that writes images of sampled episodes to SVG files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.extras import require_jax
from phalanx.io.atomic import atomic_write
from phalanx.io.untrusted import reject_symlink
from phalanx.logging.handlers.handler import Handler, Picture, extract_svg
from phalanx.logging.records import Record

Draw = Callable[[Any], Any]
"""Function that draws a state and returns SVG text or a drawing object with an `as_svg` method."""


class SVGHandler(Handler):
    """Writes the states of episodes and other images to SVG files.

    For example, the states of an episode that was sampled from environment 3 in update 50 are written to
    `initial.svg`, `step_0001.svg`, ... and `final.svg` in the `episode_000050_env_0003/` folder. Other images
    of this update are written to `NAME_000050.svg`.

    Args:
        output_dir: Folder for the files.
        draw: Function that draws a state, for example `phalanx.arc.rendering.draw_state`. If None, the
            state's `_repr_svg_` or `_repr_html_` is called.
    """

    def __init__(self, output_dir: str | os.PathLike[str], draw: Draw | None = None) -> None:
        self.output_dir = Path(output_dir)
        self._draw = draw
        self._episode = 0

    def log_task_start(self, task_data: Record) -> None:
        """Remember the episode number, which is used for steps whose record has no `episode_num`."""
        self._episode = int(task_data.get("episode_num", 0))

    def log_step(self, step_data: Record) -> None:
        """Draw the `after_state` of a step, if there is one."""
        if step_data.get("after_state") is not None:
            folder = self._episode_dir({"episode_num": self._episode, **step_data})
            name = f"step_{int(step_data.get('step_num', 0)):04d}"
            self._save(folder / f"{name}.svg", self._svg(step_data["after_state"]))

    def log_episode_summary(self, summary_data: Record) -> None:
        """Draw the `initial_state`, `step_states` and `final_state` of an episode, if they are given."""
        states = {
            name: summary_data[f"{name}_state"]
            for name in ("initial", "final")
            if summary_data.get(f"{name}_state") is not None
        }
        states |= {f"step_{number:04d}": state for number, state in enumerate(_step_states(summary_data), 1)}
        for name, state in states.items():
            self._save(self._episode_dir(summary_data) / f"{name}.svg", self._svg(state))

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """Write an SVG image. Images of states are skipped, because `log_episode_summary` draws them."""
        if not picture.is_state and picture.svg is not None:
            self._save(self.output_dir / f"{name}_{step:06d}.svg", picture.svg)

    def _episode_dir(self, record: Record) -> Path:
        environment = record.get("environment_id")
        name = f"episode_{int(record.get('episode_num', 0)):06d}"
        return self.output_dir / (name if environment is None else f"{name}_env_{int(environment):04d}")

    def _save(self, path: Path, svg: str) -> None:
        # The folder may be part of an untrusted run.
        for folder in (self.output_dir, path.parent):
            reject_symlink(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, "w") as file:
            file.write(svg)

    def _svg(self, state: Any) -> str:
        svg = Picture(state).svg if self._draw is None else extract_svg(self._draw(state))
        if svg is None:
            raise TypeError(
                f"{type(state).__name__} has no `_repr_svg_` or `_repr_html_`; pass `draw` to SVGHandler"
            )
        return svg


def _step_states(summary_data: Record) -> list[Any]:
    """Return the state after each step of an episode, or an empty list if there are no `step_states`.

    `step_states` is a list of states or one pytree with a leading time axis. The time axis is as long as the
    longest episode in the batch, so states after `total_steps` are dropped.
    """
    states = summary_data.get("step_states")
    if states is None:
        return []
    if type(states) in (list, tuple):
        return list(states)
    require_jax("a pytree of states")
    import jax

    length = jax.tree.leaves(states)[0].shape[0]
    length = min(length, int(summary_data.get("total_steps") or length))
    return [jax.tree.map(lambda leaf, t=t: leaf[t], states) for t in range(length)]
