"""`phalanx render`: a trained policy at work, as a moving picture.

The pictures are those of the environment's `render`; the policy is loaded by `phalanx.load_policy`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import show_activity
from phalanx.formatting import format_count

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer(add_completion=False)

_HOLD = 4
"""How many times as long the end of an episode is shown."""


@app.command()
def render(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN[@STEP]", help="A run of `train arc` or `bc`; RUN@best for its best."),
    ],
    gif: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="RUN/episodes.gif")
    ] = None,
    mp4: Annotated[
        Path | None, typer.Option(help="Write a film (H.264) there instead.", show_default=False)
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Held-out tasks to show, one after the other.")] = 4,
    milliseconds: Annotated[int, typer.Option(min=20, help="How long a step is shown.")] = 400,
    scale: Annotated[int, typer.Option(min=1, help="Pixels for each pixel of the picture.")] = 3,
    seed: Annotated[int, typer.Option(help="Draws the tasks.")] = 0,
) -> None:
    """Write a GIF, or an MP4, of greedy episodes on tasks that the policy never saw."""
    if gif is not None and mp4 is not None:
        raise UserError("--gif and --mp4 are two files: give one of them")
    with user_errors(), show_activity(f"playing {format_count(episodes, 'episode')}"):
        origin, played = _played(run, episodes, seed)
    frames = _enlarged([picture for pictures in played for picture in pictures], scale)
    holds = [hold for pictures in played for hold in [1] * (len(pictures) - 1) + [_HOLD]]
    target = mp4 or gif or origin / "episodes.gif"
    with user_errors():
        (_save_gif if mp4 is None else _save_mp4)(target, frames, holds, milliseconds)
    typer.echo(f"Wrote {target}: {format_count(episodes, 'episode')}, {format_count(len(frames), 'frame')}")


def _played(run: Path, count: int, seed: int) -> tuple[Path, list[list["np.ndarray"]]]:
    """The run's folder, and the pictures of each episode."""
    import jax

    from phalanx.core.episodes import record_episodes
    from phalanx.training.arc_training import arc_training_of
    from phalanx.training.trained_policy import load_policy

    policy = load_policy(run)
    if policy.kind not in ("arc", "bc"):
        raise ValueError(
            f"{run} is a run of kind {policy.kind!r}; only those of `phalanx train arc` and `bc` are drawn"
        )
    training = arc_training_of(policy.run)
    environment = training.environment.held_out(training.config.evaluation)
    steps = environment.max_episode_steps
    found = record_episodes(environment, policy.network, jax.random.key(seed), count, steps, greedy=True)

    def pictures(episode: dict[str, Any]) -> list["np.ndarray"]:
        states = [episode["initial_state"], *episode["step_states"]]
        return [environment.render(state, "rgb_array") for state in jax.device_get(states)]

    return policy.run, [pictures(episode) for episode in found]


def _enlarged(frames: list["np.ndarray"], scale: int) -> list["np.ndarray"]:
    """Frames of one size, each in the middle; sides are even, as films want them."""
    import numpy as np

    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    large = []
    for frame in frames:
        canvas = np.full((height + height % 2, width + width % 2, 3), 255, np.uint8)
        top, left = (height - frame.shape[0]) // 2, (width - frame.shape[1]) // 2
        canvas[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
        large.append(canvas.repeat(scale, axis=0).repeat(scale, axis=1))
    return large


def _save_gif(path: Path, frames: list["np.ndarray"], holds: list[int], milliseconds: int) -> None:
    """A GIF that repeats."""
    try:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        raise UserError('a GIF needs Pillow: pip install "phalanx[render]"') from None
    from phalanx.io.atomic import atomic_write

    first, *rest = (Image.fromarray(frame) for frame in frames)
    shown = [hold * milliseconds for hold in holds]
    with atomic_write(path) as file:
        first.save(file, format="GIF", save_all=True, append_images=rest, duration=shown, loop=0)


def _save_mp4(path: Path, frames: list["np.ndarray"], holds: list[int], milliseconds: int) -> None:
    """A film of H.264, which browsers and talks play."""
    import shutil
    import tempfile
    import warnings

    try:
        import imageio_ffmpeg  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ModuleNotFoundError:
        raise UserError('an MP4 needs imageio-ffmpeg: pip install "phalanx[render]"') from None
    from phalanx.io.atomic import atomic_write

    height, width, _ = frames[0].shape
    with tempfile.TemporaryDirectory(prefix="phalanx-") as scratch:
        film = Path(scratch, "film.mp4")
        # A step stays for a while, but players stumble over a film of two frames a second.
        writer = imageio_ffmpeg.write_frames(
            str(film),
            (width, height),
            fps=1000 / milliseconds,
            macro_block_size=2,
            output_params=["-r", "25"],
        )
        with warnings.catch_warnings():
            # JAX warns of every fork; this one is followed by another program at once, which does no harm.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            writer.send(None)
        for frame, hold in zip(frames, holds, strict=True):
            for _ in range(hold):
                writer.send(frame.tobytes())
        writer.close()
        with atomic_write(path) as target, film.open("rb") as source:
            shutil.copyfileobj(source, target)
