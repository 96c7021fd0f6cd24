"""What a hint's text says, as the command that does it, for the 22 games.

Asking for hints is in `telnet_client`. The commands are those that the server takes, which are not always
those that its help names: Tents and Star Battle want `press`, Shikaku wants `bridge`.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from phalanx.streams.puzzles import PuzzleGame

_Rule: TypeAlias = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_CELL = r"row (\d+), column (\d+)"
_PAIR = r"\((\d+),\s*(\d+)\)"


def _rule(pattern: str, command: str | Callable[[re.Match[str]], str]) -> _Rule:
    return re.compile(pattern), command


def _filled_or_empty(found: re.Match[str]) -> str:
    return f"place {found[1]} {found[2]} {1 if found[3] == 'filled' else 0}"


def _edge(found: re.Match[str]) -> str:
    return f"set {found[1][0]} {found[2]} {found[3]} {1 if found[4] == 'line' else 2}"


_PLACE = (_rule(rf"Try placing (\d+) at {_CELL}", r"place \2 \3 \1"),)

_RULES: dict[PuzzleGame, tuple[_Rule, ...]] = {
    PuzzleGame.SUDOKU: _PLACE,
    PuzzleGame.KENKEN: _PLACE,
    PuzzleGame.KAKURO: _PLACE,
    PuzzleGame.BINARY: _PLACE,
    PuzzleGame.FUTOSHIKI: _PLACE,
    PuzzleGame.KILLER_SUDOKU: _PLACE,
    PuzzleGame.HIDATO: _PLACE,
    PuzzleGame.FILLOMINO: _PLACE,
    PuzzleGame.NONOGRAM: (_rule(rf"Try marking {_CELL} as (filled|empty)\b.*", _filled_or_empty),),
    PuzzleGame.LOGIC_GRID: (_rule(r"(\S+) has the (\S+) (\S+)", r"connect person \1 \3 \2"),),
    PuzzleGame.LIGHTS_OUT: (_rule(rf"Try pressing the light at {_CELL}", r"press \1 \2"),),
    PuzzleGame.MASTERMIND: (_rule(r"The secret code is: (\d+(?: \d+)*)", r"guess \1"),),
    PuzzleGame.SLITHERLINK: (
        _rule(rf"Try setting (horizontal|vertical) edge at {_PAIR} to (line|\S+)", _edge),
    ),
    PuzzleGame.BRIDGES: (
        _rule(rf"Try placing (\d+) bridge\(s\) between {_PAIR} and {_PAIR}", r"bridge \2 \3 \4 \5 \1"),
    ),
    PuzzleGame.HITORI: (_rule(rf"Try shading cell at {_CELL}", r"shade \1 \2"),),
    PuzzleGame.SHIKAKU: (_rule(rf"Try rectangle from {_PAIR} to {_PAIR}", r"bridge \1 \2 \3 \4 0"),),
    PuzzleGame.TENTS: (_rule(rf"Try placing a tent at {_CELL}", r"press \1 \2"),),
    PuzzleGame.STAR_BATTLE: (_rule(rf"Try placing a star at {_CELL}", r"press \1 \2"),),
    PuzzleGame.SOKOBAN: (
        _rule(r"(?:Push|Move|Try moving|Try pushing) (up|down|left|right)\b.*", r"move \1"),
    ),
    PuzzleGame.KNAPSACK: (_rule(r"Try (select|deselect)ing item (\d+)\b.*", r"\1 \2"),),
    PuzzleGame.NURIKABE: (_rule(rf"Try marking {_PAIR} as (white|black)", r"mark \1 \2 \3"),),
    PuzzleGame.MINESWEEPER: (_rule(rf"Try (reveal|flag)(?:l?ing|ging) cell {_PAIR}.*", r"\1 \2 \3"),),
}


def command_for_hint(game: PuzzleGame | str, hint: str) -> str | None:
    """The command that does what the hint says; None for other games and for what no command does.

    No command of the server takes a tent or a star away, or makes a shaded cell of Hitori white again.

    >>> command_for_hint(PuzzleGame.SUDOKU, "Try placing 7 at row 1, column 2")
    'place 1 2 7'
    """
    try:
        rules = _RULES[PuzzleGame(game)]
    except ValueError:
        return None
    text = hint.strip().removeprefix("Hint:").strip()
    for pattern, command in rules:
        if found := pattern.fullmatch(text):
            return found.expand(command) if isinstance(command, str) else command(found)
    return None
