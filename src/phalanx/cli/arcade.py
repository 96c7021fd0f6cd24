"""`phalanx arcade`: collect samples from a puzzle server into a file of whole episodes, or watch a game.

Playing the episodes is in `phalanx.puzzles.server`; a sample's fields are those of `Sample`.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import print_json, progress
from phalanx.formatting import escape_untrusted, format_count

if TYPE_CHECKING:
    from phalanx.data.samples import Sample
    from phalanx.puzzles.server.client import PuzzleClientConfig
    from phalanx.puzzles.server.gym_stream import CollectConfig
    from phalanx.puzzles.server.pool import EpisodeSpec
    from phalanx.puzzles.server.protocol import PuzzleDifficulty


app = typer.Typer(
    name="arcade",
    help="Puzzle servers: collect samples, watch a game.",
    no_args_is_help=True,
    add_completion=False,
)

Host = Annotated[str, typer.Option(help="The puzzle server's name or address.")]
Port = Annotated[int, typer.Option(help="The puzzle server's port.", min=1, max=65535)]
Deadline = Annotated[
    float, typer.Option(help="Seconds for one answer in all, with every further attempt at it.", min=0.1)
]

_INTERRUPTED = 130
"""The exit code of a shell command that Ctrl-C ended."""


@app.command()
def collect(
    out: Annotated[Path, typer.Option("--out", "-o", help="The JSONL file of samples to write.")],
    games: Annotated[str, typer.Option(help="Games with commas, as in sudoku,binary, or `all`.")] = "sudoku",
    difficulty: Annotated[
        str, typer.Option(help="easy, medium or hard; several with commas are taken in turn.")
    ] = "easy",
    episodes: Annotated[
        int, typer.Option(help="Puzzles to play, those already there included.", min=1)
    ] = 100,
    connections: Annotated[int, typer.Option(help="Connections at once.", min=1, max=100)] = 4,
    seed: Annotated[int, typer.Option(help="The base seed of the puzzles.")] = 0,
    max_steps: Annotated[int, typer.Option(help="Moves after which a puzzle is left.", min=1, max=99)] = 99,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", "-t", help="bytes, a tokenizer.json, or a Hugging Face name.")
    ] = "bytes",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    host: Host = "localhost",
    port: Port = 8023,
    deadline: Deadline = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Play puzzles by their hints and write a sample for every move.

    The file grows by whole episodes in order, so a run that is killed leaves a file that `--resume`
    continues: in the end it holds the same samples as a run that was not.
    """
    from phalanx.data.tokenizers import load_tokenizer
    from phalanx.puzzles.server.episodes import require_playable_by_hints
    from phalanx.puzzles.server.gym_stream import CollectConfig
    from phalanx.puzzles.server.pool import ConnectionPoolConfig, episode_specs

    with user_errors():
        encode = load_tokenizer(tokenizer).encode
        config = CollectConfig(
            host=host,
            port=port,
            deadline=deadline,
            games=_games(games),
            difficulties=_difficulties(difficulty),
            seed=seed,
            max_steps=max_steps,
            pool=ConnectionPoolConfig(
                connections=connections, queue_size=max(32, 2 * connections), ordered=True
            ),
        )
        require_playable_by_hints(config.games)
        specs = episode_specs(config.games, config.difficulties, config.seed)
        there = finished_episodes(out, specs, resume=resume)
    kept = f"{out} holds whole episodes; the same command with --resume goes on"
    with _ctrl_c(kept), progress("playing", "episodes", episodes, quiet=as_json) as advance:
        advance(min(there.count, episodes))
        with _arcade_errors(), _told_retries():
            summary = asyncio.run(_collect(config, encode, out, episodes, there.count, there.last, advance))
    summary |= {"output": str(out), "episodes": max(episodes, there.count), "already_there": there.count}
    if as_json:
        print_json(summary)
        return
    lost = f"; {format_count(summary['episodes_replayed'], 'connection')} lost and replaced in mid-episode"
    typer.echo(
        f"{out}: {summary['episodes']:,} episodes ({there.count:,} were there), {summary['samples']:,} new "
        f"samples, {summary['solved']:,} of {summary['played']:,} puzzles solved"
        f"{lost if summary['episodes_replayed'] else ''}"
    )


@app.command()
def play(
    game: Annotated[str, typer.Argument(help="The game, as in sudoku.")],
    difficulty: Annotated[Literal["easy", "medium", "hard"], typer.Option(help="How hard.")] = "easy",
    seed: Annotated[int | None, typer.Option(help="The puzzle's seed; drawn by the server without.")] = None,
    pause: Annotated[float, typer.Option(help="Seconds between moves.", min=0, max=60)] = 0.3,
    host: Host = "localhost",
    port: Port = 8023,
    deadline: Deadline = 120.0,
) -> None:
    """Watch a puzzle being solved by its hints. Ctrl-C ends it."""
    from phalanx.puzzles.server.client import PuzzleClientConfig

    config = PuzzleClientConfig(host=host, port=port, max_retries=2, deadline=deadline)
    with _arcade_errors(), _told_retries(), _ctrl_c("left the puzzle"):
        solved = asyncio.run(_play(config, game, difficulty, seed, pause))
    if not solved:
        raise typer.Exit(1)


async def _collect(
    config: "CollectConfig",
    encode: Any,
    out: Path,
    episodes: int,
    done: int,
    last: list[dict[str, Any]],
    advance: Any,
) -> dict[str, Any]:
    from phalanx.io.jsonl import JsonlFile
    from phalanx.puzzles.server.client import PuzzleClient
    from phalanx.puzzles.server.gym_stream import PuzzleSampleStream

    # The last episode that is there is played again: were anything different now, it would show there.
    first = done - 1 if 0 < done < episodes else done
    if first < episodes:
        # A server that never was there is told sooner than one that goes away.
        async with PuzzleClient(config.client().model_copy(update={"max_retries": 2})):
            pass
    stream = PuzzleSampleStream(config, encode, first_episode=first, max_episodes=max(episodes - first, 0))
    played = solved = samples = 0
    file = JsonlFile(out)
    try:
        async with stream:
            async for spec, made in stream.episodes():
                if spec.index < done:
                    check_same_episode(out, last, made)
                    continue
                if made:
                    # In one piece, so that a kill between two samples is seldom and one within a line rarer.
                    file.write_line("\n".join(sample_lines(made)))
                played += 1
                solved += bool(made and made[0].info and made[0].info.success)
                samples += len(made)
                advance(1)
    finally:
        file.close()
    return {
        "played": played,
        "solved": solved,
        "samples": samples,
        "reconnects": stream.metrics.reconnects,
        "episodes_replayed": stream.metrics.episodes_replayed,
    }


async def _play(
    config: "PuzzleClientConfig", game: str, difficulty: str, seed: int | None, pause: float
) -> bool:
    from rich.console import Console
    from rich.live import Live

    from phalanx.puzzles.server.client import PuzzleClient

    async with PuzzleClient(config) as client:
        state = await client.start_puzzle(game, difficulty, seed)
        console = Console()
        moves = 0
        said = "begins"
        title = f"{state.game}, {state.difficulty.value}, seed {state.seed}"
        with Live(_board(title, state.grid_display, said), console=console, auto_refresh=False) as live:
            while not state.is_complete:
                hint = await client.get_hint()
                if not hint.success or hint.command is None:
                    said = f"stuck after {moves} moves: {hint.message}"
                    break
                result = await client.send_action(hint.command)
                said = f"{hint.message}  ->  {hint.command}"
                if not result.success:
                    said = f"stuck after {moves} moves: {hint.command}: {result.message}"
                    break
                moves += 1
                state = result.state or state
                live.update(_board(title, state.grid_display, said), refresh=True)
                await asyncio.sleep(pause)
            if state.is_complete:
                said = f"solved in {moves} moves by {moves} hints"
            live.update(_board(title, state.grid_display, said), refresh=True)
    return state.is_complete


def _board(title: str, picture: str, said: str) -> Any:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    board = Text(escape_untrusted(picture.strip("\n"), lines=True))
    return Group(
        Panel(board, title=Text(escape_untrusted(title)), expand=False), Text(escape_untrusted(said))
    )


def _games(text: str) -> tuple[str, ...]:
    from phalanx.puzzles.server.protocol import PuzzleGame

    names = _words(text)
    if names == ["all"]:
        return tuple(game.value for game in PuzzleGame if game.accepts_moves)
    return tuple(names)


def _difficulties(text: str) -> "tuple[PuzzleDifficulty, ...]":
    from phalanx.puzzles.server.protocol import PuzzleDifficulty

    words = _words(text)
    if strange := [word for word in words if word not in list(PuzzleDifficulty)]:
        raise ValueError(f"--difficulty takes easy, medium and hard; got {strange[0]!r}")
    return tuple(PuzzleDifficulty(word) for word in words)


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f"names stand between commas, as in sudoku,binary; got {text!r}")
    return words


@contextlib.contextmanager
def _arcade_errors() -> Iterator[None]:
    """What the server or the network will not do is for the user to put right; any other error is a fault."""
    from phalanx.puzzles.server.errors import StartError, UnknownGameError

    try:
        yield
    except (OSError, StartError, UnknownGameError) as error:
        raise UserError(" ".join(str(error).split())) from error


@contextlib.contextmanager
def _told_retries() -> Iterator[None]:
    """Attempts that failed are said on stderr as they happen."""

    class Saying(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            typer.echo(escape_untrusted(record.getMessage()), err=True)

    logger, saying = logging.getLogger("phalanx.puzzles.server"), Saying()
    logger.addHandler(saying)
    try:
        yield
    finally:
        logger.removeHandler(saying)


@contextlib.contextmanager
def _ctrl_c(words: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {words}", err=True)
        raise typer.Exit(_INTERRUPTED) from None


@dataclasses.dataclass(frozen=True)
class Finished:
    """What an earlier run left."""

    count: int
    """Episodes that need not be played."""
    last: list[dict[str, Any]]
    """The samples of the last of them; none if there are no episodes."""


def finished_episodes(path: Path, specs: Iterator["EpisodeSpec"], *, resume: bool) -> Finished:
    """The episodes in the file, which must be those of `specs`; an unfinished last one is cut off.

    Without `resume` a file that holds anything is refused.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not path.exists() or not path.stat().st_size:
        return Finished(0, [])
    if not resume:
        raise FileExistsError(f"{path} is there already; go on with --resume, or name another file")
    count, last, end = 0, list[dict[str, Any]](), 0
    for place, samples in _whole_episodes(path):
        name = str(samples[0]["episode_id"])
        # An episode without moves leaves no sample, so some may be missing here.
        if not any(spec.episode_id == name for spec in _up_to(specs, _index(name))):
            raise ValueError(
                f"{path} holds episode {name!r}, which these games, difficulties and seed do not give; "
                "resume with the settings it was begun with, or name another file"
            )
        count, last, end = _index(name) + 1, samples, place
    if end < path.stat().st_size:
        os.truncate(path, end)
    return Finished(count, last)


def check_same_episode(path: Path, there: list[dict[str, Any]], made: Sequence["Sample"]) -> None:
    """Refuse to go on if an episode that is played again does not give what the file holds."""
    now = [json.loads(line) for line in sample_lines(made)]
    if [_timeless(sample) for sample in there] != [_timeless(sample) for sample in now]:
        raise UserError(
            f"{path}: episode {there[0]['episode_id']!r} gives other samples now; the tokenizer, --max-steps "
            "or the server differ from those it was begun with"
        )


def sample_lines(samples: Sequence["Sample"]) -> list[str]:
    """One line for each sample."""
    return [json.dumps(sample.to_dict(), separators=(",", ":")) for sample in samples]


def _timeless(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "timestamp"}


def _whole_episodes(path: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Where each whole episode ends, and its samples."""
    samples: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline()
            if not line.endswith(b"\n"):
                return
            sample = _sample(line, f"{path}:{number}")
            if samples and samples[-1]["episode_id"] != sample["episode_id"]:
                raise ValueError(f"{path}:{number}: the episode before it has not all its samples")
            samples.append(sample)
            if len(samples) == sample["total_steps"]:
                yield file.tell(), samples
                samples = []


def _sample(line: bytes, where: str) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    if not isinstance(sample, dict) or not {"episode_id", "total_steps"} <= set(sample):
        raise ValueError(f"{where}: not a sample of `phalanx arcade collect`")
    return sample


def _index(episode_id: str) -> int:
    tail = episode_id.rpartition("_")[2]
    return int(tail) if tail.isdecimal() else -1


def _up_to(specs: Iterator["EpisodeSpec"], index: int) -> Iterator["EpisodeSpec"]:
    """The specs that are left, up to the one of this index."""
    if index < 0:
        return
    for spec in specs:
        yield spec
        if spec.index >= index:
            return
