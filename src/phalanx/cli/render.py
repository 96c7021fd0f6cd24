"""`phalanx render`: a trained policy at work, as a moving picture.

The pictures are those of the environment's `render`; the policy is loaded by `phalanx.load_policy`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.printing import working
from phalanx.core.text import counted

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer(add_completion=False)

_HOLD = 4
"""How many times as long the end of an episode is shown."""


@app.command()
def render(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN[@STEP]", help="A run of `phalanx train arc`; RUN@best for its best."),
    ],
    gif: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="RUN/episodes.gif")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Held-out tasks to show, one after the other.")] = 4,
    milliseconds: Annotated[int, typer.Option(min=20, help="How long a step is shown.")] = 400,
    scale: Annotated[int, typer.Option(min=1, help="Pixels for each pixel of the picture.")] = 3,
    seed: Annotated[int, typer.Option(help="Draws the tasks.")] = 0,
) -> None:
    """Write a GIF of greedy episodes on tasks that the policy never saw."""
    with user_errors(), working(f"playing {counted(episodes, 'episode')}"):
        origin, played = _played(run, episodes, seed)
    frames: list[np.ndarray] = []
    durations: list[int] = []
    for pictures in played:
        frames += pictures
        durations += [milliseconds] * (len(pictures) - 1) + [_HOLD * milliseconds]
    target = gif or origin / "episodes.gif"
    with user_errors():
        _save(target, frames, durations, scale)
    typer.echo(f"Wrote {target}: {counted(episodes, 'episode')}, {counted(len(frames), 'frame')}")


def _played(run: Path, count: int, seed: int) -> tuple[Path, list[list["np.ndarray"]]]:
    """The run's folder, and the pictures of each episode."""
    import jax

    from phalanx.agents.arc_training import ArcTrainingConfig, held_out
    from phalanx.agents.evaluation import record_episodes
    from phalanx.agents.policies import load_policy
    from phalanx.runs.folder import read_config

    policy = load_policy(run)
    if policy.kind != "arc":
        raise ValueError(
            f"{run} is a run of kind {policy.kind!r}; only those of `phalanx train arc` are drawn"
        )
    config = read_config(policy.run, ArcTrainingConfig)
    environment, steps = held_out(config), config.arc.environment.max_episode_steps
    found = record_episodes(
        environment, policy.distribution, policy.network, jax.random.key(seed), count, steps, greedy=True
    )

    def pictures(episode: dict[str, Any]) -> list["np.ndarray"]:
        states = [episode["initial_state"], *episode["step_states"]]
        return [environment.render(state, "rgb_array") for state in jax.device_get(states)]

    return policy.run, [pictures(episode) for episode in found]


def _save(path: Path, frames: list["np.ndarray"], durations: list[int], scale: int) -> None:
    """A GIF that repeats; frames of other sizes are put in the middle of the largest."""
    import numpy as np

    try:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        raise UserError('a GIF needs Pillow: pip install "phalanx[render]"') from None
    from phalanx.core.files import atomic_write

    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    images = []
    for frame in frames:
        canvas = np.full((height, width, 3), 255, np.uint8)
        top, left = (height - frame.shape[0]) // 2, (width - frame.shape[1]) // 2
        canvas[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
        images.append(Image.fromarray(canvas.repeat(scale, axis=0).repeat(scale, axis=1)))
    with atomic_write(path) as file:
        images[0].save(
            file, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0
        )
