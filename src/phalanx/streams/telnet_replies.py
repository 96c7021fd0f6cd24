"""A reply of the puzzle server, taken apart: JSON objects by their type, and plain text.

What the objects mean is in `puzzles`; which lines belong to a reply is decided in `telnet_client`.
"""

import json
from collections.abc import Sequence
from typing import Any

from phalanx.streams.telnet_errors import GarbledReplyError

_ACKNOWLEDGED = '{"type":"mode","mode":"json","success":true}'
_UNKNOWN_IN_MENU = "Unknown command. Type 'help' to see available options."


def ends_reply(line: str) -> bool:
    """Whether this is the acknowledgement of `mode json`, which ends every reply within a game."""
    return line == _ACKNOWLEDGED


def ends_in_menu(line: str) -> bool:
    """Whether this is what the menu answers to a word it does not know, `mode` among them."""
    return line == _UNKNOWN_IN_MENU


class Reply:
    """The lines of one reply, in any order."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.texts: list[str] = []
        """Lines that are not JSON, without the empty ones."""
        self.acknowledged = False
        """Whether the reply came from within a game, in JSON mode."""
        self._records: dict[str, dict[str, Any]] = {}
        for line in lines:
            if ends_reply(line):
                self.acknowledged = True
            elif line.startswith('{"'):
                record = _parsed(line)
                self._records[str(record.get("type"))] = record
            elif line.strip() and not ends_in_menu(line):
                self.texts.append(line)

    @property
    def result(self) -> dict[str, Any] | None:
        """What became of the command."""
        return self._records.get("result")

    @property
    def observation(self) -> dict[str, Any] | None:
        """The puzzle as it stands."""
        return self._records.get("observation")

    @property
    def completion(self) -> dict[str, Any] | None:
        """The word that the puzzle is solved."""
        return self._records.get("complete")

    def record(self, kind: str) -> dict[str, Any]:
        """The object of this type; an error if the reply has none."""
        if kind not in self._records:
            raise GarbledReplyError(f"the server sent no {kind!r}: {self.words()!r}")
        return self._records[kind]

    def words(self) -> str:
        """What it says in text, on one line."""
        return " ".join(" ".join(self.texts).split())


def _parsed(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise GarbledReplyError(
            f"the server sent a line that is not JSON ({error}): {line[:80]!r}"
        ) from error
    return record if isinstance(record, dict) else {}
