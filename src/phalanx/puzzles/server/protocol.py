"""Protocol of a puzzle server: games, messages, moves, the conversion of hints to moves, and errors."""

import difflib
import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class PuzzleServerConnectionError(ConnectionError):
    """Raised if a connection can no longer be used. A new connection may work."""


class ServerFullError(PuzzleServerConnectionError):
    """Raised if the server has reached its maximum number of connections."""


class ReplyTimeoutError(PuzzleServerConnectionError):
    """Raised if the server did not reply in time."""


class InvalidReplyError(PuzzleServerConnectionError):
    """Raised if the server sent an invalid reply. A new connection may work."""


class PuzzleServerUnavailableError(ConnectionError):
    """Raised if all attempts of a request failed. Its cause is the error of the last attempt."""


class ProtocolError(ConnectionError):
    """Raised if a reply of the server has an unknown format, so that retrying would not help."""


class UnknownGameError(ValueError):
    """Raised if the server has no game with this name."""


class StartError(RuntimeError):
    """Raised if the server did not start a game of `PuzzleGame`."""


class CommandError(ValueError):
    """Raised if a text is not a single command for a running game. Nothing was sent."""


class NoPuzzleError(RuntimeError):
    """Raised if there is no current puzzle for a command that needs one."""


class PuzzleGame(StrEnum):
    """Games that both public puzzle servers have. The value is the server's id of the game.

    Long names, spaces and other capitalization are accepted, too: `PuzzleGame("Killer Sudoku")`.
    """

    SUDOKU = "sudoku"
    KENKEN = "kenken"
    KAKURO = "kakuro"
    BINARY = "binary"
    FUTOSHIKI = "futoshiki"
    NONOGRAM = "nonogram"
    LOGIC_GRID = "logic"
    KILLER_SUDOKU = "killer"
    LIGHTS_OUT = "lights"
    MASTERMIND = "mastermind"
    SLITHERLINK = "slither"
    BRIDGES = "bridges"
    HITORI = "hitori"
    SHIKAKU = "shikaku"
    HIDATO = "hidato"
    TENTS = "tents"
    FILLOMINO = "fillomino"
    STAR_BATTLE = "star_battle"
    SOKOBAN = "sokoban"
    KNAPSACK = "knapsack"
    NURIKABE = "nurikabe"
    MINESWEEPER = "minesweeper"

    @classmethod
    def _missing_(cls, value: object) -> "PuzzleGame | None":
        return cls.__members__.get(_normalize(value).upper()) if isinstance(value, str) else None

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for display, such as `Killer Sudoku`."""
        return "KenKen" if self is PuzzleGame.KENKEN else self.name.replace("_", " ").title()

    @property
    def accepts_moves(self) -> bool:
        """Whether the game can be played. False for Logic Grid, whose moves the server always rejects,
        because it converts their names to lowercase."""
        return self is not PuzzleGame.LOGIC_GRID


class PuzzleDifficulty(StrEnum):
    """Difficulty of a puzzle."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"

    @property
    def level(self) -> float:
        """Difficulty as a number from 0 to 1, which is stored in samples."""
        return {"easy": 0.3, "medium": 0.6, "hard": 0.9}[self.value]


def game_id(game: PuzzleGame | str) -> str:
    """Return the server's id of a known game, or a normalized name for any other game.

    >>> game_id("Lights Out"), game_id("einstein")
    ('lights', 'einstein')
    """
    try:
        return PuzzleGame(game).value
    except ValueError:
        pass
    # A newline would start a second command, and a space would separate the difficulty.
    if not re.fullmatch(r"[a-z0-9_]{1,40}", name := _normalize(game)):
        raise UnknownGameError(f"{game!r} is not a valid name of a game{nearest_game(game)}")
    return name


def nearest_game(name: str) -> str:
    """Return the end of an error message about an unknown game: a similar name, or a list of all games.

    >>> nearest_game("sudko")
    "; did you mean 'sudoku'?"
    """
    names = {game.value: game.value for game in PuzzleGame}
    names |= {game.name.lower(): game.value for game in PuzzleGame}
    close = difflib.get_close_matches(_normalize(name), names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {names[close[0]]!r}?"
    return f"; games are {', '.join(game.value for game in PuzzleGame)}"


def _normalize(name: str) -> str:
    return re.sub("[ -]+", "_", name.strip().lower())


class _Message(BaseModel):
    # A newer server may send more fields.
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


Message = TypeVar("Message", bound=_Message)


class DifficultyProfile(_Message):
    """The server's estimate of how difficult a puzzle is, in several respects."""

    logic_depth: float = 1.0
    """Number of steps that a player has to think ahead, from 1 to 10."""
    branching_factor: float = 1.0
    """Number of moves that a player can choose from."""
    state_observability: float = 1.0
    """Fraction of the state that is visible."""
    constraint_density: float = 0.5
    """How strongly the constraints depend on one another, from 0 to 1."""


class PuzzleObservation(_Message):
    """Current state of a puzzle, as sent by the server."""

    game: str
    """Name of the game for display."""
    difficulty: PuzzleDifficulty
    """Difficulty that was requested."""
    seed: int
    """Seed of the puzzle. The same game, difficulty and seed give the same puzzle."""
    moves: int = 0
    """Number of moves as counted by the server. Version 0.10 counts most of them twice."""
    invalid_moves: int = 0
    """Number of moves that the server rejected."""
    hints_used: int = 0
    """Number of hints that were requested so far."""
    hints_remaining: int = 0
    """Number of hints that can still be requested."""
    optimal_steps: int | None = None
    """Minimum number of moves to solve the puzzle. None if the server does not know it."""
    is_complete: bool = False
    """Whether the puzzle is solved."""
    difficulty_profile: DifficultyProfile = Field(default_factory=DifficultyProfile)
    """The server's estimate of the difficulty."""
    grid: Any = None
    """Cells of the board. For some games, they are missing or incomplete, unlike `grid_display`."""
    grid_display: str = ""
    """The board as text."""
    reasoning_metrics: dict[str, Any] | None = None
    """Statistics about the moves so far. Only version 0.10 of the server sends them."""


class PuzzleCompletion(_Message):
    """Message of the server that a puzzle is solved."""

    success: bool
    game: str
    moves: int = 0
    invalid_moves: int = 0
    hints_used: int = 0
    optimal_steps: int | None = None


class PuzzleResult(_Message):
    """Result of a command that was sent to the server."""

    success: bool
    """Whether the command was accepted."""
    code: str = ""
    """The server's code for the result, such as PLACED or INVALID."""
    message: str = ""
    """The result as text."""
    state: PuzzleObservation | None = None
    """State of the puzzle after the command."""
    completion: PuzzleCompletion | None = None
    """Message that this command solved the puzzle, or None. In Knapsack, it is sent only after `check`."""
    game_over: bool = False
    """Whether the game is lost, for example because a mine was revealed or no guesses are left."""

    @property
    def solved(self) -> bool:
        """Whether the puzzle is solved after the command."""
        return self.completion is not None or (self.state is not None and self.state.is_complete)


class PuzzleHint(PuzzleResult):
    """A hint for the next move, which is not made. `success` is False if there is no hint."""

    command: str | None = None
    """Command of the move that the hint suggests. None if the hint cannot be converted to a command."""


class PuzzleStats(_Message):
    """Statistics of the current puzzle."""

    game: str
    difficulty: PuzzleDifficulty
    seed: int
    moves: int = 0
    invalid_moves: int = 0
    hints_used: int = 0
    optimal_steps: int | None = None
    difficulty_profile: DifficultyProfile = Field(default_factory=DifficultyProfile)
    reasoning_metrics: dict[str, Any] | None = None


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
    """Convert the text of a hint to the command of the suggested move.

    Returns None if the game is unknown or the hint has no such command. For example, the server has no
    command that removes a tent or a star, or that makes a shaded cell of Hitori white.

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


_MOVE_FORMATS: dict[PuzzleGame, str] = {
    PuzzleGame.NONOGRAM: "`place ROW COLUMN 1` to fill a cell, `place ROW COLUMN 0` to mark it as empty",
    PuzzleGame.LIGHTS_OUT: "`press ROW COLUMN`",
    PuzzleGame.MASTERMIND: "`guess COLOR COLOR COLOR COLOR`, colors as numbers, as many as the code has",
    PuzzleGame.SLITHERLINK: "`set h ROW COLUMN 1` or `set v ROW COLUMN 1` for a line, with 2 for none",
    PuzzleGame.BRIDGES: "`bridge ROW COLUMN ROW COLUMN COUNT`",
    PuzzleGame.HITORI: "`shade ROW COLUMN`",
    PuzzleGame.SHIKAKU: "`bridge ROW COLUMN ROW COLUMN 0` for a rectangle from corner to corner",
    PuzzleGame.TENTS: "`press ROW COLUMN` to place a tent",
    PuzzleGame.STAR_BATTLE: "`press ROW COLUMN` to place a star",
    PuzzleGame.SOKOBAN: "`move up`, `move down`, `move left` or `move right`",
    PuzzleGame.KNAPSACK: "`select ITEM` or `deselect ITEM`, and `check` when done",
    PuzzleGame.NURIKABE: "`mark ROW COLUMN white` or `mark ROW COLUMN black`",
    PuzzleGame.MINESWEEPER: "`reveal ROW COLUMN` or `flag ROW COLUMN`",
    PuzzleGame.LOGIC_GRID: "`connect person NAME VALUE CATEGORY`",
}

_MOVES: dict[PuzzleGame, frozenset[str]] = {
    PuzzleGame.LIGHTS_OUT: frozenset({"press"}),
    PuzzleGame.MASTERMIND: frozenset({"guess"}),
    PuzzleGame.SLITHERLINK: frozenset({"set"}),
    PuzzleGame.BRIDGES: frozenset({"bridge"}),
    PuzzleGame.HITORI: frozenset({"shade"}),
    PuzzleGame.SHIKAKU: frozenset({"bridge"}),
    PuzzleGame.TENTS: frozenset({"press"}),
    PuzzleGame.STAR_BATTLE: frozenset({"press"}),
    PuzzleGame.SOKOBAN: frozenset({"move"}),
    PuzzleGame.KNAPSACK: frozenset({"select", "deselect", "check"}),
    PuzzleGame.NURIKABE: frozenset({"mark"}),
    PuzzleGame.MINESWEEPER: frozenset({"reveal", "flag"}),
    PuzzleGame.LOGIC_GRID: frozenset({"connect"}),
}
_DEFAULT_MOVES = frozenset({"place", "clear"})
_ALL_MOVES = _DEFAULT_MOVES.union(*_MOVES.values())


def move_format(game: PuzzleGame | str) -> str:
    """Return text for a model that describes how to write a move of a game."""
    default = "`place ROW COLUMN DIGIT`"
    return _MOVE_FORMATS.get(PuzzleGame(game), default) if game in list(PuzzleGame) else default


def allowed_moves(game: PuzzleGame | str) -> frozenset[str]:
    """Return the first words of the commands that are moves of a game.

    A policy may send only these. The server has other commands that reveal the solution or end the game, and
    newer versions may have more of them. For a game that is not in `PuzzleGame`, the moves of all games are
    allowed.

    >>> sorted(allowed_moves("sudoku"))
    ['clear', 'place']
    """
    try:
        return _MOVES.get(PuzzleGame(game), _DEFAULT_MOVES)
    except ValueError:
        return _ALL_MOVES


_ACKNOWLEDGED = '{"type":"mode","mode":"json","success":true}'
_UNKNOWN_IN_MENU = "Unknown command. Type 'help' to see available options."


def ends_reply(line: str) -> bool:
    """Return whether a line is the acknowledgement of `mode json`, which ends every reply within a game."""
    return line == _ACKNOWLEDGED


def ends_in_menu(line: str) -> bool:
    """Return whether a line is the menu's reply to an unknown command. `mode` is unknown in the menu."""
    return line == _UNKNOWN_IN_MENU


class Reply:
    """A parsed reply of the server.

    Args:
        lines: Lines of the reply. Their order does not matter.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.texts: list[str] = []
        """Nonempty lines that are not JSON."""
        self.acknowledged = False
        """Whether the reply came from within a game, in JSON mode."""
        self._records: dict[str, dict[str, Any]] = {}
        for line in lines:
            if ends_reply(line):
                self.acknowledged = True
            elif line.startswith('{"'):
                record = _parse_json(line)
                self._records[str(record.get("type"))] = record
            elif line.strip() and not ends_in_menu(line):
                self.texts.append(line)

    def has(self, kind: str) -> bool:
        """Return whether the reply contains a JSON object with this `type`."""
        return kind in self._records

    def message(self, kind: str, model: type[Message]) -> Message:
        """Return the JSON object with this `type`, as an instance of `model`.

        Raises:
            InvalidReplyError: If there is no such object.
            ProtocolError: If the object has an unknown format.
        """
        if kind not in self._records:
            raise InvalidReplyError(f"the server sent no {kind!r}: {self.text()!r}")
        return _validate(model, self._records[kind], kind)

    def result(self, command: str, before: PuzzleObservation) -> PuzzleResult:
        """Combine the JSON objects and texts of the reply to a command into one result.

        Args:
            command: The command, for error messages.
            before: State of the puzzle before the command.
        """
        result = self._records.get("result", {})
        state = before
        if self.has("observation"):
            state = self.message("observation", PuzzleObservation)
        elif isinstance(result.get("state"), dict):
            # The state of a rejected move has no board text, because the board has not changed.
            shown = result["state"] | {"grid_display": before.grid_display}
            state = _validate(PuzzleObservation, shown, "result")
        done = self.message("complete", PuzzleCompletion) if self.has("complete") else None
        lost = any("GAME OVER" in text for text in self.texts)
        outcome: dict[str, Any] = {"state": state, "completion": done, "game_over": lost}
        if result:
            texts = {name: result.get(name) or "" for name in ("code", "message")}
            outcome |= {"success": result.get("success") or False, **texts}
        elif done is not None or self.has("observation"):
            outcome |= {"success": True, "code": "OK", "message": self.text()}
        elif self.texts:
            outcome |= {"success": False, "code": "TEXT", "message": self.text()}
        else:
            message = f"the server failed on {command!r} and gave no reply"
            outcome |= {"success": False, "code": "NO_REPLY", "message": message}
        return _validate(PuzzleResult, outcome, "result")

    def text(self) -> str:
        """Return the lines that are not JSON, joined to one line."""
        return " ".join(" ".join(self.texts).split())


def _validate(model: type[Message], record: dict[str, Any], kind: str) -> Message:
    try:
        return model.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(
            f"invalid field {field!r} in the server's {kind!r}: {first['msg']}, "
            f"got {repr(first['input'])[:60]}"
        ) from error


def _parse_json(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    # A number with thousands of digits raises a ValueError, and deep nesting a RecursionError.
    except (ValueError, RecursionError) as error:
        raise InvalidReplyError(
            f"the server sent a line that is not JSON ({error}): {line[:80]!r}"
        ) from error
    return record if isinstance(record, dict) else {}
