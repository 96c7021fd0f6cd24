"""Conversion of hints to commands for every game."""

import pytest

from phalanx.puzzles.server_client.protocol import (
    PuzzleDifficulty,
    PuzzleGame,
    UnknownGameNameError,
    command_for_hint,
    game_id,
    nearest_game,
)

CASES = {
    PuzzleGame.SUDOKU: ("Try placing 7 at row 1, column 2", "place 1 2 7"),
    PuzzleGame.KENKEN: ("Try placing 4 at row 3, column 1", "place 3 1 4"),
    PuzzleGame.KAKURO: ("Try placing 9 at row 2, column 5", "place 2 5 9"),
    PuzzleGame.BINARY: ("Try placing 0 at row 6, column 4", "place 6 4 0"),
    PuzzleGame.FUTOSHIKI: ("Try placing 2 at row 4, column 4", "place 4 4 2"),
    PuzzleGame.NONOGRAM: ("Try marking row 1, column 5 as empty (X)", "place 1 5 0"),
    PuzzleGame.LOGIC_GRID: ("Alice has the Blue color", "connect person Alice color Blue"),
    PuzzleGame.KILLER_SUDOKU: ("Try placing 5 at row 9, column 9", "place 9 9 5"),
    PuzzleGame.LIGHTS_OUT: ("Try pressing the light at row 2, column 3", "press 2 3"),
    PuzzleGame.MASTERMIND: ("The secret code is: 3 1 6 6", "guess 3 1 6 6"),
    PuzzleGame.SLITHERLINK: ("Try setting vertical edge at (2,6) to line", "set v 2 6 1"),
    PuzzleGame.BRIDGES: ("Try placing 2 bridge(s) between (1,1) and (1,5)", "bridge 1 1 1 5 2"),
    PuzzleGame.HITORI: ("Try shading cell at row 4, column 1", "shade 4 1"),
    PuzzleGame.SHIKAKU: ("Try rectangle from (1,1) to (2,3)", "bridge 1 1 2 3 0"),
    PuzzleGame.HIDATO: ("Try placing 12 at row 3, column 4", "place 3 4 12"),
    PuzzleGame.TENTS: ("Try placing a tent at row 5, column 2", "press 5 2"),
    PuzzleGame.FILLOMINO: ("Try placing 3 at row 1, column 1", "place 1 1 3"),
    PuzzleGame.STAR_BATTLE: ("Try placing a star at row 6, column 1", "press 6 1"),
    PuzzleGame.SOKOBAN: ("Push left to move box toward goal", "move left"),
    PuzzleGame.KNAPSACK: ("Try selecting item 4 (Gold Bar)", "select 4"),
    PuzzleGame.NURIKABE: ("Try marking (3,2) as black", "mark 3 2 black"),
    PuzzleGame.MINESWEEPER: ("Try revealing cell (1,6) - it's safe", "reveal 1 6"),
}
MORE = [
    (PuzzleGame.NONOGRAM, "Try marking row 2, column 1 as filled (■)", "place 2 1 1"),
    (PuzzleGame.SLITHERLINK, "Try setting horizontal edge at (1,2) to line", "set h 1 2 1"),
    (PuzzleGame.SOKOBAN, "Move up to get into push position", "move up"),
    (PuzzleGame.SOKOBAN, "Try moving down", "move down"),
    (PuzzleGame.SOKOBAN, "Try pushing right", "move right"),
    (PuzzleGame.KNAPSACK, "Try deselecting item 12 (Lamp)", "deselect 12"),
    (PuzzleGame.MINESWEEPER, "Try flagging cell (4,4) - it's a mine", "flag 4 4"),
    (PuzzleGame.SUDOKU, "Hint: Try placing 7 at row 1, column 2\r\n", "place 1 2 7"),
]


def test_all_22_games_have_a_case() -> None:
    assert set(CASES) == set(PuzzleGame)
    assert len(PuzzleGame) == 22


@pytest.mark.parametrize(("game", "hint", "command"), [(game, *case) for game, case in CASES.items()] + MORE)
def test_hint_becomes_a_command(game: PuzzleGame, hint: str, command: str) -> None:
    assert command_for_hint(game, hint) == command


@pytest.mark.parametrize(
    ("game", "hint"),
    [
        (PuzzleGame.TENTS, "Remove the tent at row 1, column 2"),
        (PuzzleGame.STAR_BATTLE, "Remove the star at row 1, column 2"),
        (PuzzleGame.HITORI, "Try unshading cell at row 1, column 2"),
        (PuzzleGame.SUDOKU, "Try placing 7 at row 1, column 2\nquit"),
        ("einstein", "Try placing 7 at row 1, column 2"),
    ],
)
def test_hint_without_command_gives_none(game: PuzzleGame | str, hint: str) -> None:
    assert command_for_hint(game, hint) is None


def test_games_are_found_under_common_names() -> None:
    assert PuzzleGame("killer_sudoku") is PuzzleGame.KILLER_SUDOKU
    assert PuzzleGame("Star Battle") is PuzzleGame.STAR_BATTLE
    assert [game_id(name) for name in ("logic_grid", "slitherlink", "lights-out", "rush_hour")] == [
        "logic",
        "slither",
        "lights",
        "rush_hour",
    ]


@pytest.mark.parametrize("name", ["", "sudoku\nquit", "sudoku;", "a" * 41])
def test_invalid_game_name_raises_error(name: str) -> None:
    with pytest.raises(UnknownGameNameError, match="is not a valid name of a game"):
        game_id(name)


def test_nearest_name_is_suggested() -> None:
    assert nearest_game("minesweper") == "; did you mean 'minesweeper'?"
    assert nearest_game("killer sudoko") == "; did you mean 'killer'?"
    assert nearest_game("zzz").startswith("; games are sudoku, kenken")


def test_difficulties_are_ordered() -> None:
    assert [level.level for level in PuzzleDifficulty] == [0.3, 0.6, 0.9]
