"""The connection pool: each episode is returned once despite lost connections, and nothing leaks."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from phalanx.puzzles.server_client.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.episode_pool import (
    ConnectionPoolConfig,
    EpisodeSpec,
    PuzzleEpisodePool,
    episode_seed,
    episode_specs,
)
from phalanx.puzzles.server_client.episodes import PuzzleEpisode, rollout_episode
from phalanx.puzzles.server_client.protocol import (
    PuzzleDifficulty,
    PuzzleServerUnavailableError,
    UnknownGameNameError,
)
from tests.helpers.cutting_proxy import CuttingProxy
from tests.helpers.puzzle_server import RealServer, running_server
from tests.helpers.scripted_puzzle_server import ScriptedServer, Session, scripted_server

EASY = PuzzleDifficulty.EASY


def client(port: int, **others: object) -> PuzzleClientConfig:
    quick = {"retry_delay": 0.001, "max_retry_delay": 0.05, "max_retries": 100, "read_timeout": 10.0}
    return PuzzleClientConfig(**{"host": "127.0.0.1", "port": port} | quick | others)


async def play_hint(connected: PuzzleClient, spec: EpisodeSpec) -> int:
    """Run a minimal episode: start a puzzle, request a hint, and return the seed of the observation."""
    observation = await connected.start_puzzle("toy", spec.difficulty, spec.seed)
    await connected.get_hint()
    return observation.seed


async def collect(
    pool: PuzzleEpisodePool, specs: Iterator[EpisodeSpec] | list[EpisodeSpec]
) -> list[tuple[int, int]]:
    return [(spec.index, seed) async for spec, seed in pool.episodes(specs, play_hint)]


def specs(count: int) -> list[EpisodeSpec]:
    return list(episode_specs(["toy"], [EASY], 11, end=count))


def test_episode_seed_depends_only_on_base_seed_and_index() -> None:
    ten = list(episode_specs(["sudoku", "Lights Out"], ["easy", "hard"], 3, end=10))
    assert ten[4:] == list(
        itertools.islice(episode_specs(["sudoku", "lights"], ["easy", "hard"], 3, first=4), 6)
    )
    assert [spec.game for spec in ten[:4]] == ["sudoku", "lights", "sudoku", "lights"]
    assert [spec.difficulty.value for spec in ten[:5]] == ["easy", "easy", "hard", "hard", "easy"]
    assert [spec.seed for spec in ten] == [episode_seed(3, index) for index in range(10)]
    assert len({episode_seed(base, index) for base in range(5) for index in range(200)}) == 1000
    assert ten[0].episode_id == f"sudoku_easy_{episode_seed(3, 0)}_0"


def test_episode_seeds_are_stable_across_versions() -> None:
    assert [episode_seed(0, 0), episode_seed(0, 1), episode_seed(42, 7)] == [342265601, 557668587, 1924415248]


@pytest.mark.parametrize("ordered", [True, False])
def test_every_episode_is_returned_once_with_its_seed(ordered: bool) -> None:
    async def run() -> list[tuple[int, int]]:
        server = ScriptedServer()
        config = ConnectionPoolConfig(connections=5, max_unconsumed_episodes=7, ordered=ordered)
        async with scripted_server(server), PuzzleEpisodePool(client(server.port), config) as pool:
            return await collect(pool, specs(40))

    found = asyncio.run(run())
    expected = [(spec.index, spec.seed) for spec in specs(40)]
    assert (found if ordered else sorted(found)) == expected


def test_ordered_pool_waits_for_the_slowest_episode() -> None:
    async def play(connected: PuzzleClient, spec: EpisodeSpec) -> int:
        await asyncio.sleep(0.05 if spec.index == 0 else 0)
        return spec.index

    async def run(ordered: bool) -> list[int]:
        async with PuzzleEpisodePool(
            config=ConnectionPoolConfig(connections=3, max_unconsumed_episodes=4, ordered=ordered)
        ) as pool:
            return [index async for _, index in pool.episodes(specs(9), play)]

    assert asyncio.run(run(True)) == list(range(9))
    assert asyncio.run(run(False))[0] == 1


def test_started_episodes_are_limited_by_queue_size() -> None:
    started = []

    async def play(connected: PuzzleClient, spec: EpisodeSpec) -> None:
        started.append(spec.index)

    async def run() -> None:
        config = ConnectionPoolConfig(connections=3, max_unconsumed_episodes=4, ordered=True)
        async with PuzzleEpisodePool(config=config) as pool:
            episodes = pool.episodes(episode_specs(["toy"], [EASY], 0), play)
            await anext(episodes)
            await asyncio.sleep(0.02)
            assert len(started) == 5
            for _ in range(3):
                await anext(episodes)
            await asyncio.sleep(0.02)
            assert len(started) == 8
            await episodes.aclose()

    asyncio.run(run())


def test_dropped_episode_is_replayed_with_its_seed() -> None:
    async def drop(session: Session) -> None:
        session.writer.transport.abort()

    async def run() -> tuple[list[tuple[int, int]], int]:
        server = ScriptedServer()
        async with (
            scripted_server(server),
            PuzzleEpisodePool(client(server.port), ConnectionPoolConfig(connections=2)) as pool,
        ):
            server.scripts["hint"] = drop
            found = await collect(pool, specs(6))
            assert pool.reconnects == 1
            return sorted(found), pool.episodes_replayed

    found, replayed = asyncio.run(run())
    assert found == [(spec.index, spec.seed) for spec in specs(6)]
    assert replayed == 1


def test_episode_that_is_always_dropped_raises_error() -> None:
    async def drop(session: Session) -> None:
        session.writer.transport.abort()

    async def run() -> None:
        server = ScriptedServer()
        server.always["hint"] = drop
        config = ConnectionPoolConfig(connections=1)
        async with (
            scripted_server(server),
            PuzzleEpisodePool(client(server.port, max_retries=2), config) as pool,
        ):
            with pytest.raises(PuzzleServerUnavailableError, match=r"after 3 attempt\(s\)"):
                await collect(pool, specs(2))

    asyncio.run(run())


def test_closing_the_pool_ends_waiting_consumers() -> None:
    async def block(connected: PuzzleClient, spec: EpisodeSpec) -> None:
        await asyncio.sleep(60)

    async def run() -> list[tuple[EpisodeSpec, None]]:
        async with PuzzleEpisodePool(config=ConnectionPoolConfig(connections=2)) as pool:

            async def take() -> list[tuple[EpisodeSpec, None]]:
                return [entry async for entry in pool.episodes(specs(9), block)]

            waiting = asyncio.create_task(take())
            await asyncio.sleep(0.02)
            await pool.close()
            return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(run()) == []


def test_old_connections_are_recycled() -> None:
    async def run() -> tuple[int, int, int]:
        server = ScriptedServer()
        config = ConnectionPoolConfig(connections=1, max_connection_age=1e-6)
        async with scripted_server(server), PuzzleEpisodePool(client(server.port), config) as pool:
            found = await collect(pool, specs(5))
            return len(found), pool.reconnects, len(server.sessions)

    assert asyncio.run(run()) == (5, 4, 5)


def test_error_of_the_rollout_function_is_raised_without_retry() -> None:
    async def run() -> int:
        server = ScriptedServer()

        async def play(connected: PuzzleClient, spec: EpisodeSpec) -> None:
            await connected.start_puzzle("nonsense")

        async with scripted_server(server), PuzzleEpisodePool(client(server.port)) as pool:
            with pytest.raises(UnknownGameNameError, match="has no game 'nonsense'"):
                async for _ in pool.episodes(specs(2), play):
                    pass
            return pool.episodes_replayed

    assert asyncio.run(run()) == 0


@pytest.mark.parametrize("exit_by", ["break", "cancel", "error"])
def test_no_tasks_or_connections_remain_after_leaving_a_run(exit_by: str) -> None:
    errors: list[dict] = []

    async def run() -> set[str]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        server = ScriptedServer()
        async with scripted_server(server):
            other_tasks = asyncio.all_tasks()

            async def take() -> None:
                async with PuzzleEpisodePool(
                    client(server.port), ConnectionPoolConfig(connections=8)
                ) as pool:
                    async for spec, _ in pool.episodes(episode_specs(["toy"], [EASY], 0), play_hint):
                        if spec.index < 5:
                            continue
                        if exit_by == "break":
                            break
                        if exit_by == "error":
                            raise KeyError("raised by the user")
                        await asyncio.sleep(60)

            task = asyncio.create_task(take())
            await asyncio.wait([task], timeout=0.3)
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            assert isinstance(
                result, {"break": type(None), "cancel": asyncio.CancelledError}.get(exit_by, KeyError)
            )
            for _ in range(50):
                await asyncio.sleep(0.002)
                if all(session.reader.at_eof() or session.reader.exception() for session in server.sessions):
                    break
            assert all(session.reader.at_eof() or session.reader.exception() for session in server.sessions)
            remaining = asyncio.all_tasks() - other_tasks - {task}
            return {str(other) for other in remaining if "ScriptedServer" not in str(other)}

    assert asyncio.run(run()) == set()
    assert errors == []


def test_concurrent_runs_of_one_pool_raise_error() -> None:
    async def run() -> None:
        server = ScriptedServer()
        async with scripted_server(server), PuzzleEpisodePool(client(server.port)) as pool:
            first = pool.episodes(specs(9), play_hint)
            await anext(first)
            with pytest.raises(RuntimeError, match="is already running episodes"):
                await anext(pool.episodes(specs(9), play_hint))
            await first.aclose()
            assert len(await collect(pool, specs(3))) == 3

    asyncio.run(run())


GAMES = ("lights", "binary", "mastermind", "knapsack")


async def play(connected: PuzzleClient, spec: EpisodeSpec) -> PuzzleEpisode:
    return await rollout_episode(connected, spec)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with running_server() as running:
        yield running


def test_episodes_are_unchanged_by_server_restarts_and_dropped_connections(server: RealServer) -> None:
    async def run(port: int, kills: tuple[int, ...]) -> tuple[list[PuzzleEpisode], PuzzleEpisodePool]:
        config = ConnectionPoolConfig(connections=4, ordered=True)
        found = []
        async with PuzzleEpisodePool(client(port), config) as pool:
            async for spec, episode in pool.episodes(episode_specs(GAMES, [EASY], 5, end=30), play):
                assert spec.episode_id == episode.episode_id
                found.append(episode)
                if spec.index in kills:
                    server.kill()
                    await asyncio.to_thread(server.start)
        return found, pool

    async def run_with_faults() -> tuple[list[PuzzleEpisode], int, int]:
        async with CuttingProxy(server.port, cuts=5, every=20_000, seed=1) as proxy:
            found, pool = await run(proxy.port, (8, 17))
            return found, proxy.cut, pool.episodes_replayed

    expected, _ = asyncio.run(run(server.port, ()))
    episodes, cuts, replayed = asyncio.run(run_with_faults())
    assert len(expected) == 30 and all(episode.success for episode in expected)
    assert episodes == expected
    assert cuts == 5 and replayed >= 3
