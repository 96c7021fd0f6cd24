"""Scenarios of puzzle-server clients on an unreliable network, with their invariants."""

import functools
import itertools
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from phalanx.puzzles.server_client import (
    CollectConfig,
    ConnectionPoolConfig,
    PuzzleClient,
    PuzzleClientConfig,
    PuzzleEpisode,
    PuzzleEpisodePool,
    PuzzleServerUnavailableError,
    episode_samples,
    episode_specs,
    rollout_episode,
)
from phalanx.puzzles.server_client.collect import collect, load_existing_episodes
from phalanx.puzzles.server_client.protocol import ProtocolError
from tests.faults import network
from tests.faults.simulator import MOST_PROCESSES, World
from tests.helpers.scripted_puzzle_server import ScriptedServer


def collecting(world: World) -> None:
    """Check that faults do not change the file that `phalanx puzzles collect` writes."""
    out = world.folder / "samples.jsonl"
    acknowledged = 0
    for attempt in itertools.count():
        assert attempt < MOST_PROCESSES, "a collection does not come to its end"
        faults = 10 if attempt < 8 else 0
        with world.process(within=400 if attempt < 20 else 10**9):
            try:
                there = load_existing_episodes(out, COLLECTION, resume=True)
                # Lines are not synced one by one: a power cut takes some back, and they are played again.
                assert there.count >= acknowledged or world.power_was_cut, "an acknowledged episode is lost"
                acknowledged = there.count

                def acknowledge() -> None:
                    nonlocal acknowledged
                    acknowledged += 1

                start = functools.partial(collect, COLLECTION, _bytes, out, _EPISODES, there, acknowledge)
                network.run(
                    world,
                    ScriptedServer(max_connection_age=300.0).serve,
                    lambda _, go=start: go(),
                    faults=faults,
                )
                break
            except ProtocolError:
                raise
            except OSError as error:  # a full disk, or a server that is given up
                world.told.append(f"the collection stops: {error}")
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [_timeless(sample) for sample in found] == _calm_collection(), "other samples than of a calm run"


def pool_of_connections(world: World) -> None:
    """Check that a pool returns each episode once, unchanged, and in order if requested."""
    ordered = world.chance.random() < 0.5
    config = ConnectionPoolConfig(
        connections=world.chance.randrange(1, 6),
        max_unconsumed_episodes=world.chance.randrange(1, 9),
        max_connection_age=world.chance.choice([0.05, 240.0]),
        ordered=ordered,
    )
    calm, taken = calm_episodes(), list[int]()

    async def play(loop: network.SimulatedLoop) -> None:
        while len(taken) < len(calm):
            left = [spec for spec in SPECS if spec.index not in taken]
            async with PuzzleEpisodePool(PATIENT, config) as pool:
                try:
                    async for spec, episode in pool.episodes(left, rollout_episode):
                        assert spec.index not in taken, f"episode {spec.index} comes twice"
                        assert episode == calm[spec.index], f"episode {spec.index} was played otherwise"
                        taken.append(spec.index)
                except PuzzleServerUnavailableError as error:
                    world.told.append(f"the pool gives up: {error}")

    network.run(world, ScriptedServer(max_connection_age=300.0).serve, play, faults=30)
    assert taken == sorted(taken) if ordered else sorted(taken) == list(range(len(calm)))


def one_client(world: World) -> None:
    """Check that a client returns the same answers as on a reliable network, before the deadline."""
    wishes = [world.chance.choice(_WISHES) for _ in range(25)]

    async def calm(loop: network.SimulatedLoop) -> list[Any]:
        async with PuzzleClient(PATIENT) as client:
            await client.start_puzzle("sudoku", "easy", 5)
            return [await wish(client) for wish in wishes]

    async def rough(loop: network.SimulatedLoop, wanted: list[Any]) -> None:
        client = PuzzleClient(PATIENT)
        await _in_time(world, loop, lambda: client.start_puzzle("sudoku", "easy", 5))
        for number, (wish, answer) in enumerate(zip(wishes, wanted, strict=True)):
            found = await _in_time(world, loop, functools.partial(wish, client))
            assert found == answer, f"request {number} is answered otherwise: {found}, not {answer}"
        await client.close()

    serve = ScriptedServer(goal=4, max_connection_age=300.0).serve
    wanted = network.run(world, serve, calm, faults=0)
    network.run(world, serve, lambda loop: rough(loop, wanted), faults=30)


async def _in_time(world: World, loop: network.SimulatedLoop, wish: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a request until the server answers; each attempt ends before the deadline."""
    while True:
        began, jumped = loop.time(), loop.jumped
        try:
            return await wish()
        except PuzzleServerUnavailableError as error:
            world.told.append(f"given up: {error}")
        finally:
            lasted = loop.time() - began - (loop.jumped - jumped)
            assert lasted < PATIENT.deadline + 0.1, f"a request took {lasted} s"


async def _hint(client: PuzzleClient) -> Any:
    return await client.get_hint()


async def _follow(client: PuzzleClient) -> Any:
    assert client.observation is not None
    return await client.send_action(f"place 1 {client.observation.moves + 1} {client.observation.moves + 1}")


async def _blunder(client: PuzzleClient) -> Any:
    return await client.send_action("place 1 9 1")


async def _show(client: PuzzleClient) -> Any:
    return await client.show_state()


async def _stats(client: PuzzleClient) -> Any:
    return await client.get_stats()


async def _reset(client: PuzzleClient) -> Any:
    return await client.reset_puzzle()


async def _other(client: PuzzleClient) -> Any:
    return await client.start_puzzle("toy", "easy", 6)


_WISHES = (_hint, _follow, _follow, _blunder, _show, _stats, _reset, _other)
_SEED, _EPISODES = 3, 10
GAMES = ["sudoku"]
SPECS = list(episode_specs(GAMES, ["easy"], _SEED, end=_EPISODES))
COLLECTION = CollectConfig(
    games=tuple(GAMES),
    seed=_SEED,
    pool=ConnectionPoolConfig(connections=3, max_unconsumed_episodes=4, ordered=True),
)
PATIENT = PuzzleClientConfig(max_retries=12)


def _bytes(text: str) -> list[int]:
    return list(text.encode())


@functools.cache
def calm_episodes() -> list[PuzzleEpisode]:
    """Return the episodes of a pool on a reliable network."""

    async def play(loop: network.SimulatedLoop) -> list[PuzzleEpisode]:
        async with PuzzleEpisodePool(PATIENT, ConnectionPoolConfig(ordered=True)) as pool:
            return [episode async for _, episode in pool.episodes(SPECS, rollout_episode)]

    with tempfile.TemporaryDirectory() as folder:
        return network.run(World(0, Path(folder)), ScriptedServer().serve, play, faults=0)


@functools.cache
def _calm_collection() -> list[dict[str, Any]]:
    """Return the samples of the same episodes."""
    samples = [sample for episode in calm_episodes() for sample in episode_samples(episode, _bytes)]
    return [_timeless(json.loads(json.dumps(sample.to_dict()))) for sample in samples]


def _timeless(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "timestamp"}


PUZZLE_SERVER = (collecting, pool_of_connections, one_client)
