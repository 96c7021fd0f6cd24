"""`phalanx play arc`: opens the game in the terminal.

The game is in `session`, its screen in `application`, the choice of tasks in `tasks`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.cli.play.application import PlayApp

app = typer.Typer(name="play", help="Solve tasks yourself.", no_args_is_help=True, add_completion=False)


@app.callback()
def _play() -> None:
    pass


@app.command()
def arc(
    task: Annotated[
        str, typer.Option(help="A task's id in any data set that is here, as gravity-000017, or a family.")
    ] = "",
    data: Annotated[str, typer.Option(help="A data set's name or a path; without it, generated tasks.")] = "",
    split: Annotated[str, typer.Option(help="training, evaluation, another of --data, or all.")] = "all",
    family: Annotated[list[str] | None, typer.Option(help="Only this family or concept; repeatable.")] = None,
    max_size: Annotated[
        int | None, typer.Option(help="Only tasks whose grids have at most so many rows and columns.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="What generated tasks are drawn from.", min=0)] = 0,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file that demonstrations are added to.")
    ] = Path("demonstrations.jsonl"),
    submit: Annotated[
        bool,
        typer.Option(
            "--submit/--no-submit", help="Whether a right grid must be handed in, or ends the episode."
        ),
    ] = True,
    max_steps: Annotated[int, typer.Option(help="Steps after which an episode ends.", min=1)] = 500,
    selection: Annotated[
        Literal["point", "bbox", "mask"],
        typer.Option("--format", help="How recorded actions name cells: one cell, a box, any cells."),
    ] = "bbox",
    grids: Annotated[
        str, typer.Option(help="What a saved step shows: some of input, working and target, with commas.")
    ] = "input,working",
    coach: Annotated[bool, typer.Option("--coach", help="Show how many cells are right.")] = False,
    palette: Annotated[
        Literal["arc", "safe"],
        typer.Option(help="ARC's colours, or ones that colour-blind people tell apart."),
    ] = "arc",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where data sets lie.", envvar="PHALANX_DATA", show_default="~/.cache/phalanx/arc"),
    ] = None,
) -> None:
    """Solve ARC tasks with mouse and keys, and save what you did as demonstrations.

    Every act is a step of the environment. `?` in the game explains the keys.
    """
    if not _is_terminal():
        raise UserError("phalanx play needs a terminal: run it where you can see and type, without a pipe")
    application = _application_class()
    from phalanx.cli.play.demonstrations import DemonstrationFile, grids_named
    from phalanx.cli.play.session import play_config
    from phalanx.cli.play.tasks import puzzles_to_play

    with user_errors():
        demonstrations = DemonstrationFile(out, grids_named(grids))
        demonstrations.check()
        puzzles = puzzles_to_play(
            task, data, split, families=family or (), max_size=max_size, seed=seed, data_dir=data_dir
        )
        config = play_config(selection, require_submit=submit, max_steps=max_steps)
    game = application(puzzles, config, demonstrations, coach=coach, palette=palette)
    game.run()
    typer.echo(_summary(game))


def _is_terminal() -> bool:
    # Textual reads from stdin and draws on stderr; the summary goes to stdout.
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def _application_class() -> "type[PlayApp]":
    try:
        from phalanx.cli.play.application import PlayApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise UserError('phalanx play needs textual: pip install "phalanx[play]"') from error
    return PlayApp


def _summary(game: "PlayApp") -> str:
    from phalanx.arc.render.wording import count

    solved = f"solved {count(len(game.solved), 'puzzle')}"
    if not game.saved_episodes:
        return f"{solved}; nothing was saved"
    steps = f"{count(game.saved_episodes, 'episode')} of {count(game.saved_steps, 'step')}"
    return f"{solved}; {steps} saved in {game.file.path}"
