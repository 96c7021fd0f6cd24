"""`phalanx play`: lets you solve ARC tasks in the terminal, or watch a puzzle-server game."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from phalanx.cli.arc import DataDir, Families, Palette
from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.puzzles import Deadline, Host, Port, exit_on_interrupt, print_retries, server_errors
from phalanx.extras import require_extra
from phalanx.formatting import escape_untrusted, format_count

if TYPE_CHECKING:
    from phalanx.arc.play.app import PlayApp
    from phalanx.puzzles.server_client.client import PuzzleClientConfig


class _PlayGroup(TyperGroup):
    """Command group that accepts `puzzle_server:GAME` as well as `puzzle_server GAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        command, _, game = args[0].partition(":")
        return super().resolve_command(ctx, [command, game, *args[1:]] if game else args)


app = typer.Typer(
    name="play",
    cls=_PlayGroup,
    help="Solve ARC tasks yourself, or watch a puzzle-server game.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def arc(
    task: Annotated[
        str,
        typer.Option(help="Id of the first task in any dataset, such as gravity-000017, or a task family."),
    ] = "",
    data: Annotated[
        str, typer.Option(help="Name of a dataset or a path. Default: generated tasks.", metavar="DATASET")
    ] = "",
    split: Annotated[str, typer.Option(help="training, evaluation, another split, or all.")] = "all",
    family: Families = None,
    max_size: Annotated[
        int | None, typer.Option(help="Maximum number of rows and columns of the grids.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for generated tasks.", min=0)] = 0,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to which recorded episodes are added.")
    ] = Path("demonstrations.jsonl"),
    submit: Annotated[
        bool,
        typer.Option(
            "--submit/--no-submit", help="Episodes end with a submission, or when the grid is correct."
        ),
    ] = True,
    max_steps: Annotated[int, typer.Option(help="Maximum number of steps per episode.", min=1)] = 500,
    selection: Annotated[
        Literal["point", "bbox", "mask"],
        typer.Option("--format", help="Cells that a recorded action selects: one cell, a box, or any cells."),
    ] = "bbox",
    grids: Annotated[
        str, typer.Option(help="Grids to record in each step, from: input, working, target.")
    ] = "input,working",
    show_similarity: Annotated[
        bool, typer.Option("--show-similarity", help="Show the fraction of correct cells.")
    ] = False,
    palette: Palette = "arc",
    data_dir: DataDir = None,
) -> None:
    """Solve ARC tasks with the mouse and keyboard, and record your episodes.

    Press `?` for a list of the keys.
    """
    if not _is_terminal():
        raise UserError("phalanx play needs a terminal: do not redirect its input or output")
    with require_extra("phalanx play", "play", "textual"):
        from phalanx.arc.play.app import PlayApp
    from phalanx.arc.play.recording import EpisodeSampleFile, parse_grid_names
    from phalanx.arc.play.session import play_config
    from phalanx.arc.play.task_selection import select_tasks

    with user_errors():
        recording = EpisodeSampleFile(out, parse_grid_names(grids))
        recording.check()
        tasks = select_tasks(
            task, data, split, families=family or (), max_size=max_size, seed=seed, data_dir=data_dir
        )
        config = play_config(selection, require_submit=submit, max_steps=max_steps)
    game = PlayApp(tasks, config, recording, show_similarity=show_similarity, palette=palette)
    game.run()
    typer.echo(_summary(game))


@app.command(name="puzzle_server")
def puzzle_server(
    game: Annotated[str, typer.Argument(help="A game, such as sudoku.")],
    difficulty: Annotated[Literal["easy", "medium", "hard"], typer.Option(help="Difficulty.")] = "easy",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the puzzle; by default, the server chooses it.")
    ] = None,
    pause: Annotated[float, typer.Option(help="Seconds between moves.", min=0, max=60)] = 0.3,
    host: Host = "localhost",
    port: Port = 8023,
    deadline: Deadline = 120.0,
) -> None:
    """Watch a puzzle being solved with the server's hints, as in `phalanx play puzzle_server:sudoku`.

    Press Ctrl-C to stop. The exit code is 1 if the puzzle was not solved.
    """
    from phalanx.puzzles.server_client.client import PuzzleClientConfig

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

    from phalanx.puzzles.server_client.client import PuzzleClient

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
    # Textual uses stdin and stderr; the summary is printed to stdout.
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def _summary(game: "PlayApp") -> str:
    solved = f"solved {format_count(len(game.solved), 'task')}"
    if not game.saved_episodes:
        return f"{solved}; nothing was saved"
    steps = f"{format_count(game.saved_episodes, 'episode')} of {format_count(game.saved_steps, 'step')}"
    return f"{solved}; {steps} saved in {game.file.path}"
