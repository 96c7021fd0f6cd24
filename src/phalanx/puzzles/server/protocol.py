"""The games of a puzzle server, and what it says about them: observations, results, hints, completions.

And which command does what a hint's text says. How they are asked for is in `client`.
"""

import difflib
import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phalanx.puzzles.server.errors import InvalidReplyError, ProtocolError, UnknownGameError


class PuzzleGame(StrEnum):
    """The games that both public servers have; the value is the server's own name for it.

    Names with spaces, other case, or of the longer kind are understood: `PuzzleGame("Killer Sudoku")`.
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
        return cls.__members__.get(_plain(value).upper()) if isinstance(value, str) else None

    @property
    def title(self) -> str:  # type: ignore[override]
        """The name as people write it: `Killer Sudoku`."""
        return "KenKen" if self is PuzzleGame.KENKEN else self.name.replace("_", " ").title()

    @property
    def accepts_moves(self) -> bool:
        """Whether the server takes any move; Logic Grid's names lose their capitals, and none is taken."""
        return self is not PuzzleGame.LOGIC_GRID


class PuzzleDifficulty(StrEnum):
    """How hard a puzzle the server makes."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"

    @property
    def level(self) -> float:
        """The difficulty as samples carry it, from 0 to 1."""
        return {"easy": 0.3, "medium": 0.6, "hard": 0.9}[self.value]


def game_id(game: PuzzleGame | str) -> str:
    """What the server is told: the id of one of the games here, or any other name as it is given.

    >>> game_id("Lights Out"), game_id("einstein")
    ('lights', 'einstein')
    """
    try:
        return PuzzleGame(game).value
    except ValueError:
        pass
    # A newline here would be a second command, and a blank a difficulty.
    if not re.fullmatch(r"[a-z0-9_]{1,40}", plain := _plain(game)):
        raise UnknownGameError(f"{game!r} is no name of a game{nearest_game(game)}")
    return plain


def nearest_game(name: str) -> str:
    """Words to end a message about an unknown name with: the likeliest game, or all of them.

    >>> nearest_game("sudko")
    "; did you mean 'sudoku'?"
    """
    names = {game.value: game.value for game in PuzzleGame}
    names |= {game.name.lower(): game.value for game in PuzzleGame}
    close = difflib.get_close_matches(_plain(name), names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {names[close[0]]!r}?"
    return f"; games are {', '.join(game.value for game in PuzzleGame)}"


def _plain(name: str) -> str:
    return re.sub("[ -]+", "_", name.strip().lower())


class _Message(BaseModel):
    # A newer server may say more than is known here.
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


Message = TypeVar("Message", bound=_Message)


class DifficultyProfile(_Message):
    """What the server thinks makes the puzzle hard."""

    logic_depth: float = 1.0
    """How far one has to think ahead, 1 to 10."""
    branching_factor: float = 1.0
    """How many moves there are to choose from."""
    state_observability: float = 1.0
    """How much of the state is seen, 0 to 1."""
    constraint_density: float = 0.5
    """How much the constraints hold together, 0 to 1."""


class PuzzleObservation(_Message):
    """A puzzle as it stands."""

    game: str
    """The game's name as people write it."""
    difficulty: PuzzleDifficulty
    """How hard it was asked to be."""
    seed: int
    """What it was made from; with game and difficulty this gives the same puzzle again."""
    moves: int = 0
    """Moves the server counted (version 0.10 counts most of them twice)."""
    invalid_moves: int = 0
    """Moves that were refused."""
    hints_used: int = 0
    """Hints asked for."""
    hints_remaining: int = 0
    """Hints left."""
    optimal_steps: int | None = None
    """The least number of moves to solve it, where the server knows."""
    is_complete: bool = False
    """Whether it is solved."""
    difficulty_profile: DifficultyProfile = Field(default_factory=DifficultyProfile)
    """What makes it hard."""
    grid: Any = None
    """The cells; nothing, or not what changes, in some games: `grid_display` is the picture of them all."""
    grid_display: str = ""
    """The puzzle drawn in characters."""
    reasoning_metrics: dict[str, Any] | None = None
    """How the play has gone so far; version 0.10 only."""


class PuzzleCompletion(_Message):
    """The server's word that a puzzle is solved."""

    success: bool
    game: str
    moves: int = 0
    invalid_moves: int = 0
    hints_used: int = 0
    optimal_steps: int | None = None


class PuzzleResult(_Message):
    """What became of a command."""

    success: bool
    """Whether it was accepted."""
    code: str = ""
    """The server's short word for it, as PLACED or INVALID."""
    message: str = ""
    """The same for people."""
    state: PuzzleObservation | None = None
    """The puzzle afterwards."""
    completion: PuzzleCompletion | None = None
    """Present if this solved the puzzle (Knapsack says so only when asked to `check`)."""
    game_over: bool = False
    """Whether the game is lost: a mine, or no guesses left."""

    @property
    def solved(self) -> bool:
        """Whether the puzzle is solved now."""
        return self.completion is not None or (self.state is not None and self.state.is_complete)


class PuzzleHint(PuzzleResult):
    """A hint, which does not make the move; `success` is false where there is none to follow."""

    command: str | None = None
    """The command that does what the hint says; None where no command does."""


class PuzzleStats(_Message):
    """How the play has gone so far."""

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
    """Describe how to write a move of a game, as text for a model."""
    default = "`place ROW COLUMN DIGIT`"
    return _MOVE_FORMATS.get(PuzzleGame(game), default) if game in list(PuzzleGame) else default


def allowed_moves(game: PuzzleGame | str) -> frozenset[str]:
    """Return the first words of the commands that are moves of a game.

    An agent may send only these. The server has commands that give the solution away or end the game, and
    newer versions may have more of them. A game that is not in `PuzzleGame` may use the moves of all games.

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

    def has(self, kind: str) -> bool:
        """Whether there is an object of this type."""
        return kind in self._records

    def message(self, kind: str, model: type[Message]) -> Message:
        """The object of this type; an error if the reply has none, or one of another shape."""
        if kind not in self._records:
            raise InvalidReplyError(f"the server sent no {kind!r}: {self.words()!r}")
        return _validated(model, self._records[kind], kind)

    def result(self, command: str, before: PuzzleObservation) -> PuzzleResult:
        """One result of the one to three lines, or the text, that a command is answered with."""
        said = self._records.get("result", {})
        state = before
        if self.has("observation"):
            state = self.message("observation", PuzzleObservation)
        elif isinstance(said.get("state"), dict):
            # The state of a refused move comes without the picture, which has not changed.
            shown = said["state"] | {"grid_display": before.grid_display}
            state = _validated(PuzzleObservation, shown, "result")
        done = self.message("complete", PuzzleCompletion) if self.has("complete") else None
        lost = any("GAME OVER" in text for text in self.texts)
        outcome: dict[str, Any] = {"state": state, "completion": done, "game_over": lost}
        if said:
            told = {name: said.get(name) or "" for name in ("code", "message")}
            outcome |= {"success": said.get("success") or False, **told}
        elif done is not None or self.has("observation"):
            outcome |= {"success": True, "code": "OK", "message": self.words()}
        elif self.texts:
            outcome |= {"success": False, "code": "TEXT", "message": self.words()}
        else:
            words = f"the server failed on {command!r} and gave no reply"
            outcome |= {"success": False, "code": "NO_REPLY", "message": words}
        return _validated(PuzzleResult, outcome, "result")

    def words(self) -> str:
        """What it says in text, on one line."""
        return " ".join(" ".join(self.texts).split())


def _validated(model: type[Message], record: dict[str, Any], kind: str) -> Message:
    try:
        return model.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(
            f"the server's {kind!r} has a {place!r} that is not understood: {first['msg']}, "
            f"got {repr(first['input'])[:60]}"
        ) from error


def _parsed(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    # A number of thousands of digits is a plain ValueError, and brackets without end are a RecursionError.
    except (ValueError, RecursionError) as error:
        raise InvalidReplyError(
            f"the server sent a line that is not JSON ({error}): {line[:80]!r}"
        ) from error
    return record if isinstance(record, dict) else {}
