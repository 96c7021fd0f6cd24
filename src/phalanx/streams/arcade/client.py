"""A client of the puzzle arcade: starts puzzles, reads hints, makes moves.

Bytes and lines are in `connection`, many connections at once in `pool`, samples in `gym_stream`.
"""

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from phalanx.streams.arcade.connection import TelnetConnection, one_line
from phalanx.streams.arcade.errors import (
    ArcadeConnectionError,
    ArcadeUnavailableError,
    CommandError,
    GarbledReplyError,
    NoPuzzleError,
    StartError,
    UnknownGameError,
    backoff_delays,
)
from phalanx.streams.arcade.puzzles import (
    PuzzleCompletion,
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
from phalanx.streams.base import ClosedOnExit

HINT_LIMIT = 99
"""Hints of one puzzle. The server allows 100, but version 0.10 answers the last as if all were solved."""

_BARRIER = "mode json\n"
"""Its acknowledgement ends every reply, whatever the reply itself looks like."""

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


class TelnetClientConfig(ServerAddress):
    """Where the server is, and how patient to be with it."""

    max_retries: int = Field(default=8, ge=0)
    """Further attempts when the server is full, not there, or hangs up."""
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


class TelnetGymClient(ClosedOnExit):
    """One connection to a puzzle server, and at most one puzzle in progress.

    Commands of several tasks wait for one another. `connect` and `start_puzzle` try again, on a new
    connection if need be; once a puzzle is in progress, a lost connection is an `ArcadeConnectionError`,
    because the puzzle is lost with it: start it again with the same seed.
    """

    def __init__(self, config: TelnetClientConfig | None = None, *, retry_seed: int | None = None) -> None:
        self.config = config or TelnetClientConfig()
        self._draws = random.Random(self.config.retry_seed if retry_seed is None else retry_seed)
        self._connection: TelnetConnection | None = None
        self._turn = asyncio.Lock()
        self._game: str | None = None
        self._observation: PuzzleObservation | None = None
        self._hints = 0
        self.connections_made = 0
        """How many connections there have been."""

    async def __aenter__(self) -> "TelnetGymClient":
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
        return self._observation

    async def connect(self) -> None:
        """Connect, unless there is a connection. Full servers and lost connections are tried again."""
        async with self._turn:
            await self._connect()

    async def disconnect(self) -> None:
        """Hang up; doing it twice is no mistake."""
        connection, self._connection = self._connection, None
        self._game = self._observation = None
        if connection is not None:
            await connection.close()

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
            delays = self._delays()
            while True:
                await self._connect()
                try:
                    return await self._start(name, command)
                except ArcadeConnectionError:
                    # A connection may have died unseen since it was last used, so one failure says little.
                    delay = next(delays, None)
                    if delay is None:
                        raise
                await asyncio.sleep(delay)

    async def get_hint(self) -> PuzzleHint:
        """The next move of a solution, as text (`message`) and as a `command` for `send_action`.

        `success` is false where there is no hint to follow (HINT_NONE, HINT_DENIED, HINT_LIMIT). Whether the
        puzzle is solved is for `state.is_complete` to say.
        """
        async with self._turn:
            game = self._require_puzzle("a hint")
            if self._hints >= HINT_LIMIT:
                words = f"{HINT_LIMIT} hints have been asked for, and the server gives no more"
                return PuzzleHint(success=False, code="HINT_LIMIT", message=words, state=self._observation)
            self._hints += 1
            reply = await self._ask("hint")
        for line in reply.texts:
            if line.startswith("Hint:"):
                text = line.removeprefix("Hint:").strip()
                command = command_for_hint(game, text)
                return PuzzleHint(
                    success=True, code="HINT", message=text, state=self._observation, command=command
                )
        result = self._result("hint", reply)
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
            game = self._require_puzzle(f"the command {command!r}")
            result = self._result(command, await self._ask(command))
        if not result.success and game == PuzzleGame.LOGIC_GRID:
            return result.model_copy(update={"message": f"{result.message} ({_LOGIC_GRID})".strip()})
        return result

    async def show_state(self) -> PuzzleObservation:
        """The puzzle as it stands."""
        async with self._turn:
            self._require_puzzle("the state")
            return self._required(await self._ask("show"), "show")

    async def get_stats(self) -> PuzzleStats:
        """How the play has gone so far."""
        async with self._turn:
            self._require_puzzle("the statistics")
            reply = await self._ask("stats")
        return PuzzleStats.model_validate(reply.record("stats"))

    async def reset_puzzle(self) -> PuzzleObservation:
        """The puzzle from its start again, with all its hints.

        The server cannot take every game back; where it cannot, the puzzle is made again from its seed.
        """
        async with self._turn:
            game = self._require_puzzle("the reset")
            before = self._observation
            reply = await self._ask("reset")
            if reply.observation is not None:
                self._hints = 0
                return self._required(reply, "reset")
        if before is None:
            raise NoPuzzleError("there is no puzzle to reset")
        return await self.start_puzzle(game, before.difficulty, before.seed)

    async def quit_puzzle(self) -> None:
        """Leave the puzzle; the connection stays, for the next one."""
        async with self._turn:
            if self._game is None or self._connection is None or not self._connection.usable:
                self._game = self._observation = None
                return
            self._game = self._observation = None
            await self._ask("menu", ends_in_menu)

    async def _connect(self) -> None:
        if self.is_connected:
            return
        await self.disconnect()
        settings, delays, attempts = self.config, self._delays(), 0
        while True:
            attempts += 1
            try:
                self._connection = await TelnetConnection.open(settings)
                self.connections_made += 1
                return
            except socket.gaierror as error:
                raise ArcadeUnavailableError(
                    f"there is no host {settings.host!r}: {error.strerror}"
                ) from error
            except OSError as error:
                delay = next(delays, None)
                if delay is None:
                    raise ArcadeUnavailableError(
                        f"no connection to {settings.host}:{settings.port} after {attempts} attempt(s): "
                        f"{error}; is the puzzle server running?"
                    ) from error
            await asyncio.sleep(delay)

    def _delays(self) -> Iterator[float]:
        settings = self.config
        return backoff_delays(
            settings.max_retries,
            settings.retry_delay,
            settings.max_retry_delay,
            settings.retry_jitter,
            self._draws,
        )

    async def _start(self, name: str, command: str) -> PuzzleObservation:
        leave = "" if self._game is None else "menu\n"
        self._game = self._observation = None
        reply = await self._ask(f"{leave}{command}", lambda line: ends_reply(line) or ends_in_menu(line))
        if not reply.acknowledged:
            # The answer to the barrier may still be under way; only a new connection has none of it.
            await self.disconnect()
            where = f"the server at {self.config.host}:{self.config.port}"
            if name in list(PuzzleGame):
                raise StartError(f"{where} did not start {command!r}: it lacks the game or failed to make it")
            raise UnknownGameError(f"{where} has no game {name!r}{nearest_game(name)}")
        self._game, self._hints = name, 0
        if reply.observation is None:
            # The first puzzle of a connection is shown before JSON is switched on.
            reply = await self._ask("show")
        return self._required(reply, command)

    async def _ask(self, command: str, is_last: Callable[[str], bool] = ends_reply) -> Reply:
        if self._connection is None:
            raise ArcadeConnectionError("the client was disconnected")
        lines = await self._connection.ask(f"{command}\n{_BARRIER}", is_last, self.config.read_timeout)
        try:
            return Reply(lines)
        except GarbledReplyError:
            self._connection.abort()
            raise

    def _require_puzzle(self, what: str) -> str:
        if self._game is None:
            raise NoPuzzleError(f"{what} needs a puzzle in progress: call start_puzzle first")
        return self._game

    def _required(self, reply: Reply, command: str) -> PuzzleObservation:
        if reply.observation is None:
            raise ArcadeConnectionError(f"the server showed no puzzle after {command!r}: {reply.words()!r}")
        self._observation = PuzzleObservation.model_validate(reply.observation)
        return self._observation

    def _result(self, command: str, reply: Reply) -> PuzzleResult:
        """One result of the one to three lines, or the text, that a command is answered with."""
        said: dict[str, Any] = reply.result or {}
        if reply.observation is not None:
            self._observation = PuzzleObservation.model_validate(reply.observation)
        elif said.get("state") and self._observation is not None:
            # The state of a refused move comes without the picture, which has not changed.
            picture = {"grid_display": self._observation.grid_display}
            self._observation = PuzzleObservation.model_validate(said["state"] | picture)
        done = None if reply.completion is None else PuzzleCompletion.model_validate(reply.completion)
        outcome: dict[str, Any] = {
            "state": self._observation,
            "completion": done,
            "game_over": any("GAME OVER" in text for text in reply.texts),
        }
        if said:
            outcome |= {name: said.get(name) or "" for name in ("code", "message")}
            return PuzzleResult(success=bool(said.get("success")), **outcome)
        if reply.completion is not None or reply.observation is not None:
            return PuzzleResult(success=True, code="OK", message=reply.words(), **outcome)
        if reply.texts:
            return PuzzleResult(success=False, code="TEXT", message=reply.words(), **outcome)
        return PuzzleResult(
            success=False,
            code="NO_REPLY",
            message=f"the server failed on {command!r} and gave no reply",
            **outcome,
        )
