"""The figures of the puzzle arcade client against a real server: games, speed, many connections, faults.

The server is started from the Python that has it (this one, or PHALANX_ARCADE_PYTHON). One JSON line for each
measurement with `--json`, else a table; the exit code is 1 if a target is missed.
"""

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from arcade_server import HANDLERS, MISSING, RealServer, installed_server
from cutting_proxy import CuttingProxy
from measuring.verdicts import Verdict, show_verdicts

from phalanx.data import Sample
from phalanx.puzzles.server_client.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.episodes import CollectConfig, PuzzleSampleStream
from phalanx.puzzles.server_client.pool import ConnectionPoolConfig, EpisodeSpec, PuzzlePool, episode_specs
from phalanx.puzzles.server_client.protocol import PuzzleDifficulty, PuzzleGame

BEST_KNOWN = 0.33
"""Episodes of five hints a second on one connection, of the best client known before."""
HINTS = 5
EASY = PuzzleDifficulty.EASY


async def solved_games(server: RealServer, seeds: int) -> dict[PuzzleGame, int]:
    """How many of the seeds each game is solved for by following its hints."""
    solved = dict.fromkeys(PuzzleGame, 0)
    async with PuzzleClient(_client(server.port)) as client:
        for game, seed in itertools.product(PuzzleGame, range(42, 42 + seeds)):
            state = await client.start_puzzle(game, EASY, seed)
            while not state.is_complete:
                hint = await client.get_hint()
                if not hint.success or hint.command is None:
                    break
                result = await client.send_action(hint.command)
                if not result.success or result.state is None:
                    break
                state = result.state
            solved[game] += state.is_complete
    return solved


async def five_hints(client: PuzzleClient, spec: EpisodeSpec) -> list[str]:
    """The episode that the best known client was timed with: a start and five hints."""
    await client.start_puzzle(spec.game, spec.difficulty, spec.seed)
    return [(await client.get_hint()).message for _ in range(HINTS)]


async def hints_of(port: int, game: str, episodes: int, connections: int) -> tuple[list[list[str]], float]:
    """The hints of every episode, and how many episodes there were a second."""
    config = ConnectionPoolConfig(connections=connections, queue_size=64, ordered=True)
    specs = episode_specs([game], [EASY], 1, end=episodes)
    async with PuzzlePool(_client(port), config) as pool:
        began = time.perf_counter()
        found = [hints async for _, hints in pool.episodes(specs, five_hints)]
    return found, episodes / (time.perf_counter() - began)


async def collected(port: int, episodes: int, after: Callable[[int], Any] | None = None) -> list[Sample]:
    """The samples of whole episodes; `after` is awaited between episodes."""
    config = CollectConfig(
        client=PuzzleClientConfig(host="127.0.0.1", port=port),
        games=("lights", "binary", "mastermind", "sokoban", "knapsack", "bridges"),
        seed=3,
        pool=ConnectionPoolConfig(connections=8, ordered=True),
    )
    samples = []
    async with PuzzleSampleStream(config, max_episodes=episodes) as stream:
        async for episode, made in stream.episodes():
            samples += made
            if after is not None:
                await after(episode.index)
    return samples


async def disturbed(
    server: RealServer, episodes: int, kills: int, cuts: int, size: int
) -> tuple[list[Sample], int, int]:
    """The same with the server killed and replies cut; how often either happened comes with it."""
    killed = 0
    when = {episodes * (turn + 1) // (kills + 1) for turn in range(kills)}

    async def kill(index: int) -> None:
        nonlocal killed
        if index in when:
            server.kill()
            killed += 1
            await asyncio.to_thread(server.start)

    async with CuttingProxy(server.port, cuts=cuts, every=size // (cuts + 10), seed=7) as proxy:
        samples = await collected(proxy.port, episodes, kill)
        return samples, killed, proxy.cut


async def bytes_said(server: RealServer, episodes: int) -> int:
    """About how much the server says in that many episodes, so that the cuts can be spread over them."""
    async with CuttingProxy(server.port, cuts=0, every=1 << 40, seed=0) as proxy:
        await collected(proxy.port, 30)
        return proxy.bytes_passed * episodes // 30


def measure(server: RealServer, options: argparse.Namespace) -> list[tuple[Verdict, dict[str, Any]]]:
    """Every figure, with what else is worth knowing about it."""
    found = []
    solved = asyncio.run(solved_games(server, options.seeds))
    all_of = sum(count == options.seeds for count in solved.values())
    work = f"{len(PuzzleGame)} games at easy, {options.seeds} seed(s) each"
    found.append((Verdict("games solved by hints", work, all_of, 21), {"solved": solved}))
    for game in ("sudoku", "binary", "lights"):
        # What the two processes used tells the speed of an idle machine, where they take turns.
        server_used, client_used = server.cpu_seconds(), time.process_time()
        _, speed = asyncio.run(hints_of(server.port, game, options.timed, 1))
        used = {
            "ratio": round(speed / BEST_KNOWN, 1),
            "server_cpu_ms": round(1000 * (server.cpu_seconds() - server_used) / options.timed, 2),
            "client_cpu_ms": round(1000 * (time.process_time() - client_used) / options.timed, 2),
        }
        work = f"{game}, {HINTS} hints, one connection (best known: {BEST_KNOWN})"
        found.append((Verdict("episodes a second", work, speed, 50 * BEST_KNOWN), used))
    calm, _ = asyncio.run(hints_of(server.port, "binary", options.episodes, 1))
    many, speed = asyncio.run(hints_of(server.port, "binary", options.episodes, 16))
    wrong = sum(one != other for one, other in itertools.zip_longest(calm, many))
    work = f"{options.episodes} episodes on 16 connections: failed or garbled"
    found.append(
        (Verdict("wrong episodes", work, wrong, 0, at_most=True), {"episodes_per_second": round(speed, 1)})
    )
    found.append(_faults(server, options))
    return found


def _faults(server: RealServer, options: argparse.Namespace) -> tuple[Verdict, dict[str, Any]]:
    size = asyncio.run(bytes_said(server, options.collected))
    undisturbed = asyncio.run(collected(server.port, options.collected))
    began = time.perf_counter()
    samples, killed, cut = asyncio.run(
        disturbed(server, options.collected, options.kills, options.cuts, size)
    )
    seconds = time.perf_counter() - began
    ids = [sample.sample_id for sample in samples]
    episodes = len({sample.episode_id for sample in samples})
    same = samples == undisturbed and len(ids) == len(set(ids))
    reached = same and episodes == options.collected and killed == options.kills and cut == options.cuts
    work = (
        f"{options.collected} episodes, {options.kills} kills, {options.cuts} cuts: the undisturbed samples"
    )
    facts = {
        "episodes": episodes,
        "samples": len(ids),
        "killed": killed,
        "cut": cut,
        "seconds": round(seconds, 1),
    }
    return Verdict("same samples", work, float(reached), 1), facts


def _client(port: int) -> PuzzleClientConfig:
    return PuzzleClientConfig(host="127.0.0.1", port=port, max_retries=12)


def main() -> int:
    """Measure, print, and say by the exit code whether every target is reached."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", choices=list(HANDLERS), help="which server; the first installed without")
    parser.add_argument("--seeds", type=int, default=1, help="puzzles of each game to solve")
    parser.add_argument("--timed", type=int, default=200, help="episodes to time on one connection")
    parser.add_argument("--episodes", type=int, default=500, help="episodes on sixteen connections")
    parser.add_argument("--collected", type=int, default=300, help="episodes of the fault test")
    parser.add_argument("--kills", type=int, default=5, help="times that the server is killed in it")
    parser.add_argument("--cuts", type=int, default=50, help="times that a reply is cut in it")
    parser.add_argument("--json", action="store_true", help="one JSON line for each figure")
    options = parser.parse_args()
    package = options.package or installed_server()
    if package is None:
        print(MISSING, file=sys.stderr)
        return 2
    server = RealServer(package)
    server.start()
    try:
        found = measure(server, options)
    finally:
        server.kill()
    found = [(verdict, facts | {"server": package}) for verdict, facts in found]
    return show_verdicts(found, "arcade", package, options.json)


if __name__ == "__main__":
    sys.exit(main())
