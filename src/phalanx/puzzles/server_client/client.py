"""Asynchronous client for a puzzle server. If the connection is lost, the client restores its puzzle."""

import abc
import asyncio
import contextlib
import dataclasses
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Self, TypeVar

from pydantic import Field

from phalanx.config import Config
from phalanx.puzzles.server_client.protocol import (
    MENU_REPLY_END,
    REPLY_END,
    CommandResult,
    InvalidCommandError,
    NoCurrentPuzzleError,
    ProtocolError,
    PuzzleDifficulty,
    PuzzleGame,
    PuzzleHint,
    PuzzleObservation,
    PuzzleServerConnectionError,
    PuzzleServerUnavailableError,
    PuzzleStartError,
    PuzzleStats,
    Reply,
    UnknownGameNameError,
    command_for_hint,
    game_id,
    nearest_game,
)
from phalanx.puzzles.server_client.telnet import TelnetConnection, one_line

Answer = TypeVar("Answer")

_LOG = logging.getLogger("phalanx.puzzles.server_client")

HINT_LIMIT = 99
"""Maximum number of hints per puzzle. The server allows 100, but version 0.10 of the server replies to the
100th request as if the puzzle were solved."""

_BARRIER = "mode json\n"
"""Command that the client adds to the end of each request. Its acknowledgment marks the end of the reply."""

_OBSERVATION = ("observation", PuzzleObservation)

_RESERVED_COMMANDS = frozenset({"quit", "exit", "q", "menu", "m", "mode", "hint", "reset"})
"""Commands that `send_action` rejects, because they are not moves: they leave the puzzle, close the
connection, change the format of replies, request a hint or reset the puzzle. `PuzzleClient` has methods for
leaving a puzzle, for hints and for resets."""

_LOGIC_GRID_NOTE = (
    "the server turns names into small letters and so refuses every move of Logic Grid; "
    "its hints can be read but not played"
)


class PuzzleClientConfig(Config):
    """Settings for connecting to a puzzle server: address, timeouts and retries."""

    host: str = "localhost"
    """Host name or address of the server."""
    port: int = Field(default=8023, ge=1, le=65535)
    """Port of the server."""
    connect_timeout: float = Field(default=10.0, gt=0)
    """Maximum time in seconds for one attempt to connect, including the wait for the server's greeting."""
    read_timeout: float = Field(default=30.0, gt=0)
    """Maximum time to wait for one reply, in seconds."""
    deadline: float = Field(default=120.0, gt=0)
    """Maximum time in seconds for one request, including all retries."""
    max_retries: int = Field(default=8, ge=0)
    """Maximum number of retries per request. A request is retried if the server is full or unreachable, does
    not reply, sends an invalid reply or closes the connection."""
    retry_delay: float = Field(default=0.05, ge=0)
    """Delay before the first retry, in seconds. The delay doubles with each retry."""
    max_retry_delay: float = Field(default=2.0, ge=0)
    """Maximum delay before a retry, in seconds."""
    retry_jitter: float = Field(default=0.5, ge=0, le=1)
    """Maximum fraction by which a delay is randomly shortened, so that many clients do not retry at the same
    time."""
    retry_seed: int = 0
    """Seed for the random part of the delays."""
    max_line_bytes: int = Field(default=1 << 20, ge=1024)
    """Maximum length of a line from the server, in bytes. A longer line raises an error."""


def backoff_delay(config: PuzzleClientConfig, attempt: int, rng: random.Random) -> float:
    """Return the delay in seconds after failed attempt number `attempt`, counted from 1.

    >>> config = PuzzleClientConfig(retry_delay=0.1, max_retry_delay=0.5, retry_jitter=0.0)
    >>> [backoff_delay(config, attempt, random.Random(0)) for attempt in (1, 2, 3, 4, 5)]
    [0.1, 0.2, 0.4, 0.5, 0.5]
    """
    # The exponent is limited because 2.0**2000 overflows; the maximum delay is reached long before.
    delay = min(config.max_retry_delay, config.retry_delay * 2.0 ** min(attempt - 1, 60))
    return delay * (1.0 - config.retry_jitter * rng.random())


@dataclasses.dataclass
class _Puzzle:
    """The current puzzle, with the data that is needed to restore it on a new connection."""

    game: str
    observation: PuzzleObservation
    commands: list[str] = dataclasses.field(default_factory=list)
    """All commands so far that may have changed the puzzle, including requests for hints."""

    @property
    def start(self) -> str:
        seen = self.observation
        return f"{self.game} {seen.difficulty.value} {seen.seed}"


class ClosedOnExit(contextlib.AbstractAsyncContextManager["ClosedOnExit"]):
    """Base class for asynchronous context managers that call `close` on exit."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Release resources. This may be called more than once."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class PuzzleClient(ClosedOnExit):
    """Client for a puzzle server, with one connection and at most one current puzzle.

    Concurrent calls are processed one at a time. If the connection is lost, or closed by the server after 300
    seconds, the client connects again and restores the puzzle: it starts the puzzle from its seed and sends
    all previous commands again. A request ends within `config.deadline` seconds, either with its result or
    with a `PuzzleServerUnavailableError`.

    Args:
        config: Address of the server, timeouts and retries. If None, the defaults are used.
        retry_seed: Seed for the random part of retry delays. Defaults to `config.retry_seed`.
    """

    def __init__(self, config: PuzzleClientConfig | None = None, *, retry_seed: int | None = None) -> None:
        self.config = config or PuzzleClientConfig()
        self._rng = random.Random(self.config.retry_seed if retry_seed is None else retry_seed)
        self._connection: TelnetConnection | None = None
        self._lock = asyncio.Lock()
        self._in_game = False
        self._puzzle: _Puzzle | None = None
        self._num_disconnects = 0
        self._request_start = 0.0
        self.num_connections = 0
        """Number of connections that have been established so far."""
        self.puzzles_replayed = 0
        """Number of times that a puzzle was restored on a new connection."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def close(self) -> None:
        """Disconnect and abandon the puzzle."""
        await self.disconnect()

    @property
    def is_connected(self) -> bool:
        """True if connected. A connection closed by the server counts as connected until the next request."""
        return self._connection is not None and self._connection.usable

    @property
    def connection_age(self) -> float:
        """Age of the connection in seconds, or 0 if not connected. The server closes connections after 300
        seconds."""
        return self._connection.age if self._connection is not None and self.is_connected else 0.0

    @property
    def observation(self) -> PuzzleObservation | None:
        """Last known state of the current puzzle, or None if there is no current puzzle."""
        return None if self._puzzle is None else self._puzzle.observation

    async def connect(self) -> None:
        """Connect, unless already connected. Attempts are repeated if the server is full or unreachable."""
        async with self._lock:
            # `_retry` connects; there is nothing else to do.
            await self._retry(lambda: asyncio.sleep(0))

    async def disconnect(self) -> None:
        """Disconnect and abandon the puzzle. This may be called more than once."""
        self._num_disconnects += 1
        self._puzzle = None
        await self._drop()

    async def start_puzzle(
        self,
        game: PuzzleGame | str,
        difficulty: PuzzleDifficulty | str = PuzzleDifficulty.EASY,
        seed: int | None = None,
    ) -> PuzzleObservation:
        """Start a puzzle and return its initial state. The current puzzle is abandoned.

        Args:
            game: Name of any game that the server has, including games that are not in `PuzzleGame`.
            difficulty: Difficulty of the puzzle.
            seed: Seed of the puzzle. If it is None, the server chooses one.

        Raises:
            UnknownGameNameError: If the server has no such game.
            PuzzleStartError: If the game is in `PuzzleGame`, but the server did not start it.
        """
        name, level = game_id(game), PuzzleDifficulty(difficulty)
        command = f"{name} {level.value}" + ("" if seed is None else f" {int(seed)}")
        async with self._lock:
            self._puzzle = None
            observation = await self._retry(lambda: self._start(name, command))
            self._puzzle = _Puzzle(name, observation)
            return observation

    async def get_hint(self) -> PuzzleHint:
        """Ask for the next move of a solution.

        Returns:
            The hint, as text (`message`) and as a `command` for `send_action`. `success` is False if there is
            no hint to follow (codes HINT_NONE, HINT_DENIED and HINT_LIMIT). To find out whether the puzzle is
            solved, check `state.is_complete`.
        """
        async with self._lock:
            puzzle = self._require_puzzle("a hint")
            if puzzle.commands.count("hint") >= HINT_LIMIT:
                message = f"{HINT_LIMIT} hints have been used, and the server gives no more"
                return PuzzleHint(success=False, code="HINT_LIMIT", message=message, state=puzzle.observation)
            result, reply = await self._command("hint", puzzle)
        for line in reply.texts:
            if line.startswith("Hint:"):
                text = line.removeprefix("Hint:").strip()
                command, state = command_for_hint(puzzle.game, text), puzzle.observation
                return PuzzleHint(success=True, code="HINT", message=text, state=state, command=command)
        # The server reports success even if it has no hint.
        return PuzzleHint(**dict(result) | {"success": False})

    async def send_action(self, action: str) -> CommandResult:
        """Send a move, such as `place 1 2 7`, and return its result.

        If the server rejects the move, `success` is False in the result, and no error is raised.

        Raises:
            InvalidCommandError: If the text is not a single command, or if it is a reserved command, such as
                `hint`, `reset` or `quit`. Use the client's methods for reserved commands.
        """
        command = one_line(action)
        if (word := command.split()[0].lower()) in _RESERVED_COMMANDS:
            raise InvalidCommandError(f"{word!r} is not a move; use the method of the client for it")
        async with self._lock:
            puzzle = self._require_puzzle(f"the command {command!r}")
            result, _ = await self._command(command, puzzle)
        if not result.success and puzzle.game == PuzzleGame.LOGIC_GRID:
            return result.model_copy(update={"message": f"{result.message} ({_LOGIC_GRID_NOTE})".strip()})
        return result

    async def show_state(self) -> PuzzleObservation:
        """Ask the server for the current state of the puzzle."""
        async with self._lock:
            puzzle = self._require_puzzle("the state")
            puzzle.observation = await self._retry(self._show)
            return puzzle.observation

    async def get_stats(self) -> PuzzleStats:
        """Ask the server for the statistics of the current puzzle."""
        async with self._lock:
            self._require_puzzle("the statistics")
            reply = await self._retry(lambda: self._ask("stats"))
        return reply.message("stats", PuzzleStats)

    async def reset_puzzle(self) -> PuzzleObservation:
        """Restart the current puzzle and return its initial state. All hints are available again.

        If the server cannot reset this game, the client starts the same puzzle again from its seed.
        """
        async with self._lock:
            puzzle = self._require_puzzle("the reset")

            async def attempt() -> PuzzleObservation:
                reply = await self._ask("reset")
                if reply.has("observation"):
                    return reply.message(*_OBSERVATION)
                return await self._start(puzzle.game, puzzle.start)

            # A single request, so that there is one deadline.
            observation = await self._retry(attempt)
            self._puzzle = _Puzzle(puzzle.game, observation)
            return observation

    async def quit_puzzle(self) -> None:
        """Abandon the puzzle, but keep the connection."""
        async with self._lock:
            self._puzzle = None
            if self.is_connected and self._in_game:
                self._in_game, self._request_start = False, asyncio.get_running_loop().time()
                # If the connection is lost now, the puzzle is abandoned too.
                with contextlib.suppress(PuzzleServerConnectionError):
                    await self._ask("menu", MENU_REPLY_END)

    async def _retry(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Call `attempt` and return its result. If the connection is lost, connect again and retry.

        After connecting again, the current puzzle is restored before the retry.
        """
        self._request_start, num_disconnects = asyncio.get_running_loop().time(), self._num_disconnects
        num_failures = 0
        while True:
            try:
                if not self.is_connected:
                    await self._connect()
                return await attempt()
            except PuzzleServerConnectionError as error:
                if self._num_disconnects != num_disconnects:
                    raise PuzzleServerConnectionError("the client was disconnected") from error
                await self._drop()
                num_failures += 1
                await self._pause(error, num_failures)
            except ProtocolError:
                await self._drop()
                raise

    @property
    def _seconds_left(self) -> float:
        """Number of seconds until the deadline of the current request. It is never less than 0.001."""
        return max(self._request_start + self.config.deadline - asyncio.get_running_loop().time(), 0.001)

    async def _pause(self, error: PuzzleServerConnectionError, num_failures: int) -> None:
        """Wait before the next attempt, and log `error`, which is the error of the last attempt.

        Raises:
            PuzzleServerUnavailableError: If no retries are left, or if the deadline would pass before the
                next attempt.
        """
        config, delay = self.config, backoff_delay(self.config, num_failures, self._rng)
        if num_failures > config.max_retries or delay >= self._seconds_left:
            seconds = asyncio.get_running_loop().time() - self._request_start
            raise PuzzleServerUnavailableError(
                f"no reply from {config.host}:{config.port} after {num_failures} attempt(s) in "
                f"{seconds:.1f} s: {error}; is the puzzle server running?"
            ) from error
        message = "%s; attempt %d in %.2g s, deadline in %.0f s"
        _LOG.warning(message, error, num_failures + 1, delay, self._seconds_left)
        await asyncio.sleep(delay)

    async def _connect(self) -> None:
        await self._drop()
        try:
            self._connection = await TelnetConnection.open(self.config, self._seconds_left)
        except PuzzleServerConnectionError:
            raise
        except OSError as error:
            # If the host has been resolved before, the failure of the name server is temporary.
            if isinstance(error, socket.gaierror) and not self.num_connections:
                message = f"there is no host {self.config.host!r}: {error.strerror}"
                raise PuzzleServerUnavailableError(message) from error
            raise PuzzleServerConnectionError(str(error)) from error
        self.num_connections += 1
        if self._puzzle is not None:
            await self._restore(self._puzzle)

    async def _restore(self, puzzle: _Puzzle) -> None:
        """Restore the puzzle on a new connection by repeating all its commands."""
        self.puzzles_replayed += 1
        shown = await self._start(puzzle.game, puzzle.start)
        for command in puzzle.commands:
            await self._ask(command)
        if puzzle.commands:
            shown = await self._show()
        if shown.grid_display != puzzle.observation.grid_display:
            raise ProtocolError(
                f"the server at {self.config.host}:{self.config.port} generates another puzzle for "
                f"{puzzle.start!r} than before, so the puzzle cannot be restored after the lost connection"
            )

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._in_game = False
        if connection is not None:
            await connection.close()

    async def _start(self, name: str, command: str) -> PuzzleObservation:
        leave, self._in_game = "menu\n" if self._in_game else "", False
        reply = await self._ask(f"{leave}{command}", REPLY_END + MENU_REPLY_END)
        if not reply.acknowledged:
            # The reply to the barrier may still arrive, so the connection cannot be used any longer.
            await self._drop()
            where = f"the server at {self.config.host}:{self.config.port}"
            if name in list(PuzzleGame):
                raise PuzzleStartError(
                    f"{where} did not start {command!r}: it lacks the game or failed to create it"
                )
            raise UnknownGameNameError(f"{where} has no game {name!r}{nearest_game(name)}")
        self._in_game = True
        # The server shows the first puzzle of a connection before JSON mode is on.
        return reply.message(*_OBSERVATION) if reply.has("observation") else await self._show()

    async def _show(self) -> PuzzleObservation:
        return (await self._ask("show")).message(*_OBSERVATION)

    async def _command(self, command: str, puzzle: _Puzzle) -> tuple[CommandResult, Reply]:
        """Send a command that may change the puzzle, and record it so that the puzzle can be restored."""

        async def attempt() -> tuple[CommandResult, Reply]:
            reply = await self._ask(command)
            return reply.result(command, puzzle.observation), reply

        result, reply = await self._retry(attempt)
        puzzle.commands.append(command)
        puzzle.observation = result.state or puzzle.observation
        return result, reply

    async def _ask(self, command: str, last_lines: Collection[str] = REPLY_END) -> Reply:
        if self._connection is None:
            raise PuzzleServerConnectionError("the client was disconnected")
        timeout = min(self.config.read_timeout, self._seconds_left)
        return Reply(await self._connection.ask(f"{command}\n{_BARRIER}", last_lines, timeout))

    def _require_puzzle(self, what: str) -> _Puzzle:
        if self._puzzle is None:
            raise NoCurrentPuzzleError(f"{what} needs a current puzzle: call start_puzzle first")
        return self._puzzle
