"""`phalanx puzzles`: lists the puzzle kinds, shows a puzzle, and plays or collects puzzles of a server."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_table, print_json, progress
from phalanx.formatting import escape_untrusted, format_count

if TYPE_CHECKING:
    from phalanx.puzzles.server_client.client import PuzzleClientConfig

app = typer.Typer(
    name="puzzles",
    help="Text puzzles: list the kinds, show a puzzle, play or collect puzzles of a puzzle server.",
    no_args_is_help=True,
    add_completion=False,
)

Host = Annotated[str, typer.Option(help="Host name or address of the puzzle server.")]
Port = Annotated[int, typer.Option(help="Port of the puzzle server.", min=1, max=65535)]
Deadline = Annotated[
    float, typer.Option(help="Time limit for one request in seconds, including all retries.", min=0.1)
]

_EXIT_CODE_INTERRUPTED = 130
"""Conventional exit code for a command that was stopped by Ctrl-C."""


@app.command(name="list")
def list_kinds(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, including the parameters of each difficulty.")
    ] = False,
) -> None:
    """List the puzzle kinds."""
    from phalanx.puzzles.kinds import puzzle_kinds

    kinds = puzzle_kinds()
    if as_json:
        fields = ("description", "version", "has_unique_solution", "difficulties")
        print_json([{"kind": kind.name} | {name: getattr(kind, name) for name in fields} for kind in kinds])
        return
    rows = [[kind.name, "one" if kind.has_unique_solution else "any", kind.description] for kind in kinds]
    typer.echo(format_table(["KIND", "SOLUTIONS", "DESCRIPTION"], rows))


@app.command()
def show(
    kind: Annotated[str, typer.Argument(help="A puzzle kind, such as sudoku; see `phalanx puzzles list`.")],
    seed: Annotated[int, typer.Option(help="Seed of the puzzle.", min=0)] = 0,
    difficulty: Annotated[str, typer.Option(help="easy, medium or hard.")] = "easy",
    turns: Annotated[
        Literal["multi", "single"],
        typer.Option(help="One move per answer (multi), or one answer with the complete solution (single)."),
    ] = "multi",
    solution: Annotated[bool, typer.Option("--solution", help="Also print the solver's answers.")] = False,
) -> None:
    """Show a puzzle as a language model sees it."""
    from phalanx.puzzles.env import PuzzleEnvironment

    with user_errors():
        environment = PuzzleEnvironment(kind, difficulty, turns=turns)
        prompt = environment.reset(seed)
    typer.echo(prompt)
    if solution:
        typer.echo("\nSolution:\n" + "\n".join(environment.expert_actions() or ()))


@app.command()
def collect(
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file of samples (JSON Lines).")],
    games: Annotated[
        str, typer.Option(help="Games separated by commas, such as sudoku,binary, or `all`.")
    ] = "sudoku",
    difficulty: Annotated[
        str, typer.Option(help="easy, medium or hard; several, separated by commas, are used in turn.")
    ] = "easy",
    episodes: Annotated[
        int, typer.Option(help="Number of puzzles, including those already in the file.", min=1)
    ] = 100,
    connections: Annotated[int, typer.Option(help="Number of connections.", min=1, max=100)] = 4,
    seed: Annotated[int, typer.Option(help="Base seed of the puzzles.")] = 0,
    max_steps: Annotated[int, typer.Option(help="Maximum number of moves per puzzle.", min=1, max=99)] = 99,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", "-t", help="bytes, a tokenizer.json, or a Hugging Face name.")
    ] = "bytes",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    host: Host = "localhost",
    port: Port = 8023,
    deadline: Deadline = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Solve a server's puzzles by following its hints, and write one sample per move.

    Only complete episodes are appended to the file, in order. A killed run can therefore be continued with
    `--resume`, and the final file contains the same samples as without the interruption.
    """
    from phalanx.data.tokenizers import load_tokenizer
    from phalanx.puzzles.server_client.client import PuzzleClientConfig
    from phalanx.puzzles.server_client.collect import collect, load_existing_episodes
    from phalanx.puzzles.server_client.episode_pool import ConnectionPoolConfig
    from phalanx.puzzles.server_client.episodes import CollectConfig

    with user_errors():
        encode = load_tokenizer(tokenizer).encode
        client = PuzzleClientConfig(host=host, port=port, deadline=deadline, max_retries=12, retry_seed=seed)
        max_unconsumed_episodes = max(32, 2 * connections)
        config = CollectConfig(
            client=client,
            games=_parse_games(games),
            difficulties=_split_names(difficulty),
            seed=seed,
            max_steps=max_steps,
            pool=ConnectionPoolConfig(
                connections=connections, max_unconsumed_episodes=max_unconsumed_episodes, ordered=True
            ),
        )
        existing = load_existing_episodes(out, config, resume=resume)
    message = f"{out} has complete episodes; run the same command with --resume to continue"
    with _exit_on_interrupt(message), progress("collecting", "episodes", episodes, quiet=as_json) as advance:
        advance(min(existing.count, episodes))
        with _server_errors(), _print_retries():
            result = asyncio.run(collect(config, encode, out, episodes, existing, lambda: advance(1)))
    total = max(episodes, existing.count)
    if as_json:
        totals = {"output": str(out), "episodes": total, "existing": existing.count}
        print_json(dataclasses.asdict(result) | totals)
        return
    replayed = format_count(result.episodes_replayed, "connection")
    typer.echo(
        f"{out}: {total:,} episodes ({existing.count:,} existing), {result.samples:,} new samples, "
        f"{result.solved:,} of {result.new_episodes:,} puzzles solved"
        + (f"; {replayed} lost and replaced during an episode" if result.episodes_replayed else "")
    )


@app.command()
def play(
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
    """Watch a puzzle of a server being solved with the server's hints.

    Press Ctrl-C to stop. The exit code is 1 if the puzzle was not solved.
    """
    from phalanx.puzzles.server_client.client import PuzzleClientConfig

    config = PuzzleClientConfig(host=host, port=port, max_retries=2, deadline=deadline)
    with _server_errors(), _print_retries(), _exit_on_interrupt("left the puzzle"):
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


@contextlib.contextmanager
def _server_errors() -> Iterator[None]:
    """Convert puzzle-server and network errors in the `with` block to `UserError`."""
    from phalanx.puzzles.server_client.collect import EpisodeMismatchError
    from phalanx.puzzles.server_client.protocol import PuzzleStartError, UnknownGameNameError

    try:
        yield
    except (OSError, PuzzleStartError, UnknownGameNameError, EpisodeMismatchError) as error:
        raise UserError(" ".join(str(error).split())) from error


@contextlib.contextmanager
def _print_retries() -> Iterator[None]:
    """Print log messages about failed requests to stderr while the `with` block runs."""

    class StderrHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            typer.echo(escape_untrusted(record.getMessage()), err=True)

    logger, handler = logging.getLogger("phalanx.puzzles.server_client"), StderrHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _exit_on_interrupt(message: str) -> Iterator[None]:
    """If Ctrl-C is pressed in the `with` block, print a message and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {message}", err=True)
        raise typer.Exit(_EXIT_CODE_INTERRUPTED) from None


def _parse_games(text: str) -> tuple[str, ...]:
    from phalanx.puzzles.server_client.protocol import PuzzleGame

    if text.strip() == "all":
        return tuple(game.value for game in PuzzleGame if game.accepts_moves)
    return _split_names(text)


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))
