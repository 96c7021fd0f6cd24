"""Telnet connection that sends and receives lines of text, and a parser for the telnet protocol."""

import asyncio
import collections
import contextlib
import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from phalanx.formatting import escape_untrusted
from phalanx.puzzles.server_client.protocol import (
    InvalidCommandError,
    InvalidReplyError,
    PuzzleServerConnectionError,
)

if TYPE_CHECKING:
    from phalanx.puzzles.server_client.client import PuzzleClientConfig


IAC = b"\xff"
"""First byte of a telnet control sequence ("interpret as command"). In text, the byte 255 is sent twice."""
WILL_LINEMODE, DO_LINEMODE, DONT_LINEMODE = b"\xff\xfb\x22", b"\xff\xfd\x22", b"\xff\xfe\x22"
"""Control sequences that offer, request and refuse line mode, in which a server neither echoes input nor
sends prompts."""
KEEPALIVE = b"\xff\xf1" * 5
"""Five two-byte telnet control sequences that have no effect (NOP). After a client has connected, the server
waits up to a second for bytes to discard. Sending these sequences immediately avoids the wait."""

_COMMAND = re.compile(
    rb"\xff(?:([\xfb-\xfe].)"  # negotiation of an option
    rb"|\xfa(?:[^\xff]|\xff[^\xf0])*+\xff\xf0"  # subnegotiation, in which IAC is sent twice, too
    rb"|([^\xfa-\xfe])"  # two-byte control sequence, or IAC as text
    rb"|(.*))",  # control sequence whose end has not arrived yet
    re.DOTALL,
)
_MAX_COMMAND_BYTES = 4096
"""Maximum length in bytes of a control sequence from the server, and of a line of text that is sent to the
server. The server closes the connection when a line reaches 64 KiB."""


class TelnetParser:
    """Separates text from telnet control sequences, which may be split between packets.

    >>> parser = TelnetParser()
    >>> parser.feed(b"ab\\xff"), parser.feed(b"\\xfd\\x22c")
    ((b'ab', []), (b'c', [b'\\xff\\xfd"']))
    """

    def __init__(self) -> None:
        self._incomplete = b""
        """Start of a control sequence whose end has not arrived yet."""

    def feed(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Parse more bytes. Return the text and the option negotiations that the bytes contain.

        All other control sequences are dropped.

        Raises:
            ValueError: If a subnegotiation is too long.
        """
        data, self._incomplete = self._incomplete + data, b""
        negotiations: list[bytes] = []

        def replace(found: re.Match[bytes]) -> bytes:
            negotiation, other, incomplete = found.groups()
            if negotiation is not None:
                negotiations.append(found[0])
            elif incomplete is not None:
                self._incomplete = found[0]
            return IAC if other == IAC else b""

        text = _COMMAND.sub(replace, data)
        if len(self._incomplete) > _MAX_COMMAND_BYTES:
            raise ValueError(f"a telnet subnegotiation has not ended after {_MAX_COMMAND_BYTES} bytes")
        return text, negotiations


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
            max_seconds: Time limit in seconds. If `config.connect_timeout` is shorter, it applies instead.
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
                raise PuzzleServerConnectionError(f"{where} did not greet within {timeout:.3g} s") from error
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
                raise PuzzleServerConnectionError(
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
        greeting, asked = b"", False
        try:
            while True:
                data = await self._reader.read(_PACKET_BYTES)
                if not data:
                    raise self._refusal(greeting, "end of stream")
                text, negotiations = self._parse(data)
                # A server without line mode echoes and prompts, which `_next_line` handles. The text in this
                # packet is not part of a reply, because no command was sent yet.
                if asked and not {DO_LINEMODE, DONT_LINEMODE}.isdisjoint(negotiations):
                    return
                greeting += text
                if greeting and not asked:
                    asked = True
                    self._writer.write(WILL_LINEMODE)
                if len(greeting) > self._max_line_bytes:
                    raise InvalidReplyError(f"{self._where} sends a greeting without end")
        except (ConnectionResetError, BrokenPipeError) as error:
            raise self._refusal(greeting, str(error)) from error

    def _refusal(self, greeting: bytes, reason: str) -> PuzzleServerConnectionError:
        text = escape_untrusted(" ".join(greeting.decode(errors="replace").split()))
        if "maximum capacity" in text:
            return PuzzleServerConnectionError(f"{self._where} is full: {text}")
        return PuzzleServerConnectionError(
            f"{self._where} closed the connection during the greeting ({reason})"
        )

    async def _next_line(self) -> str:
        while not self._lines:
            data = await self._reader.read(_PACKET_BYTES)
            if not data:
                raise PuzzleServerConnectionError(f"{self._where} closed the connection")
            *complete, self._partial = (self._partial + self._parse(data)[0]).split(b"\n")
            self._lines.extend(complete)
            if max(map(len, (*complete, self._partial))) > self._max_line_bytes:
                raise InvalidReplyError(
                    f"{self._where} sends a line of more than {self._max_line_bytes:,} bytes (max_line_bytes)"
                )
        line = self._lines.popleft().decode(errors="replace").rstrip("\r")
        # In character mode, the prompt precedes the echo, and the echo precedes the reply.
        while line.startswith("> "):
            line = line[2:]
        return line

    def _parse(self, data: bytes) -> tuple[bytes, list[bytes]]:
        try:
            return self._parser.feed(data)
        except ValueError as error:
            raise InvalidReplyError(f"{self._where}: {error}") from error


def one_line(text: str) -> str:
    """Validate a command for the server, and return it without surrounding whitespace.

    Raises:
        InvalidCommandError: If the command is empty, too long, or not a single line of printable characters.
    """
    line = text.strip()
    if not line:
        # The server treats an empty line as the end of the connection.
        raise InvalidCommandError("a command must not be empty")
    if not line.isprintable():
        raise InvalidCommandError(f"a command is one line without control characters, got {text[:60]!r}")
    if len(line.encode()) > _MAX_COMMAND_BYTES:
        raise InvalidCommandError(
            f"a command has at most {_MAX_COMMAND_BYTES} bytes, got {len(line.encode()):,}"
        )
    return line
