"""Sokoban puzzles, in which a player pushes boxes onto goals."""

import re
from typing import Any, ClassVar, NamedTuple

from phalanx.puzzles.kind import Puzzle, PuzzleKind, solve_puzzle
from phalanx.text.answers import quote

PARAMETERS = ("rows", "columns", "boxes", "walls", "min_pushes", "max_pushes", "boards")
"""Names of the generator's parameters. `walls` is the approximate percentage of inner cells that are walls,
`min_pushes` and `max_pushes` limit the number of pushes in the solution, and `boards` is the maximum number
of boards that the generator searches."""
WIDTH = 8
"""Number of cell indices per row: the cell in row `r` and column `c`, counted from 0, has index `8 * r + c`.
Boards with fewer columns leave the last indices of each row unused."""
STEPS = (-WIDTH, WIDTH, -1, 1)
"""Offsets from the index of a cell to those of the cells above, below, to the left and to the right."""
FLOOR, WALL, GOAL, BOX, BOX_ON_GOAL = range(5)
"""Values of the cells in `Puzzle.given`."""
DIRECTIONS = ("up", "down", "left", "right")
_MAX_SEARCHED_BOARDS = 500_000
_MAX_MOVES = 1000
_LETTERS = re.compile(r"(?:[udlr](?:\d\d)?)+", re.ASCII | re.IGNORECASE)


class SokobanState(NamedTuple):
    """Positions of the boxes and the player, as cell indices."""

    boxes: frozenset[int]
    player: int


class Sokoban(PuzzleKind[SokobanState, int]):
    """Sokoban: push every box onto a goal.

    Boards have at most 8x8 cells, including the walls around them. `given` always has 64 cells, and cells
    outside a smaller board are walls. `clues` contains the number of rows, the number of columns and the
    initial cell of the player. A move is an index into `DIRECTIONS`.
    """

    name = "sokoban"
    description = "push every box onto a goal; boxes cannot be pulled"
    has_unique_solution = False
    difficulties: ClassVar = {
        level: dict(zip(PARAMETERS, numbers, strict=True))
        for level, numbers in {
            "easy": (6, 6, 1, 10, 2, 4, 500),
            "medium": (7, 7, 2, 12, 4, 9, 3000),
            "hard": (8, 8, 3, 15, 8, 16, 8000),
        }.items()
    }

    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        settings = self.difficulties[difficulty]
        clues = (settings["rows"], settings["columns"], record[64])
        return Puzzle(
            self.name, seed, difficulty, settings["rows"], tuple(record[:64]), clues, tuple(record[65:])
        )

    def rules(self, puzzle: Puzzle) -> str:
        return (
            "This is sokoban. You are @ and walk up, down, left or right. Walking against a box ($) pushes "
            "it one cell further, if nothing is behind it; boxes cannot be pulled. # are walls, - is free "
            "floor. Push every box onto a goal (.); a box on a goal is drawn as *, and you on a goal as +."
        )

    def move_format(self, puzzle: Puzzle) -> str:
        return "Answer with one word: `up`, `down`, `left` or `right`."

    def answer_format(self, puzzle: Puzzle) -> str:
        return "Answer with all moves in one line, such as `up left left down`."

    def initial_state(self, puzzle: Puzzle) -> SokobanState:
        boxes = [cell for cell, kind in enumerate(puzzle.given) if kind in (BOX, BOX_ON_GOAL)]
        return SokobanState(frozenset(boxes), puzzle.clues[2])

    def draw_board(self, puzzle: Puzzle, state: SokobanState) -> str:
        rows, columns, _ = puzzle.clues
        symbols = ["#" if kind == WALL else "." if _is_goal(kind) else "-" for kind in puzzle.given]
        for box in state.boxes:
            symbols[box] = "*" if symbols[box] == "." else "$"
        symbols[state.player] = "+" if symbols[state.player] == "." else "@"
        return "\n".join(
            [" ".join(symbols[start : start + columns]) for start in range(0, rows * WIDTH, WIDTH)]
        )

    def parse_move(self, puzzle: Puzzle, state: SokobanState, text: str) -> int:
        direction = _direction(text)
        if obstacle := self._obstacle(puzzle, state, direction):
            raise ValueError(obstacle)
        return direction

    def legal_moves(self, puzzle: Puzzle, state: SokobanState) -> list[str]:
        return [name for move, name in enumerate(DIRECTIONS) if not self._obstacle(puzzle, state, move)]

    def _obstacle(self, puzzle: Puzzle, state: SokobanState, move: int) -> str:
        """Return the reason why a move is not possible, or an empty string if it is possible."""
        ahead, beyond = state.player + STEPS[move], state.player + 2 * STEPS[move]
        if puzzle.given[ahead] == WALL:
            return f"you cannot go {DIRECTIONS[move]}: there is a wall"
        if ahead in state.boxes and (beyond in state.boxes or puzzle.given[beyond] == WALL):
            behind = "another box" if beyond in state.boxes else "a wall"
            return f"you cannot push the box {DIRECTIONS[move]}: {behind} is behind it"
        return ""

    def apply(self, puzzle: Puzzle, state: SokobanState, move: int) -> SokobanState:
        ahead = state.player + STEPS[move]
        boxes = state.boxes
        if ahead in boxes:
            boxes = boxes - {ahead} | {ahead + STEPS[move]}
        return SokobanState(boxes, ahead)

    def is_solved(self, puzzle: Puzzle, state: SokobanState) -> bool:
        return all(_is_goal(puzzle.given[box]) for box in state.boxes)

    def solve(self, puzzle: Puzzle, state: SokobanState) -> list[str] | None:
        moves: tuple[int, ...] | bytes = puzzle.solution
        if state != self.initial_state(puzzle):
            kinds = ((FLOOR, GOAL), (BOX, BOX_ON_GOAL))
            board = [
                WALL if kind == WALL else kinds[cell in state.boxes][_is_goal(kind)]
                for cell, kind in enumerate(puzzle.given)
            ]
            question, parameters = bytes([*board, state.player]), self.parameters(puzzle.difficulty)
            found = solve_puzzle(self.name, question, parameters, _MAX_SEARCHED_BOARDS)
            if not found:
                return None
            moves = found[0]
        return [DIRECTIONS[move] for move in moves]

    def compact_answer(self, answer: str) -> str:
        return " ".join(word[0] for word in answer.split())

    def compact_solution(self, puzzle: Puzzle) -> str:
        # Each move is followed by the cell it leads to, so that a small model does not need to count moves.
        state, words = self.initial_state(puzzle), []
        for name in self.solve(puzzle, state) or ():
            state = self.apply(puzzle, state, _direction(name))
            words.append(f"{name[0]}{_cell_text(state.player)}")
        return "".join(words)

    def parse_answer(self, puzzle: Puzzle, text: str) -> SokobanState:
        """Parse a solution and return the state after its moves.

        Moves are words ("up left") or letters ("ul"). A letter may be followed by the row and column of the
        cell that the move leads to ("u32").
        """
        state = self.initial_state(puzzle)
        parts = re.split(r"[\s,]+", text.strip())
        words = [
            word
            for part in parts
            for word in (re.findall(r"\D\d*", part) if _LETTERS.fullmatch(part) else [part])
        ]
        if len(words) > _MAX_MOVES:
            raise ValueError(f"a whole answer has at most {_MAX_MOVES} moves, got {len(words)}")
        for number, word in enumerate(words, 1):
            try:
                name = word.rstrip("0123456789")
                state = self.apply(puzzle, state, self.parse_move(puzzle, state, name))
                if word != name and word[len(name) :] != _cell_text(state.player):
                    raise ValueError(
                        f"{name} leads to {_cell_text(state.player)}, not to {word[len(name) :]}"
                    )
            except ValueError as error:
                raise ValueError(f"move {number}: {error}") from error
        return state

    def solution_text(self, puzzle: Puzzle) -> str:
        return " ".join(self.solve(puzzle, self.initial_state(puzzle)) or ())


def _cell_text(cell: int) -> str:
    """Return the row and column of a cell as two digits, counted from 1."""
    return f"{cell // WIDTH + 1}{cell % WIDTH + 1}"


def _is_goal(kind: int) -> bool:
    return kind in (GOAL, BOX_ON_GOAL)


def _direction(text: str) -> int:
    word = text.strip().lower().removeprefix("move ").strip()
    for number, name in enumerate(DIRECTIONS):
        if word in (name, name[0]):
            return number
    raise ValueError(f"a move is up, down, left or right, got {quote(text)}")
