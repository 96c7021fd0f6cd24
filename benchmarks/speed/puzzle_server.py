"""Client for puzzle servers: episodes per second against a real server on this machine.

An episode starts a puzzle and requests five hints. The baseline is a minimal asyncio client that waits for
the text of each reply. It uses one connection, does not parse replies and does not recover from errors.
Connections are opened beforehand. Server and client share the machine, and most of the time is spent in the
server.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from tests.helpers.puzzle_server import MISSING, RealServer, installed_server

from benchmarks.suite import Suite
from benchmarks.timing import InProcess, Measurement, measure_in_turn
from phalanx.puzzles.server_client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.episode_pool import (
    ConnectionPoolConfig,
    EpisodeSpec,
    PuzzleEpisodePool,
    episode_specs,
)
from phalanx.puzzles.server_client.protocol import PuzzleDifficulty

suite = Suite("puzzle_server", unit="episodes/s", packages=("puzzle-arcade-server",))

NUM_HINTS = 5
GAMES = ("sudoku", "binary", "lights")


async def _episode(client: PuzzleClient, spec: EpisodeSpec) -> None:
    await client.start_puzzle(spec.game, spec.difficulty, spec.seed)
    for _ in range(NUM_HINTS):
        if not (await client.get_hint()).message:
            raise AssertionError("the server sent an empty hint")


def _specs(game: str, count: int) -> Iterator[EpisodeSpec]:
    return episode_specs([game], [PuzzleDifficulty.EASY], 0, end=count)


async def _run_client(client: PuzzleClient, game: str, count: int) -> None:
    for spec in _specs(game, count):
        await _episode(client, spec)


async def _run_pool(pool: PuzzleEpisodePool, game: str, count: int) -> None:
    completed = [spec.index async for spec, _ in pool.episodes(_specs(game, count), _episode)]
    if len(completed) != count:
        raise AssertionError(f"{len(completed)} of {count} episodes are complete")


async def _run_simple_client(streams: Sequence, game: str, count: int) -> None:
    reader, writer = streams
    for spec in _specs(game, count):
        writer.write(f"menu\n{game} easy {spec.seed}\n".encode())
        await reader.readuntil(b"Seed: %d" % spec.seed)
        for _ in range(NUM_HINTS):
            writer.write(b"hint\n")
            await reader.readuntil(b"Hint: ")


@suite.experiment("episodes")
def episodes(smoke: bool) -> Iterator[Measurement]:
    """Compare the client on one and on eight connections with the minimal client."""
    package = installed_server()
    if package is None:
        raise RuntimeError(MISSING)
    server = RealServer(package)
    server.start()
    try:
        with asyncio.Runner() as runner:
            yield from _compare(runner, server, *((1, 1, GAMES[:1]) if smoke else (100, 5, GAMES)))
    finally:
        server.kill()


def _compare(
    runner: asyncio.Runner, server: RealServer, count: int, repeats: int, games: Sequence[str]
) -> Iterator[Measurement]:
    config = PuzzleClientConfig(host="127.0.0.1", port=server.port)
    client = PuzzleClient(config)
    runner.run(client.connect())
    streams = runner.run(asyncio.open_connection("127.0.0.1", server.port))
    # The menu is sent after a second in which the server waits for terminal settings.
    runner.run(streams[0].readuntil(b"Examples:"))
    pool = runner.run(PuzzleEpisodePool(config, ConnectionPoolConfig(connections=8)).__aenter__())
    for game in games:
        runs: dict[str, Callable[[], None]] = {
            "client": lambda game=game: runner.run(_run_client(client, game, count)),
            "client-8-connections": lambda game=game: runner.run(_run_pool(pool, game, count)),
            "simple-client": lambda game=game: runner.run(_run_simple_client(streams, game, count)),
        }
        # Called once per repeat, after a warm-up.
        cases = [InProcess(run, count, 0.0) for run in runs.values()]
        settings = {"server": server.package, "game": game, "num_hints": NUM_HINTS, "num_episodes": count}
        for name, found in zip(runs, measure_in_turn(cases, repeats), strict=True):
            system = "minimal asyncio client" if name == "simple-client" else "phalanx"
            yield Measurement.from_repeats(f"{name}-{game}", system, suite.unit, found, settings)
    runner.run(pool.__aexit__(None, None, None))
    runner.run(client.disconnect())
    streams[1].close()
