"""Specifications of episodes, and a pool that runs episodes concurrently on a puzzle server."""

import asyncio
import dataclasses
import hashlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from pydantic import Field

from phalanx.config import Config
from phalanx.puzzles.server_client.client import ClosedOnExit, PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.protocol import PuzzleDifficulty, PuzzleGame, game_id


@dataclasses.dataclass(frozen=True)
class EpisodeSpec:
    """Game, difficulty and seed of one episode, and its index in a collection (a numbered sequence of
    episodes)."""

    index: int
    """Index of the episode in the collection."""
    game: str
    """The server's id for the game."""
    difficulty: PuzzleDifficulty
    seed: int
    """Seed from which the server generates the puzzle."""

    @property
    def episode_id(self) -> str:
        """Unique id of the episode, which consists of its game, difficulty, seed and index."""
        return f"{self.game}_{self.difficulty.value}_{self.seed}_{self.index}"


def episode_seed(base_seed: int, index: int) -> int:
    """Compute the seed of an episode from its index and the base seed of the sequence of episodes.

    >>> episode_seed(0, 0) == episode_seed(0, 0), episode_seed(0, 0) == episode_seed(0, 1)
    (True, False)
    """
    digest = hashlib.blake2b(f"phalanx-episode {base_seed} {index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def episode_specs(
    games: Sequence[PuzzleGame | str],
    difficulties: Sequence[PuzzleDifficulty | str],
    base_seed: int,
    *,
    first: int = 0,
    end: int | None = None,
) -> Iterator[EpisodeSpec]:
    """Iterate over the specs of the episodes in a collection (a numbered sequence of episodes).

    The episodes go through all games with the first difficulty, then through all games with the second
    difficulty, and so on. After the last difficulty, they start over. Every episode has its own seed.

    Args:
        games: Names of the games.
        difficulties: Difficulties.
        base_seed: Seed of the collection, from which the seed of each episode is derived.
        first: Index of the first episode.
        end: Index at which to stop (exclusive). None means that the iteration does not end.
    """
    if not games or not difficulties:
        raise ValueError("episodes need at least one game and one difficulty")
    names, levels = [game_id(game) for game in games], [PuzzleDifficulty(level) for level in difficulties]
    for index in itertools.count(first) if end is None else range(first, end):
        turn, game_index = divmod(index, len(names))
        level = levels[turn % len(levels)]
        yield EpisodeSpec(index, names[game_index], level, episode_seed(base_seed, index))


class ConnectionPoolConfig(Config):
    """Settings for a `PuzzleEpisodePool`."""

    connections: int = Field(default=4, ge=1, le=100)
    """Number of connections. The server accepts at most 100 connections in total, from all clients."""
    max_unconsumed_episodes: int = Field(default=32, ge=1)
    """Maximum number of episodes that are scheduled, running, or finished but not consumed yet."""
    max_connection_age: float = Field(default=240.0, gt=0)
    """Age in seconds after which a connection is replaced between two episodes. The server closes connections
    after 300 seconds."""
    ordered: bool = False
    """Yield episodes in the order in which they were passed to `episodes` instead of the order in which they
    end."""


RunEpisode: TypeAlias = Callable[[PuzzleClient, EpisodeSpec], Awaitable[Any]]
"""Function that runs one episode with a client and returns its result."""


class PuzzleEpisodePool(ClosedOnExit):
    """Runs episodes concurrently on several connections to a puzzle server.

    Use it in an `async with` statement. All connections are closed on exit.

    Args:
        client: Address of the server, timeouts and retries. If None, the defaults are used.
        config: Number of connections and order of the episodes. If None, the defaults are used.
    """

    def __init__(
        self, client: PuzzleClientConfig | None = None, config: ConnectionPoolConfig | None = None
    ) -> None:
        self.config = config or ConnectionPoolConfig()
        self._client_config = client or PuzzleClientConfig()
        self._clients: list[PuzzleClient] = []
        self._tasks: list[asyncio.Task[tuple[EpisodeSpec, Any]]] = []
        self.reconnects = 0
        """Number of connections that were replaced for any reason. It is updated by `close` and when an
        iteration over `episodes` ends."""
        self.episodes_replayed = 0
        """Number of times that an episode was restored on a new connection. It is updated by `close` and when
        an iteration over `episodes` ends."""

    async def close(self) -> None:
        """Cancel running episodes and close all connections. Calling `close` again has no effect."""
        tasks, self._tasks = self._tasks, []
        clients, self._clients = self._clients, []
        for task in tasks:
            task.cancel()
        # Nothing waits for the results and errors of these episodes anymore.
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            self.reconnects += max(0, client.num_connections - 1)
            self.episodes_replayed += client.puzzles_replayed
            await client.disconnect()

    async def episodes(
        self, specs: Iterable[EpisodeSpec], run: RunEpisode
    ) -> AsyncGenerator[tuple[EpisodeSpec, Any], None]:
        """Run each episode once, and yield its spec and the result of `run`.

        If `run` raises an error, the iteration raises the same error and ends.

        Args:
            specs: Episodes to run.
            run: Function that runs one episode.
        """
        if self._clients:
            raise RuntimeError("this pool is already running episodes; use another one, or close it first")
        seed, remaining = self._client_config.retry_seed * 1000, iter(specs)
        idle: asyncio.Queue[PuzzleClient] = asyncio.Queue()
        for number in range(self.config.connections):
            self._clients.append(PuzzleClient(self._client_config, retry_seed=seed + number))
            idle.put_nowait(self._clients[-1])

        async def run_episode(spec: EpisodeSpec) -> tuple[EpisodeSpec, Any]:
            client = await idle.get()
            if client.connection_age > self.config.max_connection_age:
                await client.disconnect()
            result = await run(client, spec)
            # After an error, the client is not returned, because the iteration ends.
            idle.put_nowait(client)
            return spec, result

        def start_episodes(count: int) -> None:
            next_specs = itertools.islice(remaining, count)
            self._tasks += [asyncio.create_task(run_episode(spec)) for spec in next_specs]

        try:
            start_episodes(self.config.max_unconsumed_episodes)
            while self._tasks:
                due = self._tasks[:1] if self.config.ordered else self._tasks
                await asyncio.wait(due, return_when=asyncio.FIRST_COMPLETED)
                finished = next((task for task in self._tasks if task.done()), None)
                if finished is None:  # the pool was closed
                    return
                self._tasks.remove(finished)
                # Before the result is yielded, so that the next episode runs while the result is used.
                start_episodes(1)
                yield finished.result()
        finally:
            await self.close()
