"""`phalanx render`: renders episodes of a trained policy as a GIF or MP4."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import show_activity
from phalanx.extras import require_extra, require_jax
from phalanx.formatting import format_count

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer(add_completion=False)

_LAST_FRAME_REPEATS = 4
"""The last frame of an episode is shown this many times as long as the other frames."""


@app.command()
def render(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@STEP]",
            help="Run of a policy algorithm such as ppo or bc; RUN@best for its best checkpoint.",
            show_default=False,
        ),
    ],
    gif: Annotated[
        Path | None, typer.Option(help="GIF file to write.", show_default="RUN/episodes.gif")
    ] = None,
    mp4: Annotated[
        Path | None, typer.Option(help="Write an MP4 video (H.264) instead.", show_default=False)
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes, shown one after the other.")] = 4,
    milliseconds: Annotated[int, typer.Option(min=20, help="Duration of a step in milliseconds.")] = 400,
    scale: Annotated[int, typer.Option(min=1, help="Factor by which images are enlarged.")] = 3,
    seed: Annotated[int, typer.Option(help="Random seed for the episodes.")] = 0,
) -> None:
    """Render episodes with greedy actions, on held-out tasks if the environment has any."""
    if gif is not None and mp4 is not None:
        raise UserError("--gif and --mp4 cannot be combined: choose one file")
    with user_errors(), show_activity(f"running {format_count(episodes, 'episode')}"):
        run_dir, images = _record(run, episodes, seed)
    frames = _enlarge([image for episode in images for image in episode], scale)
    repeats = [repeat for episode in images for repeat in [1] * (len(episode) - 1) + [_LAST_FRAME_REPEATS]]
    target = mp4 or gif or run_dir / "episodes.gif"
    with user_errors():
        (_save_gif if mp4 is None else _save_mp4)(target, frames, repeats, milliseconds)
    typer.echo(f"Wrote {target}: {format_count(episodes, 'episode')}, {format_count(len(frames), 'frame')}")


def _record(run: str, num_episodes: int, seed: int) -> tuple[Path, list[list["np.ndarray"]]]:
    """Run episodes with greedy actions. Returns the run folder and the images of each episode."""
    require_jax("phalanx render")
    import jax

    from phalanx.training.trained_policy import Policy, load_policy

    policy = load_policy(run)
    if not isinstance(policy, Policy):
        raise ValueError(f"{run} has no policy network, so there are no episodes to render")
    spec, config = policy.config.env.spec, policy.config
    environment = spec.tasks(policy.environment, config.seed).held_out(config.evaluation)
    mode = next((mode for mode in ("rgb_array", "ansi") if mode in environment.render_modes), None)
    if mode is None:
        raise ValueError(
            f"{policy.config.env.id} cannot be rendered: its render_modes need rgb_array or ansi"
        )
    recorded = policy.record_episodes(num_episodes, seed, environment=environment)

    def images(episode: dict[str, Any]) -> list["np.ndarray"]:
        states = [episode["initial_state"], *episode["step_states"]]
        rendered = [environment.render(state, mode) for state in jax.device_get(states)]
        return rendered if mode == "rgb_array" else list(map(_draw_text, rendered))

    return policy.run, [images(episode) for episode in recorded]


def _draw_text(text: str) -> "np.ndarray":
    """Draw text for a terminal, without its colors, with all characters equally wide."""
    import numpy as np

    from phalanx.core.episodes import ANSI_ESCAPE

    with require_extra("drawing text", "render", "PIL"):
        from PIL import Image, ImageDraw
    lines = ANSI_ESCAPE.sub("", text).split("\n")
    width, height = 8, 16
    size = width * max(map(len, lines)) + width, height * len(lines) + width
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        for column, character in enumerate(line):
            draw.text((width * (column + 1), height * (row + 1)), character, "black", anchor="ms")
    return np.asarray(image)


def _enlarge(frames: list["np.ndarray"], scale: int) -> list["np.ndarray"]:
    """Center images on canvases of equal size and enlarge the canvases by the factor `scale`.

    The height and width of the canvases are even, as H.264 requires.
    """
    import numpy as np

    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    large = []
    for frame in frames:
        canvas = np.full((height + height % 2, width + width % 2, 3), 255, np.uint8)
        top, left = (height - frame.shape[0]) // 2, (width - frame.shape[1]) // 2
        canvas[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
        large.append(canvas.repeat(scale, axis=0).repeat(scale, axis=1))
    return large


def _save_gif(path: Path, frames: list["np.ndarray"], repeats: list[int], milliseconds: int) -> None:
    """Save an endlessly repeating GIF. Frame `i` is shown for `repeats[i] * milliseconds`."""
    with require_extra("writing a GIF", "render", "PIL"):
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    from phalanx.io.atomic import atomic_write

    first, *rest = (Image.fromarray(frame) for frame in frames)
    durations = [repeat * milliseconds for repeat in repeats]
    with atomic_write(path) as file:
        first.save(file, format="GIF", save_all=True, append_images=rest, duration=durations, loop=0)


def _save_mp4(path: Path, frames: list["np.ndarray"], repeats: list[int], milliseconds: int) -> None:
    """Save an H.264 video, which browsers can play. Frame `i` is shown for `repeats[i] * milliseconds`."""
    import shutil
    import tempfile
    import warnings

    with require_extra("writing an MP4", "render", "imageio_ffmpeg"):
        import imageio_ffmpeg  # type: ignore[import-untyped, import-not-found, unused-ignore]
    from phalanx.io.atomic import atomic_write

    height, width, _ = frames[0].shape
    with tempfile.TemporaryDirectory(prefix="phalanx-") as scratch:
        video = Path(scratch, "video.mp4")
        # Some players have problems with low frame rates, so frames are repeated.
        writer = imageio_ffmpeg.write_frames(
            str(video),
            (width, height),
            fps=1000 / milliseconds,
            macro_block_size=2,
            output_params=["-r", "25"],
        )
        with warnings.catch_warnings():
            # JAX warns about every fork. This one is harmless: it is followed by an exec.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            writer.send(None)
        for frame, repeat in zip(frames, repeats, strict=True):
            for _ in range(repeat):
                writer.send(frame.tobytes())
        writer.close()
        with atomic_write(path) as target, video.open("rb") as source:
            shutil.copyfileobj(source, target)
