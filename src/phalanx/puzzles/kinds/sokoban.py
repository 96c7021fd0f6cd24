"""Sokoban: push every box onto a goal; boxes cannot be pulled.

How boards are made and solved fast is in `src/native/puzzles/sokoban.cc`.
"""

import re
from typing import Any, ClassVar, NamedTuple

from phalanx.puzzles import engines
from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.twins.sokoban import BOX, BOX_ON_GOAL, FLOOR, GOAL, STEPS, WALL, WIDTH
from phalanx.text.env import quote

PARAMETERS = ("rows", "columns", "boxes", "walls", "least_pushes", "most_pushes", "boards")
DIRECTIONS = ("up", "down", "left", "right")
_MOST_BOARDS = 500_000
_MOST_MOVES = 1000
_LETTERS, _LETTER = (
    re.compile(r"(?:[udlr](?:\d\d)?)+", re.I | re.A),
    re.compile(r"[udlr](?:\d\d)?", re.I | re.A),
)


class Warehouse(NamedTuple):
    """Where the boxes and the player are."""

    boxes: frozenset[int]
    player: int


class Sokoban(PuzzleKind[Warehouse, int]):
    """Boards of at most 8x8 cells, the walls around included; a move is a direction's number."""

    name = "sokoban"
    about = "push every box onto a goal; boxes cannot be pulled"
    unique = False
    difficulties: ClassVar = {
        level: dict(zip(PARAMETERS, numbers, strict=True))
        for level, numbers in {
            "easy": (6, 6, 1, 10, 2, 4, 500),
            "medium": (7, 7, 2, 12, 4, 9, 3000),
            "hard": (8, 8, 3, 15, 8, 16, 8000),
        }.items()
    }

    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
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

    def moves(self, puzzle: Puzzle) -> str:
        return "Answer with one word: `up`, `down`, `left` or `right`."

    def whole(self, puzzle: Puzzle) -> str:
        return "Answer with all moves in one line, such as `up left left down`."

    def start(self, puzzle: Puzzle) -> Warehouse:
        boxes = [cell for cell, kind in enumerate(puzzle.given) if kind in (BOX, BOX_ON_GOAL)]
        return Warehouse(frozenset(boxes), puzzle.clues[2])

    def draw(self, puzzle: Puzzle, state: Warehouse) -> str:
        rows, columns, _ = puzzle.clues
        symbols = ["#" if kind == WALL else "." if _is_goal(kind) else "-" for kind in puzzle.given]
        for box in state.boxes:
            symbols[box] = "*" if symbols[box] == "." else "$"
        symbols[state.player] = "+" if symbols[state.player] == "." else "@"
        return "\n".join(
            [" ".join(symbols[start : start + columns]) for start in range(0, rows * WIDTH, WIDTH)]
        )

    def parse(self, puzzle: Puzzle, state: Warehouse, text: str) -> int:
        direction = _direction(text)
        ahead, beyond = state.player + STEPS[direction], state.player + 2 * STEPS[direction]
        if puzzle.given[ahead] == WALL:
            raise ValueError(f"you cannot go {DIRECTIONS[direction]}: there is a wall")
        if ahead in state.boxes and (beyond in state.boxes or puzzle.given[beyond] == WALL):
            behind = "another box" if beyond in state.boxes else "a wall"
            raise ValueError(f"you cannot push the box {DIRECTIONS[direction]}: {behind} is behind it")
        return direction

    def legal_moves(self, puzzle: Puzzle, state: Warehouse) -> list[str]:
        found = []
        for name, step in zip(DIRECTIONS, STEPS, strict=True):
            ahead, beyond = state.player + step, state.player + 2 * step
            pushed = ahead in state.boxes
            blocked = pushed and (beyond in state.boxes or puzzle.given[beyond] == WALL)
            if puzzle.given[ahead] != WALL and not blocked:
                found.append(name)
        return found

    def apply(self, puzzle: Puzzle, state: Warehouse, move: int) -> Warehouse:
        ahead = state.player + STEPS[move]
        boxes = state.boxes
        if ahead in boxes:
            boxes = boxes - {ahead} | {ahead + STEPS[move]}
        return Warehouse(boxes, ahead)

    def is_solved(self, puzzle: Puzzle, state: Warehouse) -> bool:
        return all(_is_goal(puzzle.given[box]) for box in state.boxes)

    def solve(self, puzzle: Puzzle, state: Warehouse) -> list[str] | None:
        moves: tuple[int, ...] | bytes = puzzle.solution
        if state != self.start(puzzle):
            kinds = ((FLOOR, GOAL), (BOX, BOX_ON_GOAL))
            board = [
                WALL if kind == WALL else kinds[cell in state.boxes][_is_goal(kind)]
                for cell, kind in enumerate(puzzle.given)
            ]
            question, parameters = bytes([*board, state.player]), self.parameters(puzzle.difficulty)
            found = engines.solutions(self.name, question, parameters, limit=_MOST_BOARDS)
            if not found:
                return None
            moves = found[0]
        return [DIRECTIONS[move] for move in moves]

    def compact_answer(self, answer: str) -> str:
        return " ".join(word[0] for word in answer.split())

    def compact_whole(self, puzzle: Puzzle) -> str:
        # Where each move leads stands behind it: a small model need not count moves to know where it is.
        state, words = self.start(puzzle), []
        for name in self.solve(puzzle, state) or ():
            state = self.apply(puzzle, state, _direction(name))
            words.append(f"{name[0]}{_place(state.player)}")
        return "".join(words)

    def read(self, puzzle: Puzzle, text: str) -> Warehouse:
        """Where moves lead: words, or letters with or without the row and column that one then stands on."""
        state = self.start(puzzle)
        parts = re.split(r"[\s,]+", text.strip())
        words = [
            word for part in parts for word in (_LETTER.findall(part) if _LETTERS.fullmatch(part) else [part])
        ]
        if len(words) > _MOST_MOVES:
            raise ValueError(f"a whole answer has at most {_MOST_MOVES} moves, got {len(words)}")
        for number, word in enumerate(words, 1):
            try:
                name = word.rstrip("0123456789")
                state = self.apply(puzzle, state, self.parse(puzzle, state, name))
                if word != name and word[len(name) :] != _place(state.player):
                    raise ValueError(f"{name} leads to {_place(state.player)}, not to {word[len(name) :]}")
            except ValueError as error:
                raise ValueError(f"move {number}: {error}") from error
        return state

    def answer(self, puzzle: Puzzle) -> str:
        return " ".join(self.solve(puzzle, self.start(puzzle)) or ())


def _place(cell: int) -> str:
    """The row and the column, which count from 1."""
    return f"{cell // WIDTH + 1}{cell % WIDTH + 1}"


def _is_goal(kind: int) -> bool:
    return kind in (GOAL, BOX_ON_GOAL)


def _direction(text: str) -> int:
    word = text.strip().lower().removeprefix("move ").strip()
    for number, name in enumerate(DIRECTIONS):
        if word in (name, name[0]):
            return number
    raise ValueError(f"a move is up, down, left or right, got {quote(text)}")
