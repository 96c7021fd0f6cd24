"""Telnet's commands taken out of a stream of bytes that arrives in pieces of any size.

What is negotiated, and what the text between the commands says, is known in `telnet_connection`.
"""

import dataclasses
from collections.abc import Iterator
from enum import IntEnum
from typing import TypeAlias

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
