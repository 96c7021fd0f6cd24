"""Telnet connection that sends and receives lines of text, and a parser for the telnet protocol."""

import asyncio
import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from phalanx.formatting import escape_untrusted
from phalanx.puzzles.server.protocol import (
    CommandError,
    InvalidReplyError,
    PuzzleServerConnectionError,
    ReplyTimeoutError,
    ServerFullError,
)

if TYPE_CHECKING:
    from phalanx.puzzles.server.client import PuzzleClientConfig


IAC = 255
"""First byte of a telnet command ("interpret as command"). In text, this byte is sent twice."""
SB, SE = 250, 240
"""Command bytes that start and end a telnet subnegotiation."""
LINEMODE = 34
"""Telnet option for line mode, in which a server neither echoes input nor sends prompts."""
KEEPALIVE = bytes([IAC, 241]) * 5
"""Five telnet commands without effect (NOP), which are ten bytes."""

_MAX_SUBNEGOTIATION_BYTES = 4096


class Verb(IntEnum):
    """Command byte of a telnet option negotiation."""

    WILL = 251
    WONT = 252
    DO = 253
    DONT = 254


@dataclasses.dataclass(frozen=True)
class Negotiation:
    """A telnet command that offers, requests or refuses an option."""

    verb: Verb
    option: int

    def encode(self) -> bytes:
        """Return the command as three bytes."""
        return bytes([IAC, self.verb, self.option])


@dataclasses.dataclass(frozen=True)
class Subnegotiation:
    """A telnet command with the parameters of an option."""

    option: int
    data: bytes


TelnetEvent: TypeAlias = bytes | Negotiation | Subnegotiation
"""Text or a telnet command."""


class TelnetParser:
    """Separates text from telnet commands, which may be split between packets.

    Commands of two bytes, such as NOP and "go ahead", have no effect and are dropped.

    >>> parser = TelnetParser()
    >>> list(parser.feed(b"ab\\xff")), list(parser.feed(b"\\xfd\\x22c"))
    ([b'ab'], [Negotiation(verb=<Verb.DO: 253>, option=34), b'c'])
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[TelnetEvent]:
        """Parse more bytes and iterate over their events, in the order of arrival.

        Consume all events before the next call.
        """
        if self._held:
            data, self._held = self._held + data, b""
        text, position = bytearray(), 0
        while (found := data.find(IAC, position)) >= 0:
            text += data[position:found]
            event, position = self._command(data, found)
            if position == found:
                # The rest of the command is in a packet that has not arrived yet.
                self._held = data[found:]
                position = len(data)
            elif isinstance(event, bytes):
                text += event
            elif event is not None:
                if text:
                    yield bytes(text)
                    text.clear()
                yield event
        text += data[position:]
        if text:
            yield bytes(text)

    def _command(self, data: bytes, start: int) -> tuple[TelnetEvent | None, int]:
        """Parse the command at index `start`.

        Returns:
            The event, or None if the command has no effect, and the index after the command. If the command
            is incomplete, the index is `start`.
        """
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
        position = start + 2
        while (found := data.find(IAC, position)) >= 0 and found + 1 < len(data):
            if data[found + 1] == SE:
                inside = data[start + 2 : found].replace(bytes([IAC, IAC]), bytes([IAC]))
                return (Subnegotiation(inside[0], inside[1:]) if inside else None), found + 2
            position = found + 2
        if len(data) - start > _MAX_SUBNEGOTIATION_BYTES:
            raise ValueError(f"a telnet subnegotiation has not ended after {_MAX_SUBNEGOTIATION_BYTES} bytes")
        return None, start


_PACKET = 1 << 16
_MAX_COMMAND_BYTES = 4096
"""Maximum length of a command in bytes. The server closes the connection after a line of 64 KiB."""


class TelnetConnection:
    """A telnet connection that sends and receives lines of text. Use `open` to connect.

    After an error or a canceled request, replies could no longer be matched to requests. The connection is
    therefore closed, and every later use raises a `PuzzleServerConnectionError`.
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
        # Connections, waits and the time all come from the event loop, so that tests can replace all three.
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._usable = True

    @classmethod
    async def open(cls, config: "PuzzleClientConfig", max_seconds: float = math.inf) -> "TelnetConnection":
        """Connect to a server and negotiate line mode.

        Args:
            config: Address of the server and timeouts.
            max_seconds: Maximum time in seconds. `config.connect_timeout` limits it, too.
        """
        where, timeout = f"{config.host}:{config.port}", min(config.connect_timeout, max_seconds)
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
        """Whether requests can be sent. False after the connection was closed."""
        return self._usable

    @property
    def age(self) -> float:
        """Number of seconds since the connection was opened. The server closes it after 300 seconds."""
        return self._loop.time() - self._opened

    async def ask(self, commands: str, is_last: Callable[[str], bool], timeout: float) -> list[str]:
        """Send commands and return the lines of the reply.

        Args:
            commands: Commands, each followed by a line break.
            is_last: Function that returns whether a line is the last one of the reply.
            timeout: Maximum time for the complete reply, in seconds.
        """
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
        """Close the connection and wait until it is closed."""
        self.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection without waiting."""
        self._usable = False
        self._writer.transport.abort()

    async def _greet(self) -> None:
        # The server waits a second for bytes to discard, unless they arrive immediately.
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
                        # A server without line mode echoes and prompts, which `_next_line` handles.
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
        # In character mode, the prompt precedes the echo, and the echo precedes the reply.
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
    """Return a command without surrounding whitespace.

    Raises:
        CommandError: If the text is empty, too long, or not a single line of printable characters.
    """
    line = text.strip()
    if not line:
        # The server treats an empty line as the end of the connection.
        raise CommandError("a command must not be empty")
    if not line.isprintable():
        raise CommandError(f"a command is one line without control characters, got {text[:60]!r}")
    if len(line.encode()) > _MAX_COMMAND_BYTES:
        raise CommandError(f"a command has at most {_MAX_COMMAND_BYTES} bytes, got {len(line.encode()):,}")
    return line


def _first(commands: str) -> str:
    return repr(commands.partition("\n")[0])
