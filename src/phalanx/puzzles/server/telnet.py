"""A telnet connection: commands taken out of bytes that arrive in pieces of any size, and lines asked for.

What the lines say is known in `puzzles`; trying again on another connection is the client's.
"""

import asyncio
import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from phalanx.formatting import escape_untrusted
from phalanx.puzzles.server.errors import (
    CommandError,
    InvalidReplyError,
    PuzzleServerConnectionError,
    ReplyTimeoutError,
    ServerFullError,
)

if TYPE_CHECKING:
    from phalanx.puzzles.server.client import PuzzleClientConfig


IAC = 255
"""The byte that begins a command; as text it is sent twice."""
SB, SE = 250, 240
"""Between these stands a subnegotiation."""
LINEMODE = 34
"""The option under which a server neither echoes nor prompts."""
KEEPALIVE = bytes([IAC, 241]) * 5
"""Five times `no operation`: ten bytes that mean nothing."""

_LONGEST_SUBNEGOTIATION = 4096


class Verb(IntEnum):
    """What a side says about an option."""

    WILL = 251
    WONT = 252
    DO = 253
    DONT = 254


@dataclasses.dataclass(frozen=True)
class Negotiation:
    """One side's word on one option."""

    verb: Verb
    option: int

    def encode(self) -> bytes:
        """The three bytes to send."""
        return bytes([IAC, self.verb, self.option])


@dataclasses.dataclass(frozen=True)
class Subnegotiation:
    """Details of an option, already agreed."""

    option: int
    data: bytes


TelnetEvent: TypeAlias = bytes | Negotiation | Subnegotiation
"""A piece of text or a command, in the order in which they came."""


class TelnetParser:
    """Tells text from commands; a command that is cut between two packets is put together again.

    Commands of two bytes (no operation, go ahead, ...) mean nothing here and are left out.

    >>> parser = TelnetParser()
    >>> list(parser.feed(b"ab\\xff")), list(parser.feed(b"\\xfd\\x22c"))
    ([b'ab'], [Negotiation(verb=<Verb.DO: 253>, option=34), b'c'])
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[TelnetEvent]:
        """What the bytes hold beyond those fed before; consume it whole before feeding more."""
        if self._held:
            data, self._held = self._held + data, b""
        text, place = bytearray(), 0
        while (found := data.find(IAC, place)) >= 0:
            text += data[place:found]
            event, place = self._command(data, found)
            if place == found:
                # The rest of the command is in a packet that has not come yet.
                self._held = data[found:]
                place = len(data)
            elif isinstance(event, bytes):
                text += event
            elif event is not None:
                if text:
                    yield bytes(text)
                    text.clear()
                yield event
        text += data[place:]
        if text:
            yield bytes(text)

    def _command(self, data: bytes, start: int) -> tuple[TelnetEvent | None, int]:
        """The command that begins at `start` and where it ends; it ends at `start` if it is not whole."""
        if start + 1 >= len(data):
            return None, start
        kind = data[start + 1]
        if kind == IAC:
            return bytes([IAC]), start + 2
        if kind in (Verb.WILL, Verb.WONT, Verb.DO, Verb.DONT):
            if start + 2 >= len(data):
                return None, start
            return Negotiation(Verb(kind), data[start + 2]), start + 3
        if kind == SB:
            return self._subnegotiation(data, start)
        return None, start + 2

    def _subnegotiation(self, data: bytes, start: int) -> tuple[TelnetEvent | None, int]:
        place = start + 2
        while (found := data.find(IAC, place)) >= 0 and found + 1 < len(data):
            if data[found + 1] == SE:
                inside = data[start + 2 : found].replace(bytes([IAC, IAC]), bytes([IAC]))
                return (Subnegotiation(inside[0], inside[1:]) if inside else None), found + 2
            place = found + 2
        if len(data) - start > _LONGEST_SUBNEGOTIATION:
            raise ValueError(f"a telnet subnegotiation has not ended after {_LONGEST_SUBNEGOTIATION} bytes")
        return None, start


_PACKET = 1 << 16
_LONGEST_COMMAND = 4096
"""The server hangs up on a line of 64 KiB; no command of a game comes near this."""


class TelnetConnection:
    """Lines to and from the server at the other end, each wait with a time limit.

    After an error, or if a wait is cancelled, what arrives next cannot be told apart from what was waited
    for: the connection is closed at once and every later use raises `PuzzleServerConnectionError`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str, max_line_bytes: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._where = where
        self._max_line_bytes = max_line_bytes
        self._parser = TelnetParser()
        self._partial = b""
        self._lines: collections.deque[bytes] = collections.deque()
        # The loop is where connections, waits and the time come from: one that is made up replaces all three.
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._usable = True

    @classmethod
    async def open(cls, config: "PuzzleClientConfig", most: float = math.inf) -> "TelnetConnection":
        """Connect, and agree on line mode; within `connect_timeout` seconds in all, or `most`."""
        where, timeout = f"{config.host}:{config.port}", min(config.connect_timeout, most)
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(config.host, config.port)
                connection = cls(reader, writer, where, config.max_line_bytes)
                await connection._greet()
                return connection
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, TimeoutError) and not isinstance(error, PuzzleServerConnectionError):
                raise ReplyTimeoutError(f"{where} did not greet within {timeout:.3g} s") from error
            raise

    @property
    def usable(self) -> bool:
        """Whether anything can still be asked."""
        return self._usable

    @property
    def age(self) -> float:
        """Seconds since it was opened; the server ends it at 300."""
        return self._loop.time() - self._opened

    async def ask(self, commands: str, is_last: Callable[[str], bool], timeout: float) -> list[str]:
        """Send lines, and give what comes back up to and with the line that `is_last` knows."""
        if not self._usable:
            raise PuzzleServerConnectionError(f"the connection to {self._where} is closed")
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(commands.encode())
                await self._writer.drain()
                lines = []
                while True:
                    lines.append(line := await self._next_line())
                    if is_last(line):
                        return lines
        except BaseException as error:
            self.abort()
            if isinstance(error, PuzzleServerConnectionError):
                raise
            if isinstance(error, TimeoutError):
                raise ReplyTimeoutError(
                    f"{self._where} did not answer {_first(commands)} within {timeout:.3g} s"
                ) from error
            if isinstance(error, OSError):
                raise PuzzleServerConnectionError(
                    f"lost the connection to {self._where} during {_first(commands)}: {error}"
                ) from error
            raise

    async def close(self) -> None:
        """Hang up; the server needs no goodbye."""
        self.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Hang up without waiting."""
        self._usable = False
        self._writer.transport.abort()

    async def _greet(self) -> None:
        # The server first waits a second for bytes to throw away, unless they come at once.
        self._writer.write(KEEPALIVE)
        greeting, asked, agreed = b"", False, False
        try:
            while not agreed:
                data = await self._reader.read(_PACKET)
                if not data:
                    raise self._refusal(greeting, None)
                for event in self._parse(data):
                    if isinstance(event, bytes) and agreed:
                        self._take(event)
                    elif isinstance(event, bytes):
                        greeting += event
                    else:
                        # A server that will not have line mode echoes and prompts; `_next_line` sees to it.
                        agreed |= asked and event.option == LINEMODE and event.verb in (Verb.DO, Verb.DONT)
                if greeting and not asked:
                    asked = True
                    self._writer.write(Negotiation(Verb.WILL, LINEMODE).encode())
                if len(greeting) > self._max_line_bytes:
                    raise InvalidReplyError(f"{self._where} sends a greeting without end")
        except (ConnectionResetError, BrokenPipeError) as error:
            raise self._refusal(greeting, error) from error

    def _refusal(self, greeting: bytes, error: OSError | None) -> PuzzleServerConnectionError:
        text = escape_untrusted(" ".join(greeting.decode(errors="replace").split()))
        if "maximum capacity" in text:
            return ServerFullError(f"{self._where} is full: {text}")
        reason = f"closed the connection during the greeting ({error or 'end of stream'})"
        return PuzzleServerConnectionError(f"{self._where} {reason}")

    async def _next_line(self) -> str:
        while not self._lines:
            data = await self._reader.read(_PACKET)
            if not data:
                raise PuzzleServerConnectionError(f"{self._where} closed the connection")
            for event in self._parse(data):
                if isinstance(event, bytes):
                    self._take(event)
        line = self._lines.popleft().decode(errors="replace").rstrip("\r")
        # In character mode a prompt stands before the echo, and an echo before the reply.
        while line.startswith("> "):
            line = line[2:]
        return line

    def _take(self, text: bytes) -> None:
        *whole, self._partial = (self._partial + text).split(b"\n")
        self._lines.extend(whole)
        if max(map(len, (*whole, self._partial))) > self._max_line_bytes:
            raise InvalidReplyError(
                f"{self._where} sends a line of more than {self._max_line_bytes:,} bytes (max_line_bytes)"
            )

    def _parse(self, data: bytes) -> list[bytes | Negotiation]:
        try:
            events = list(self._parser.feed(data))
        except ValueError as error:
            raise InvalidReplyError(f"{self._where}: {error}") from error
        return [event for event in events if not isinstance(event, Subnegotiation)]


def one_line(text: str) -> str:
    """The text without blanks at its ends, if it is one line that the server can take."""
    line = text.strip()
    if not line:
        # The server takes an empty line for the end of the connection.
        raise CommandError("a command must not be empty")
    if not line.isprintable():
        raise CommandError(f"a command is one line without control characters, got {text[:60]!r}")
    if len(line.encode()) > _LONGEST_COMMAND:
        raise CommandError(f"a command has at most {_LONGEST_COMMAND} bytes, got {len(line.encode()):,}")
    return line


def _first(commands: str) -> str:
    return repr(commands.partition("\n")[0])
