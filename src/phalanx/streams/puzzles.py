"""The games of a puzzle server, and what it says about them: observations, results, hints, completions.

How they are asked for is in `telnet_client`; what command a hint's text stands for is in `hints`.
"""

import difflib
import re
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from phalanx.streams.telnet_errors import UnknownGameError


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
