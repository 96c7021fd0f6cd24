"""A client of the puzzle arcade: starts puzzles, reads hints, makes moves, and outlives its connections.

Bytes and lines are in `connection`, many connections at once in `pool`, samples in `gym_stream`.
"""

import asyncio
import contextlib
import dataclasses
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from phalanx.data.stream_base import ClosedOnExit
from phalanx.puzzles.server.errors import (
    CommandError,
    InvalidReplyError,
    NoPuzzleError,
    ProtocolError,
    PuzzleServerConnectionError,
    PuzzleServerUnavailableError,
    Retries,
    StartError,
    UnknownGameError,
)
from phalanx.puzzles.server.protocol import (
    PuzzleDifficulty,
    PuzzleGame,
    PuzzleHint,
    PuzzleObservation,
    PuzzleResult,
    PuzzleStats,
    Reply,
    command_for_hint,
    ends_in_menu,
    ends_reply,
    game_id,
    nearest_game,
)
from phalanx.puzzles.server.telnet import TelnetConnection, one_line

Answer = TypeVar("Answer")

HINT_LIMIT = 99
"""Hints of one puzzle. The server allows 100, but version 0.10 answers the last as if all were solved."""

_BARRIER = "mode json\n"
"""Its acknowledgement ends every reply, whatever the reply itself looks like."""

_SHOWN = ("observation", PuzzleObservation)

_NO_MOVES = frozenset({"quit", "exit", "q", "menu", "m", "mode", "hint", "reset"})
"""Words that change the connection or the count of hints, and so have methods of their own."""

_LOGIC_GRID = (
    "the server turns names into small letters and so refuses every move of Logic Grid; "
    "its hints can be read but not played"
)


class ServerAddress(BaseModel):
    """Where a puzzle server is, and how long to wait for it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "localhost"
    """The server's name or address."""
    port: int = Field(default=8023, ge=1, le=65535)
    """The server's port."""
    connect_timeout: float = Field(default=10.0, gt=0)
    """Seconds for one attempt to connect, greeting included."""
    read_timeout: float = Field(default=30.0, gt=0)
    """Seconds for one reply."""
    deadline: float = Field(default=120.0, gt=0)
    """Seconds for one request in all, with every further attempt at it; then the server is given up."""


class PuzzleClientConfig(ServerAddress):
    """Where the server is, and how patient to be with it."""

    max_retries: int = Field(default=8, ge=0)
    """Further attempts when the server is full, not there, silent, or hangs up."""
    retry_delay: float = Field(default=0.05, ge=0)
    """Seconds before the first of them; doubled each time."""
    max_retry_delay: float = Field(default=2.0, ge=0)
    """The longest of these pauses."""
    retry_jitter: float = Field(default=0.5, ge=0, le=1)
    """The share of a pause that is random."""
    retry_seed: int = 0
    """What the random share is drawn from."""
    max_line_bytes: int = Field(default=1 << 20, ge=1024)
    """The longest line to accept from the server."""


@dataclasses.dataclass
class _Puzzle:
    """The puzzle in progress, and all that makes it again on another connection."""

    game: str
    observation: PuzzleObservation
    commands: list[str] = dataclasses.field(default_factory=list)
    """Every command that was answered and may have changed it, hints among them."""

    @property
    def start(self) -> str:
        seen = self.observation
        return f"{self.game} {seen.difficulty.value} {seen.seed}"

    @property
    def hints(self) -> int:
        return self.commands.count("hint")


class PuzzleClient(ClosedOnExit):
    """At most one puzzle in progress on a puzzle server, whatever becomes of the connection.

    Commands of several tasks wait for one another. A connection that is lost, or that the server ends at 300
    seconds, is made anew, and the puzzle with it: begun from its seed, and every command so far sent again,
    so that it stands where it stood. A request ends within `deadline` seconds: with its answer, or with an
    `PuzzleServerUnavailableError`.
    """

    def __init__(self, config: PuzzleClientConfig | None = None, *, retry_seed: int | None = None) -> None:
        self.config = config or PuzzleClientConfig()
        self._draws = random.Random(self.config.retry_seed if retry_seed is None else retry_seed)
        self._connection: TelnetConnection | None = None
        self._turn = asyncio.Lock()
        self._in_game = False
        self._puzzle: _Puzzle | None = None
        self._hung_up = 0
        self._retries: Retries  # of the request that has its turn
        self.connections_made = 0
        """How many connections there have been."""
        self.puzzles_replayed = 0
        """How often a puzzle was taken up again on a new connection."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def close(self) -> None:
        """`disconnect`, as everything that is opened calls it."""
        await self.disconnect()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as one can know without using it."""
        return self._connection is not None and self._connection.usable

    @property
    def connection_age(self) -> float:
        """Seconds since the connection was made, 0 without one; the server ends it at 300."""
        return self._connection.age if self._connection is not None and self.is_connected else 0.0

    @property
    def observation(self) -> PuzzleObservation | None:
        """The puzzle as it was last seen."""
        return None if self._puzzle is None else self._puzzle.observation

    async def connect(self) -> None:
        """Connect, unless there is a connection. Full servers and lost connections are tried again."""

        async def nothing() -> None:
            pass

        async with self._turn:
            await self._persist(nothing)

    async def disconnect(self) -> None:
        """Hang up and leave the puzzle; doing it twice is no mistake."""
        self._hung_up += 1
        self._puzzle = None
        await self._drop()

    async def start_puzzle(
        self,
        game: PuzzleGame | str,
        difficulty: PuzzleDifficulty | str = PuzzleDifficulty.EASY,
        seed: int | None = None,
    ) -> PuzzleObservation:
        """Begin a puzzle, leaving the one in progress. Without a seed the server draws one.

        Any game of the server may be named; an `UnknownGameError` says which one is nearest.
        """
        name, level = game_id(game), PuzzleDifficulty(difficulty)
        command = f"{name} {level.value}" + ("" if seed is None else f" {int(seed)}")
        async with self._turn:
            self._puzzle = None
            observation = await self._persist(lambda: self._start(name, command))
            self._puzzle = _Puzzle(name, observation)
            return observation

    async def get_hint(self) -> PuzzleHint:
        """The next move of a solution, as text (`message`) and as a `command` for `send_action`.

        `success` is false where there is no hint to follow (HINT_NONE, HINT_DENIED, HINT_LIMIT). Whether the
        puzzle is solved is for `state.is_complete` to say.
        """
        async with self._turn:
            puzzle = self._require_puzzle("a hint")
            if puzzle.hints >= HINT_LIMIT:
                words = f"{HINT_LIMIT} hints have been asked for, and the server gives no more"
                return PuzzleHint(success=False, code="HINT_LIMIT", message=words, state=puzzle.observation)
            result, reply = await self._command("hint", puzzle)
        for line in reply.texts:
            if line.startswith("Hint:"):
                text = line.removeprefix("Hint:").strip()
                command = command_for_hint(puzzle.game, text)
                return PuzzleHint(
                    success=True, code="HINT", message=text, state=puzzle.observation, command=command
                )
        # The server calls it a success that there is none.
        return PuzzleHint(**dict(result) | {"success": False})

    async def send_action(self, action: str) -> PuzzleResult:
        """Make a move, as `place 1 2 7`. A refused move is a result, not an error.

        A `CommandError` is raised for what is no single command, or one that has a method of its own.
        """
        command = one_line(action)
        if (word := command.split()[0].lower()) in _NO_MOVES:
            raise CommandError(f"{word!r} is no move; use the client's methods for it")
        async with self._turn:
            puzzle = self._require_puzzle(f"the command {command!r}")
            result, _ = await self._command(command, puzzle)
        if not result.success and puzzle.game == PuzzleGame.LOGIC_GRID:
            return result.model_copy(update={"message": f"{result.message} ({_LOGIC_GRID})".strip()})
        return result

    async def show_state(self) -> PuzzleObservation:
        """The puzzle as it stands."""
        async with self._turn:
            puzzle = self._require_puzzle("the state")
            puzzle.observation = await self._persist(self._show)
            return puzzle.observation

    async def get_stats(self) -> PuzzleStats:
        """How the play has gone so far."""
        async with self._turn:
            self._require_puzzle("the statistics")
            reply = await self._persist(lambda: self._ask("stats"))
        return reply.message("stats", PuzzleStats)

    async def reset_puzzle(self) -> PuzzleObservation:
        """The puzzle from its start again, with all its hints.

        The server cannot take every game back; where it cannot, the puzzle is made again from its seed.
        """
        async with self._turn:
            puzzle = self._require_puzzle("the reset")

            async def attempt() -> PuzzleObservation:
                reply = await self._ask("reset")
                if reply.has("observation"):
                    return reply.message(*_SHOWN)
                return await self._start(puzzle.game, puzzle.start)

            # In one request, which has one deadline.
            observation = await self._persist(attempt)
            self._puzzle = _Puzzle(puzzle.game, observation)
            return observation

    async def quit_puzzle(self) -> None:
        """Leave the puzzle; the connection stays, for the next one."""
        async with self._turn:
            self._puzzle = None
            if self.is_connected and self._in_game:
                self._in_game, self._retries = False, Retries(self.config, self._draws)
                # A connection that is lost now has left the puzzle too.
                with contextlib.suppress(PuzzleServerConnectionError):
                    await self._ask("menu", ends_in_menu)

    async def _persist(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Do it with a connection on which the puzzle stands as it did; on a new one where that is lost."""
        self._retries, hung_up = Retries(self.config, self._draws), self._hung_up
        while True:
            try:
                if not self.is_connected:
                    await self._connect()
                return await attempt()
            except PuzzleServerConnectionError as error:
                if self._hung_up != hung_up:
                    raise PuzzleServerConnectionError("the client was disconnected") from error
                await self._drop()
                await self._retries.pause(error)
            except ProtocolError:
                await self._drop()
                raise

    async def _connect(self) -> None:
        await self._drop()
        try:
            self._connection = await TelnetConnection.open(self.config, self._retries.seconds_left)
        except socket.gaierror as error:
            if self.connections_made:  # the host was there: it is the name server that fails, for a while
                raise PuzzleServerConnectionError(str(error)) from error
            raise PuzzleServerUnavailableError(
                f"there is no host {self.config.host!r}: {error.strerror}"
            ) from error
        except PuzzleServerConnectionError:
            raise
        except OSError as error:
            raise PuzzleServerConnectionError(str(error)) from error
        self.connections_made += 1
        if self._puzzle is not None:
            await self._take_up(self._puzzle)

    async def _take_up(self, puzzle: _Puzzle) -> None:
        """The puzzle on a new connection, where it stood on the last one."""
        self.puzzles_replayed += 1
        shown = await self._start(puzzle.game, puzzle.start)
        for command in puzzle.commands:
            await self._ask(command)
        if puzzle.commands:
            shown = await self._show()
        if shown.grid_display != puzzle.observation.grid_display:
            raise ProtocolError(
                f"the server at {self.config.host}:{self.config.port} makes another puzzle of "
                f"{puzzle.start!r} than before, so the one that lost its connection cannot go on"
            )

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._in_game = False
        if connection is not None:
            await connection.close()

    async def _start(self, name: str, command: str) -> PuzzleObservation:
        leave, self._in_game = "menu\n" if self._in_game else "", False
        reply = await self._ask(f"{leave}{command}", lambda line: ends_reply(line) or ends_in_menu(line))
        if not reply.acknowledged:
            # The answer to the barrier may still be under way; only a new connection has none of it.
            await self._drop()
            where = f"the server at {self.config.host}:{self.config.port}"
            if name in list(PuzzleGame):
                raise StartError(f"{where} did not start {command!r}: it lacks the game or failed to make it")
            raise UnknownGameError(f"{where} has no game {name!r}{nearest_game(name)}")
        self._in_game = True
        # The first puzzle of a connection is shown before JSON is switched on.
        return reply.message(*_SHOWN) if reply.has("observation") else await self._show()

    async def _show(self) -> PuzzleObservation:
        return (await self._ask("show")).message(*_SHOWN)

    async def _command(self, command: str, puzzle: _Puzzle) -> tuple[PuzzleResult, Reply]:
        """Send what may change the puzzle, and remember it."""

        async def attempt() -> tuple[PuzzleResult, Reply]:
            reply = await self._ask(command)
            return reply.result(command, puzzle.observation), reply

        result, reply = await self._persist(attempt)
        puzzle.commands.append(command)
        puzzle.observation = result.state or puzzle.observation
        return result, reply

    async def _ask(self, command: str, is_last: Callable[[str], bool] = ends_reply) -> Reply:
        if self._connection is None:
            raise PuzzleServerConnectionError("the client was disconnected")
        timeout = min(self.config.read_timeout, self._retries.seconds_left)
        lines = await self._connection.ask(f"{command}\n{_BARRIER}", is_last, timeout)
        try:
            return Reply(lines)
        except InvalidReplyError:
            self._connection.abort()
            raise

    def _require_puzzle(self, what: str) -> _Puzzle:
        if self._puzzle is None:
            raise NoPuzzleError(f"{what} needs a puzzle in progress: call start_puzzle first")
        return self._puzzle
