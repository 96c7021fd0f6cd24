"""Many connections to a puzzle server playing episodes side by side.

Which episodes there are is decided here too; how one is played is the caller's, and `episodes` has one way.
That an episode outlives its connection is the client's doing.
"""

import asyncio
import dataclasses
import hashlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from phalanx.data.stream_base import ClosedOnExit
from phalanx.puzzles.server.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server.protocol import PuzzleDifficulty, PuzzleGame, game_id


@dataclasses.dataclass(frozen=True)
class EpisodeSpec:
    """One puzzle to be played."""

    index: int
    """Which episode of the collection, from 0."""
    game: str
    """The server's name of the game."""
    difficulty: PuzzleDifficulty
    seed: int
    """What the server makes the puzzle from."""

    @property
    def episode_id(self) -> str:
        """Names the episode: game, difficulty, seed and index."""
        return f"{self.game}_{self.difficulty.value}_{self.seed}_{self.index}"


def episode_seed(base_seed: int, index: int) -> int:
    """The seed of one episode: of the base seed and the index alone, whatever came before it.

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
    """Episodes `first` to `end`, without it (None: for ever): the games in turn, then the next difficulty."""
    if not games or not difficulties:
        raise ValueError("episodes need at least one game and one difficulty")
    names, levels = [game_id(game) for game in games], [PuzzleDifficulty(level) for level in difficulties]
    for index in itertools.count(first) if end is None else range(first, end):
        turn, place = divmod(index, len(names))
        yield EpisodeSpec(index, names[place], levels[turn % len(levels)], episode_seed(base_seed, index))


class ConnectionPoolConfig(BaseModel):
    """How many connections there are, and how far they may run ahead of whoever takes their episodes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    connections: int = Field(default=4, ge=1, le=100)
    """Connections at once; the server takes 100 in all."""
    queue_size: int = Field(default=32, ge=1)
    """Episodes that are being played or wait to be taken, together; no more are begun until one is taken."""
    recycle_after: float = Field(default=240.0, gt=0)
    """Seconds after which a connection is made anew before its next episode; the server ends it at 300."""
    ordered: bool = False
    """Hand out episodes in the order of their specs; otherwise as they end."""


Play: TypeAlias = Callable[[PuzzleClient, EpisodeSpec], Awaitable[Any]]
"""Plays an episode from its start to its end; the client sees to it that the connection holds."""


class PuzzlePool(ClosedOnExit):
    """Connections that play episodes; use it with `async with`, which leaves no task or socket behind."""

    def __init__(
        self, client: PuzzleClientConfig | None = None, config: ConnectionPoolConfig | None = None
    ) -> None:
        self.config = config or ConnectionPoolConfig()
        self._client_config = client or PuzzleClientConfig()
        self._workers: list[asyncio.Task[None]] = []
        self._clients: list[PuzzleClient] = []
        self.recycled = 0
        """Connections that were made anew because of their age."""
        self.reconnects = 0
        """Connections that were made anew for any reason, by runs that have ended."""
        self.episodes_replayed = 0
        """Times that an episode was taken up on a new connection, by runs that have ended."""

    async def close(self) -> None:
        """End what is being played and hang up; doing it twice is no mistake."""
        workers, self._workers = self._workers, []
        clients, self._clients = self._clients, []
        for worker in workers:
            worker.cancel()
        # Their errors have been handed on, or are those of a run that nobody waits for any more.
        await asyncio.gather(*workers, return_exceptions=True)
        for client in clients:
            self.reconnects += max(0, client.connections_made - 1)
            self.episodes_replayed += client.puzzles_replayed
            await client.disconnect()

    async def episodes(
        self, specs: Iterable[EpisodeSpec], play: Play
    ) -> AsyncGenerator[tuple[EpisodeSpec, Any], None]:
        """Play each spec once and give it with what `play` returned.

        An error of `play` ends the run and is raised here.
        """
        if self._workers:
            raise RuntimeError("this pool is playing already; use another one, or close it first")
        ended: asyncio.Queue[_Ended] = asyncio.Queue()
        slots = asyncio.Semaphore(self.config.queue_size)
        todo = enumerate(specs)
        seed = self._client_config.retry_seed
        self._clients = [
            PuzzleClient(self._client_config, retry_seed=seed * 1000 + number)
            for number in range(self.config.connections)
        ]
        self._workers = [
            asyncio.create_task(self._work(client, todo, play, slots, ended)) for client in self._clients
        ]
        try:
            async for entry in self._taken(ended):
                # Before it is handed out: while it is being used, the next one can be begun.
                slots.release()
                yield entry
        finally:
            await self.close()

    async def _taken(self, ended: "asyncio.Queue[_Ended]") -> AsyncIterator[tuple[EpisodeSpec, Any]]:
        working, waiting, turn = len(self._workers), dict[int, tuple[EpisodeSpec, Any]](), 0
        while working:
            entry = await ended.get()
            if entry.error is not None:
                raise entry.error
            if entry.spec is None:
                working -= 1
            elif not self.config.ordered:
                yield entry.spec, entry.outcome
            else:
                waiting[entry.turn] = entry.spec, entry.outcome
                while turn in waiting:
                    yield waiting.pop(turn)
                    turn += 1

    async def _work(
        self,
        client: PuzzleClient,
        todo: Iterator[tuple[int, EpisodeSpec]],
        play: Play,
        slots: asyncio.Semaphore,
        ended: "asyncio.Queue[_Ended]",
    ) -> None:
        """One connection's share: the next episode, and the next, until there are none."""
        failed: Exception | None = None
        try:
            while True:
                # A slot is taken before the episode, so the episode that is next in order always has one.
                await slots.acquire()
                turn, spec = next(todo, (-1, None))
                if spec is None:
                    slots.release()
                    break
                if client.connection_age > self.config.recycle_after:
                    self.recycled += 1
                    await client.disconnect()
                ended.put_nowait(_Ended(turn, spec, await play(client, spec)))
        # Whatever it is, it is raised where the episodes are taken.
        except Exception as error:
            failed = error
        finally:
            # When it is canceled too: whoever waits for an episode must not wait for ever.
            ended.put_nowait(_Ended(error=failed))
            await client.disconnect()


@dataclasses.dataclass(frozen=True)
class _Ended:
    """An episode that ended; without one, a connection that has no more to do, or that failed."""

    turn: int = -1
    spec: EpisodeSpec | None = None
    outcome: Any = None
    error: Exception | None = None
