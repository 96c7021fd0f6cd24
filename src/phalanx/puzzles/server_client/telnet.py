"""Telnet connection that sends and receives lines of text, and a parser for the telnet protocol."""

import asyncio
import collections
import contextlib
import math
import re
from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from phalanx.formatting import escape_untrusted
from phalanx.puzzles.server_client.protocol import (
    CommandError,
    InvalidReplyError,
    PuzzleServerConnectionError,
    ReplyTimeoutError,
    ServerFullError,
)

if TYPE_CHECKING:
    from phalanx.puzzles.server_client.client import PuzzleClientConfig


IAC = 255
"""First byte of a telnet control sequence ("interpret as command"). In text, the byte 255 is sent twice."""
SB, SE = 250, 240
"""Bytes that, after `IAC`, start and end a telnet subnegotiation."""
LINEMODE = 34
"""Telnet option for line mode, in which a server neither echoes input nor sends prompts."""
KEEPALIVE = bytes([IAC, 241]) * 5
"""Five two-byte telnet control sequences that have no effect (NOP). After connecting, the server waits up to
a second for bytes to discard. Sending these bytes immediately avoids the wait."""

_COMMAND = re.compile(
    rb"\xff(?:([\xfb-\xfe])(.)"  # negotiation of an option
    rb"|\xfa(?:[^\xff]|\xff[^\xf0])*+\xff\xf0"  # subnegotiation, in which IAC is sent twice, too
    rb"|([^\xfa-\xfe]))",  # two-byte control sequence, or IAC as text
    re.DOTALL,
)
_MAX_COMMAND_BYTES = 4096
"""Maximum length in bytes of a control sequence from the server, and of a line of text that is sent to the
server. The server closes the connection when a line reaches 64 KiB."""


class NegotiationVerb(IntEnum):
    """Second byte of a control sequence that negotiates a telnet option."""

    WILL = 251
    WONT = 252
    DO = 253
    DONT = 254


class Negotiation(NamedTuple):
    """A telnet control sequence that offers, requests or refuses an option."""

    verb: NegotiationVerb
    option: int

    def encode(self) -> bytes:
        """Return the control sequence as three bytes."""
        return bytes([IAC, self.verb, self.option])


class TelnetParser:
    """Separates text from telnet control sequences, which may be split between packets.

    All control sequences except negotiations are dropped.

    >>> parser = TelnetParser()
    >>> list(parser.feed(b"ab\\xff")), list(parser.feed(b"\\xfd\\x22c"))
    ([b'ab'], [Negotiation(verb=<NegotiationVerb.DO: 253>, option=34), b'c'])
    """

    def __init__(self) -> None:
        self._incomplete = b""
        """Start of a control sequence whose end has not arrived yet."""

    def feed(self, data: bytes) -> Iterator[bytes | Negotiation]:
        """Parse more bytes, and iterate over pieces of text and negotiations in the order of arrival.

        Exhaust the iterator before the next call.

        Raises:
            ValueError: If a subnegotiation is too long.
        """
        data, self._incomplete = self._incomplete + data, b""
        text, position = b"", 0
        while (start := data.find(IAC, position)) >= 0:
            text += data[position:start]
            position = len(data)
            if found := _COMMAND.match(data, start):
                verb, option, other = found.groups()
                position = found.end()
                if other == bytes([IAC]):
                    text += other
                elif verb:
                    if text:
                        yield text
                    text = b""
                    yield Negotiation(NegotiationVerb(verb[0]), option[0])
            elif position - start > _MAX_COMMAND_BYTES:
                raise ValueError(f"a telnet subnegotiation has not ended after {_MAX_COMMAND_BYTES} bytes")
            else:
                self._incomplete = data[start:]
        text += data[position:]
        if text:
            yield text


_PACKET_BYTES = 1 << 16


class TelnetConnection:
    """A telnet connection that sends and receives lines of text. Use `open` to connect.

    After an error or a canceled request, replies can no longer be matched to requests. Therefore the
    connection is closed, and all later requests raise a `PuzzleServerConnectionError`.
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
        self.usable = True
        """True until the connection is closed. Afterward, no more requests can be sent."""

    @classmethod
    async def open(cls, config: "PuzzleClientConfig", max_seconds: float = math.inf) -> "TelnetConnection":
        """Connect to a server and negotiate line mode.

        Args:
            config: Address of the server and timeouts.
            max_seconds: Maximum duration in seconds, in addition to the limit in `config.connect_timeout`.
        """
        where, timeout = f"{config.host}:{config.port}", min(config.connect_timeout, max_seconds)
        with contextlib.ExitStack() as on_error:
            try:
                async with asyncio.timeout(timeout):
                    reader, writer = await asyncio.open_connection(config.host, config.port)
                    on_error.callback(writer.transport.abort)
                    connection = cls(reader, writer, where, config.max_line_bytes)
                    await connection._greet()
            except TimeoutError as error:
                raise ReplyTimeoutError(f"{where} did not greet within {timeout:.3g} s") from error
            on_error.pop_all()
        return connection

    @property
    def age(self) -> float:
        """Number of seconds since the connection was opened. The server closes it after 300 seconds."""
        return self._loop.time() - self._opened

    async def ask(self, commands: str, last_lines: Collection[str], timeout: float) -> list[str]:
        """Send commands and return the lines of the reply.

        Args:
            commands: One or more commands for the server, each followed by a line break.
            last_lines: Possible last lines. The reply is complete when any of them arrives.
            timeout: Maximum time for the complete reply, in seconds.
        """
        if not self.usable:
            raise PuzzleServerConnectionError(f"the connection to {self._where} is closed")
        first = repr(commands.partition("\n")[0])
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.abort)
            try:
                async with asyncio.timeout(timeout):
                    self._writer.write(commands.encode())
                    await self._writer.drain()
                    lines = [await self._next_line()]
                    while lines[-1] not in last_lines:
                        lines.append(await self._next_line())
            except PuzzleServerConnectionError:
                raise
            except TimeoutError as error:
                raise ReplyTimeoutError(
                    f"{self._where} did not answer {first} within {timeout:.3g} s"
                ) from error
            except OSError as error:
                raise PuzzleServerConnectionError(
                    f"lost the connection to {self._where} during {first}: {error}"
                ) from error
            on_error.pop_all()
        return lines

    async def close(self) -> None:
        """Close the connection and wait until it is closed."""
        self.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection without waiting."""
        self.usable = False
        self._writer.transport.abort()

    async def _greet(self) -> None:
        # The server waits a second for bytes to discard, unless they arrive immediately.
        self._writer.write(KEEPALIVE)
        greeting, asked, agreed = b"", False, False
        try:
            while not agreed:
                data = await self._reader.read(_PACKET_BYTES)
                if not data:
                    raise self._refusal(greeting, "end of stream")
                for event in self._parse(data):
                    if isinstance(event, Negotiation):
                        # A server without line mode echoes and prompts, which `_next_line` handles.
                        agreed |= (
                            asked
                            and event.option == LINEMODE
                            and event.verb in (NegotiationVerb.DO, NegotiationVerb.DONT)
                        )
                    elif agreed:
                        self._add_text(event)
                    else:
                        greeting += event
                if greeting and not asked:
                    asked = True
                    self._writer.write(Negotiation(NegotiationVerb.WILL, LINEMODE).encode())
                if len(greeting) > self._max_line_bytes:
                    raise InvalidReplyError(f"{self._where} sends a greeting without end")
        except (ConnectionResetError, BrokenPipeError) as error:
            raise self._refusal(greeting, str(error)) from error

    def _refusal(self, greeting: bytes, reason: str) -> PuzzleServerConnectionError:
        text = escape_untrusted(" ".join(greeting.decode(errors="replace").split()))
        if "maximum capacity" in text:
            return ServerFullError(f"{self._where} is full: {text}")
        return PuzzleServerConnectionError(
            f"{self._where} closed the connection during the greeting ({reason})"
        )

    async def _next_line(self) -> str:
        while not self._lines:
            data = await self._reader.read(_PACKET_BYTES)
            if not data:
                raise PuzzleServerConnectionError(f"{self._where} closed the connection")
            for event in self._parse(data):
                if isinstance(event, bytes):
                    self._add_text(event)
        line = self._lines.popleft().decode(errors="replace").rstrip("\r")
        # In character mode, the prompt precedes the echo, and the echo precedes the reply.
        while line.startswith("> "):
            line = line[2:]
        return line

    def _add_text(self, text: bytes) -> None:
        *complete, self._partial = (self._partial + text).split(b"\n")
        self._lines.extend(complete)
        if max(map(len, (*complete, self._partial))) > self._max_line_bytes:
            raise InvalidReplyError(
                f"{self._where} sends a line of more than {self._max_line_bytes:,} bytes (max_line_bytes)"
            )

    def _parse(self, data: bytes) -> list[bytes | Negotiation]:
        try:
            return list(self._parser.feed(data))
        except ValueError as error:
            raise InvalidReplyError(f"{self._where}: {error}") from error


def one_line(text: str) -> str:
    """Check that a text is a single command for the server, and return it without surrounding whitespace.

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
