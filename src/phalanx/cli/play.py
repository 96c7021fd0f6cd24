"""`phalanx play arc`: its options, and which tasks are played in which order.

Reading tasks is `phalanx.arc.task_files`' work; the game is in `application`.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from phalanx.arc.datasets import GENERATED, available_datasets, load_tasks
from phalanx.arc.generators.generate import FAMILIES, generate_task
from phalanx.arc.play.session import PlayTask
from phalanx.arc.task_files import ALL
from phalanx.arc.tasks import ArcTask
from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.puzzles import Deadline, Host, Port, exit_on_interrupt, print_retries, server_errors
from phalanx.formatting import escape_untrusted, format_count

if TYPE_CHECKING:
    from phalanx.arc.play.app import PlayApp
    from phalanx.puzzles.server.client import PuzzleClientConfig


class _PlayGroup(TyperGroup):
    """Accepts `puzzle_server:GAME` as well as `puzzle_server GAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        command, _, game = args[0].partition(":")
        return super().resolve_command(ctx, [command, game, *args[1:]] if game else args)


app = typer.Typer(
    name="play",
    cls=_PlayGroup,
    help="Solve ARC tasks yourself, or watch a game of a puzzle server.",
    no_args_is_help=True,
    add_completion=False,
)


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
        typer.Option(help="ARC's colors, or ones that color-blind people tell apart."),
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
    from phalanx.arc.play.recording import EpisodeFile, grids_named
    from phalanx.arc.play.session import play_config

    with user_errors():
        demonstrations = EpisodeFile(out, grids_named(grids))
        demonstrations.check()
        puzzles = puzzles_to_play(
            task, data, split, families=family or (), max_size=max_size, seed=seed, data_dir=data_dir
        )
        config = play_config(selection, require_submit=submit, max_steps=max_steps)
    game = application(puzzles, config, demonstrations, coach=coach, palette=palette)
    game.run()
    typer.echo(_summary(game))


@app.command(name="puzzle_server")
def puzzle_server(
    game: Annotated[str, typer.Argument(help="A game, such as sudoku.")],
    difficulty: Annotated[Literal["easy", "medium", "hard"], typer.Option(help="Difficulty.")] = "easy",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the puzzle; by default, the server draws it.")
    ] = None,
    pause: Annotated[float, typer.Option(help="Seconds between moves.", min=0, max=60)] = 0.3,
    host: Host = "localhost",
    port: Port = 8023,
    deadline: Deadline = 120.0,
) -> None:
    """Watch a puzzle being solved by following the server's hints: `phalanx play puzzle_server:sudoku`.

    Ctrl-C ends it.
    """
    from phalanx.puzzles.server.client import PuzzleClientConfig

    config = PuzzleClientConfig(host=host, port=port, max_retries=2, deadline=deadline)
    with server_errors(), print_retries(), exit_on_interrupt("left the puzzle"):
        solved = asyncio.run(_follow_hints(config, game, difficulty, seed, pause))
    if not solved:
        raise typer.Exit(1)


async def _follow_hints(
    config: "PuzzleClientConfig", game: str, difficulty: str, seed: int | None, pause: float
) -> bool:
    from rich.console import Console
    from rich.live import Live

    from phalanx.puzzles.server.client import PuzzleClient

    async with PuzzleClient(config) as client:
        state = await client.start_puzzle(game, difficulty, seed)
        num_moves = 0
        message = "started"
        title = f"{state.game}, {state.difficulty.value}, seed {state.seed}"
        board = _render_board(title, state.grid_display, message)
        with Live(board, console=Console(), auto_refresh=False) as live:
            while not state.is_complete:
                hint = await client.get_hint()
                if not hint.success or hint.command is None:
                    message = f"stuck after {num_moves} moves: {hint.message}"
                    break
                result = await client.send_action(hint.command)
                message = f"{hint.message}  ->  {hint.command}"
                if not result.success:
                    message = f"stuck after {num_moves} moves: {hint.command}: {result.message}"
                    break
                num_moves += 1
                state = result.state or state
                live.update(_render_board(title, state.grid_display, message), refresh=True)
                await asyncio.sleep(pause)
            if state.is_complete:
                message = f"solved in {num_moves} moves by {num_moves} hints"
            live.update(_render_board(title, state.grid_display, message), refresh=True)
    return state.is_complete


def _render_board(title: str, board: str, message: str) -> Any:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    text = Text(escape_untrusted(board.strip("\n"), lines=True))
    panel = Panel(text, title=Text(escape_untrusted(title)), expand=False)
    return Group(panel, Text(escape_untrusted(message)))


def _is_terminal() -> bool:
    # Textual reads from stdin and draws on stderr; the summary goes to stdout.
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def _application_class() -> "type[PlayApp]":
    try:
        from phalanx.arc.play.app import PlayApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise UserError('phalanx play needs textual: pip install "phalanx[play]"') from error
    return PlayApp


def _summary(game: "PlayApp") -> str:
    solved = f"solved {format_count(len(game.solved), 'puzzle')}"
    if not game.saved_episodes:
        return f"{solved}; nothing was saved"
    steps = f"{format_count(game.saved_episodes, 'episode')} of {format_count(game.saved_steps, 'step')}"
    return f"{solved}; {steps} saved in {game.file.path}"


NUM_GENERATED = 60
"""Generated tasks before the first comes again: some of every family."""


def puzzles_to_play(
    task_id: str = "",
    source: str = "",
    split: str = ALL,
    *,
    families: Sequence[str] = (),
    max_size: int | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
) -> list[PlayTask]:
    """Every test pair of the tasks, from the named task on and round to those before it.

    Without a source, an id is one of a generated task (`gravity-000017`), a family's name, or looked for in
    all data sets that are here. A ValueError says what there is not.
    """
    if source:
        chosen = "training" if source == GENERATED and split == ALL else split
        tasks = load_tasks(
            source, chosen, None, families, max_size, data_dir=data_dir, num_tasks=NUM_GENERATED, seed=seed
        )
        return _puzzles(_from(tasks, task_id, source), task_id, source)
    if task_id in FAMILIES:
        families, task_id = (task_id,), ""
    if task_id and not (named := _generated(task_id)):
        name, tasks = _search(task_id, split, data_dir)
        return _puzzles(_from(tasks, task_id, name), task_id, name)
    tasks = load_tasks(GENERATED, "training", None, families, max_size, num_tasks=NUM_GENERATED, seed=seed)
    return _puzzles([*named, *tasks] if task_id else tasks, task_id, GENERATED)


def _generated(task_id: str) -> list[ArcTask]:
    """The generated task of this id, if it is one."""
    family, _, seed = task_id.rpartition("-")
    return [generate_task(family, int(seed))] if family in FAMILIES and seed.isdecimal() else []


def _search(task_id: str, split: str, data_dir: Path | None) -> tuple[str, list[ArcTask]]:
    names = [name for name in available_datasets(data_dir) if name != GENERATED]
    for name in names:
        tasks = load_tasks(name, split, data_dir=data_dir)
        if any(task.id == task_id for task in tasks):
            return name, tasks
    raise ValueError(
        f"no task {task_id!r} in {', '.join(names) or 'any data set'}, and no family of that name; "
        f"name its data set or path with --data, or one of {', '.join(FAMILIES)}"
    )


def _from(tasks: list[ArcTask], task_id: str, source: str) -> list[ArcTask]:
    """The tasks, the named one first and the others after it as they follow."""
    if not task_id:
        return tasks
    ids = [task.id for task in tasks]
    if task_id not in ids:
        raise ValueError(f"no task {task_id!r} among the {len(tasks)} chosen tasks of {source}")
    place = ids.index(task_id)
    return tasks[place:] + tasks[:place]


def _puzzles(tasks: list[ArcTask], task_id: str, source: str) -> list[PlayTask]:
    """Their test pairs; only one whose output is known can be judged."""
    puzzles = [
        PlayTask(task, test)
        for task in tasks
        for test in range(len(task.tests))
        if all(pair.output is not None for pair in task.tests)
    ]
    if not puzzles:
        raise ValueError(f"{source} has no task of this choice whose test outputs are known")
    if task_id and puzzles[0].task.id != task_id:
        raise ValueError(f"task {task_id!r} keeps its test outputs secret, so it cannot be judged")
    return puzzles
