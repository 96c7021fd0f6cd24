"""Protocol of a puzzle server: games, messages, moves, the conversion of hints to moves, and errors."""

import difflib
import random
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from phalanx.io.untrusted import parse_json

_UNKNOWN_BOARD_SIZE = 9
"""Number of rows and columns assumed in `random_command` if the server does not send the board."""


class PuzzleServerConnectionError(ConnectionError):
    """Raised if a connection cannot be established or can no longer be used.

    For example, the server is full, has closed the connection or did not reply in time. A new connection may
    work.
    """


class InvalidReplyError(PuzzleServerConnectionError):
    """Raised if the server sent an invalid reply, such as damaged JSON. A new connection may work."""


class PuzzleServerUnavailableError(ConnectionError):
    """Raised if all attempts at a request failed. The exception's cause is the error of the last attempt."""


class ProtocolError(ConnectionError):
    """Raised if the server does not behave as expected, for example if a reply has an unknown format.

    Retrying would not help.
    """


class UnknownGameNameError(ValueError):
    """Raised if a name is not a valid game name, or if the server has no game with this name."""


class PuzzleStartError(RuntimeError):
    """Raised if the server did not start a game that is in `PuzzleGame`."""


class InvalidCommandError(ValueError):
    """Raised if a string is not exactly one command, or if the command is not allowed in a running game.

    The command has not been sent to the server.
    """


class NoCurrentPuzzleError(RuntimeError):
    """Raised if a command needs a current puzzle, but no puzzle has been started."""


class PuzzleGame(StrEnum):
    """Games that both supported servers provide. The value of a member is the game's id on both servers.

    The servers are puzzle-arcade-server and chuk-puzzles-gym. Long names, spaces and capital letters are
    accepted, too: `PuzzleGame("Killer Sudoku")`.
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
    def accepts_moves(self) -> bool:
        """True if the server accepts moves in the game. It is False only for Logic Grid, where the server
        rejects every move, because it converts names to lowercase and then does not recognize them."""
        return self is not PuzzleGame.LOGIC_GRID


class PuzzleDifficulty(StrEnum):
    """Difficulty levels of the server's puzzles."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"

    @property
    def level(self) -> float:
        """Difficulty as a number from 0 to 1, which is stored in samples."""
        return {"easy": 0.3, "medium": 0.6, "hard": 0.9}[self.value]


def game_id(game: PuzzleGame | str) -> str:
    """Return the server's id for a game in `PuzzleGame`, or the normalized name of any other game.

    >>> game_id("Lights Out"), game_id("einstein")
    ('lights', 'einstein')
    """
    try:
        return PuzzleGame(game).value
    except ValueError:
        pass
    # A newline would start a second command, and a space would separate the difficulty.
    if not re.fullmatch(r"[a-z0-9_]{1,40}", name := _normalize(game)):
        raise UnknownGameNameError(f"{game!r} is not a valid name of a game{nearest_game(game)}")
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


class _PuzzleProgress(_Message):
    game: str
    """Display name of the game."""
    moves: int = 0
    """Number of moves as counted by the server. Version 0.10 of the server counts most moves twice."""
    invalid_moves: int = 0
    """Number of moves that the server rejected."""
    hints_used: int = 0
    """Number of hints that were requested so far."""
    optimal_steps: int | None = None
    """Minimum number of moves to solve the puzzle. None if the server does not know it."""


class PuzzleStats(_PuzzleProgress):
    """Statistics of the current puzzle."""

    difficulty: PuzzleDifficulty
    """Difficulty that was requested."""
    seed: int
    """Seed of the puzzle. The same game, difficulty and seed give the same puzzle."""
    difficulty_profile: dict[str, Any] = {}
    """The server's estimates of the difficulty by name, such as the number of steps that a player has to
    think ahead."""
    reasoning_metrics: dict[str, Any] | None = None
    """Statistics about the moves so far. Only version 0.10 of the server sends them."""


class PuzzleObservation(PuzzleStats):
    """Current state of a puzzle, as sent by the server."""

    hints_remaining: int = 0
    """Number of hints that can still be requested."""
    is_complete: bool = False
    """True if the puzzle is solved."""
    grid: Any = None
    """Cells of the board, usually as a list of rows. The server omits some or all cells for some games, but
    `grid_display` is always complete."""
    grid_display: str = ""
    """The board as text."""

    @property
    def board(self) -> str:
        """The board as text, without whitespace at the ends of lines."""
        return "\n".join(line.rstrip() for line in self.grid_display.splitlines())


class PuzzleCompletion(_PuzzleProgress):
    """Message with which the server reports that a puzzle is solved."""

    success: bool
    """True if the puzzle is solved."""


class CommandResult(_Message):
    """Result of a command that was sent to the server."""

    success: bool
    """True if the server accepted the command."""
    code: str = ""
    """The server's code for the result, such as PLACED or INVALID."""
    message: str = ""
    """The result as text."""
    state: PuzzleObservation | None = None
    """State of the puzzle after the command."""
    completion: PuzzleCompletion | None = None
    """The server's report that this command solved the puzzle. None if the server sent no such report. In
    Knapsack, the server sends it only after the `check` command."""
    game_over: bool = False
    """True if the game is lost, for example because a mine was revealed or no guesses are left."""

    @property
    def solved(self) -> bool:
        """True if the puzzle is solved after the command."""
        return self.completion is not None or (self.state is not None and self.state.is_complete)


class PuzzleHint(CommandResult):
    """A hint for the next move. The server suggests a move but does not make it. `success` is False if there
    is no hint."""

    command: str | None = None
    """Command that makes the suggested move. None if the hint cannot be converted to a command."""


_CELL = r"row (\d+), column (\d+)"
_PAIR = r"\((\d+),\s*(\d+)\)"


class _GameCommands(NamedTuple):
    """Formats of a game's hints and moves. The defaults are for games in which digits are placed."""

    hints: Mapping[str, str] = {rf"Try placing (\d+) at {_CELL}": r"place \2 \3 \1"}
    """Regular expressions for the texts of hints, each mapped to the command of the suggested move. In a
    command, `\\1` stands for the first group of the match."""
    move_format: str = "`place ROW COLUMN DIGIT`"
    """Description of how to write a move, as part of a prompt. Each command is enclosed in backticks."""


_COMMANDS: dict[PuzzleGame, _GameCommands] = {
    PuzzleGame.NONOGRAM: _GameCommands(
        {
            rf"Try marking {_CELL} as filled\b.*": r"place \1 \2 1",
            rf"Try marking {_CELL} as empty\b.*": r"place \1 \2 0",
        },
        "`place ROW COLUMN 1` to fill a cell, `place ROW COLUMN 0` to mark it as empty",
    ),
    PuzzleGame.LOGIC_GRID: _GameCommands(
        {r"(\S+) has the (\S+) (\S+)": r"connect person \1 \3 \2"},
        "`connect person NAME VALUE CATEGORY`",
    ),
    PuzzleGame.LIGHTS_OUT: _GameCommands(
        {rf"Try pressing the light at {_CELL}": r"press \1 \2"}, "`press ROW COLUMN`"
    ),
    PuzzleGame.MASTERMIND: _GameCommands(
        {r"The secret code is: (\d+(?: \d+)*)": r"guess \1"},
        "`guess COLOR COLOR COLOR COLOR`, colors as numbers, as many as the code has",
    ),
    PuzzleGame.SLITHERLINK: _GameCommands(
        {
            rf"Try setting ([hv])\w+ edge at {_PAIR} to line": r"set \1 \2 \3 1",
            rf"Try setting ([hv])\w+ edge at {_PAIR} to \S+": r"set \1 \2 \3 2",
        },
        "`set h ROW COLUMN 1` or `set v ROW COLUMN 1` for a line, with 2 for none",
    ),
    PuzzleGame.BRIDGES: _GameCommands(
        {rf"Try placing (\d+) bridge\(s\) between {_PAIR} and {_PAIR}": r"bridge \2 \3 \4 \5 \1"},
        "`bridge ROW COLUMN ROW COLUMN COUNT`",
    ),
    PuzzleGame.HITORI: _GameCommands({rf"Try shading cell at {_CELL}": r"shade \1 \2"}, "`shade ROW COLUMN`"),
    PuzzleGame.SHIKAKU: _GameCommands(
        {rf"Try rectangle from {_PAIR} to {_PAIR}": r"bridge \1 \2 \3 \4 0"},
        "`bridge ROW COLUMN ROW COLUMN 0` for a rectangle from corner to corner",
    ),
    PuzzleGame.TENTS: _GameCommands(
        {rf"Try placing a tent at {_CELL}": r"press \1 \2"},
        "`press ROW COLUMN` to place a tent",
    ),
    PuzzleGame.STAR_BATTLE: _GameCommands(
        {rf"Try placing a star at {_CELL}": r"press \1 \2"},
        "`press ROW COLUMN` to place a star",
    ),
    PuzzleGame.SOKOBAN: _GameCommands(
        {r"(?:Push|Move|Try moving|Try pushing) (up|down|left|right)\b.*": r"move \1"},
        "`move up`, `move down`, `move left` or `move right`",
    ),
    PuzzleGame.KNAPSACK: _GameCommands(
        {r"Try (select|deselect)ing item (\d+)\b.*": r"\1 \2"},
        "`select ITEM` or `deselect ITEM`, and `check` when done",
    ),
    PuzzleGame.NURIKABE: _GameCommands(
        {rf"Try marking {_PAIR} as (white|black)": r"mark \1 \2 \3"},
        "`mark ROW COLUMN white` or `mark ROW COLUMN black`",
    ),
    PuzzleGame.MINESWEEPER: _GameCommands(
        {rf"Try (reveal|flag)(?:l?ing|ging) cell {_PAIR}.*": r"\1 \2 \3"},
        "`reveal ROW COLUMN` or `flag ROW COLUMN`",
    ),
}


def _commands(game: PuzzleGame | str) -> _GameCommands:
    """Return the commands of a game. A game that is not in `PuzzleGame` has no hint patterns."""
    return _COMMANDS.get(PuzzleGame(game), _GameCommands()) if game in list(PuzzleGame) else _GameCommands({})


def command_for_hint(game: PuzzleGame | str, hint: str) -> str | None:
    """Convert the text of a hint to the command of the suggested move.

    Returns None if the game is unknown or if no command makes the suggested move. For example, the server has
    no command that removes a tent or a star, or that makes a shaded cell of Hitori white.

    >>> command_for_hint(PuzzleGame.SUDOKU, "Try placing 7 at row 1, column 2")
    'place 1 2 7'
    """
    text = hint.strip().removeprefix("Hint:").strip()
    for pattern, command in _commands(game).hints.items():
        if found := re.fullmatch(pattern, text):
            return found.expand(command)
    return None


def move_format(game: PuzzleGame | str) -> str:
    """Return the part of a prompt that describes how to write a move of a game."""
    return _commands(game).move_format


def allowed_moves(game: PuzzleGame | str) -> frozenset[str]:
    """Return the first word of each command that is a move of a game.

    Only these commands are sent on behalf of a policy. The server has other commands that reveal the solution
    or end the game, and newer versions may have more of them. For a game that is not in `PuzzleGame`, the
    moves of all games are allowed.

    >>> sorted(allowed_moves("sudoku"))
    ['clear', 'place']
    """
    games = [game] if game in list(PuzzleGame) else list(PuzzleGame)
    moves = {word for each in games for word in re.findall(r"`(\w+)", move_format(each))}
    # `clear` removes what `place` has placed.
    return frozenset(moves | {"clear"} if "place" in moves else moves)


def random_command(game: PuzzleGame | str, observation: PuzzleObservation, rng: random.Random) -> str:
    """Return a random command for a game. The command refers to cells on the board, but may be illegal.

    For Logic Grid, the command is a placeholder, because the server rejects all moves of that game.
    """
    board = observation.grid if isinstance(observation.grid, list) and observation.grid else None
    rows, columns = (len(board), len(board[0])) if board else (_UNKNOWN_BOARD_SIZE, _UNKNOWN_BOARD_SIZE)
    digits: dict[str, tuple[int, int]] = {PuzzleGame.BINARY: (0, 1), PuzzleGame.HIDATO: (1, rows * columns)}
    ranges = {
        "ROW": (1, rows),
        "COLUMN": (1, columns),
        "DIGIT": digits.get(game, (1, rows)),
        "COLOR": (1, 6),
        "COUNT": (1, 2),
        "ITEM": (1, 5),
    }
    words = rng.choice(re.findall("`(.+?)`", move_format(game))).split()
    return " ".join(str(rng.randint(*ranges[word])) if word in ranges else word for word in words)


REPLY_END = ('{"type":"mode","mode":"json","success":true}',)
"""Possible last lines of a reply while a game is running. The client adds the `mode json` command to the end
of each request, so each reply ends with the acknowledgment of that command."""
MENU_REPLY_END = ("Unknown command. Type 'help' to see available options.",)
"""Possible last lines of a reply in the menu. The server does not support the `mode json` command there, so
each reply ends with this error message."""


class Reply:
    """A parsed reply from the server.

    Args:
        lines: Lines of the reply. Their order does not matter.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.texts: list[str] = []
        """Nonempty lines that are not JSON."""
        self.acknowledged = False
        """True if the reply acknowledges the `mode json` command. The server does this only within a game."""
        self._records: dict[str, dict[str, Any]] = {}
        for line in lines:
            if line in REPLY_END:
                self.acknowledged = True
            elif line.startswith('{"'):
                try:
                    record = parse_json(line, "the server's reply")
                except ValueError as error:
                    raise InvalidReplyError(f"{error}: {line[:80]!r}") from error
                # `record` is an object, because the line starts with a brace.
                self._records[str(record.get("type"))] = record
            elif line.strip() and line not in MENU_REPLY_END:
                self.texts.append(line)

    def has(self, kind: str) -> bool:
        """Return whether the reply contains a JSON object whose `type` is `kind`."""
        return kind in self._records

    def message(self, kind: str, model: type[Message]) -> Message:
        """Return the JSON object whose `type` is `kind`, as an instance of `model`.

        Raises:
            InvalidReplyError: If there is no such object.
            ProtocolError: If the object has an unknown format.
        """
        if kind not in self._records:
            raise InvalidReplyError(f"the server sent no {kind!r}: {self.text!r}")
        return _validate(model, self._records[kind], kind)

    def result(self, command: str, before: PuzzleObservation) -> CommandResult:
        """Convert this reply to the result of a command.

        Args:
            command: The command, for error messages.
            before: State of the puzzle before the command.
        """
        result, state = self._records.get("result", {}), before
        if self.has("observation"):
            state = self.message("observation", PuzzleObservation)
        elif isinstance(result.get("state"), dict):
            # The state of a rejected move has no board text, because the board has not changed.
            shown = result["state"] | {"grid_display": before.grid_display}
            state = _validate(PuzzleObservation, shown, "result")
        done = self.message("complete", PuzzleCompletion) if self.has("complete") else None
        if result:
            fields = (result.get("success") or False, result.get("code") or "", result.get("message") or "")
        elif done is not None or self.has("observation"):
            fields = (True, "OK", self.text)
        elif self.texts:
            fields = (False, "TEXT", self.text)
        else:
            fields = (False, "NO_REPLY", f"the server failed on {command!r} and gave no reply")
        outcome = dict(zip(("success", "code", "message"), fields, strict=True))
        outcome |= {"state": state, "completion": done}
        outcome["game_over"] = any("GAME OVER" in text for text in self.texts)
        return _validate(CommandResult, outcome, "result")

    @property
    def text(self) -> str:
        """The lines that are not JSON, joined into one line."""
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
