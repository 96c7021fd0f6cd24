"""Knights and knaves puzzles, in which each person either always tells the truth or always lies."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from phalanx.puzzles.kind import Puzzle, PuzzleKind, match_move
from phalanx.text.answers import quote

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo")
ROLES = ("unknown", "knave", "knight")

Roles: TypeAlias = tuple[int, ...]

Statement: TypeAlias = tuple[int, int, int, int, int]
"""A statement: its form, the first person and their role, and the second person and their role.

People are given by their indices, and a role is 1 for a knight and 0 for a knave. The forms are:

- 0: the first person has the given role; the second person and role are not used
- 1: both people have the same role; both roles in the tuple are 1
- 2: both people have their given roles
- 3: at least one of the two people has their given role
- 4: exactly n people are knights, where n is the second item of the tuple; the remaining items are not used
- 5: if the first person has their given role, then the second person has theirs
"""

_SHORT = re.compile(r"([A-Za-z])([-+])")
_MOVE = re.compile(r"([A-Za-z]{1,20})(?: is|:)?(?: an?)? (knight|knave)[.,]?", re.IGNORECASE)


class KnightsAndKnaves(PuzzleKind[Roles, tuple[int, int]]):
    """Knights and knaves: find out who is a knight and tells the truth, and who is a knave and lies.

    A state contains, for each person, the index in `ROLES` of the currently assigned role (at first,
    `unknown`). A move consists of the index of a person and the index of their new role. `clues` contains the
    names, followed by one `Statement` per person. The `forms` parameter is the number of statement forms that
    the generator uses: for example, 2 means forms 0 and 1.
    """

    name = "knights"
    description = "knights tell the truth and knaves lie; find out who is who"
    difficulties: ClassVar = {
        "easy": {"people": 3, "forms": 2},
        "medium": {"people": 4, "forms": 4},
        "hard": {"people": 6, "forms": 6},
    }

    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        people = self.difficulties[difficulty]["people"]
        names = [NAMES[number] for number in record[:people]]
        statements = [tuple(record[at : at + 5]) for at in range(people, 6 * people, 5)]
        clues, solution = (*names, *statements), tuple(record[6 * people :])
        return Puzzle(self.name, seed, difficulty, people, (0,) * people, clues, solution)

    def rules(self, puzzle: Puzzle) -> str:
        names, statements = self._names(puzzle), puzzle.clues[puzzle.size :]
        said = "\n".join(
            f"{name} says: {_text(statement, names)}"
            for name, statement in zip(names, statements, strict=True)
        )
        return (
            "Everybody here is either a knight or a knave. What a knight says is true, what a knave says is "
            f"false. Find out who is a knight and who is a knave.\n\n{said}"
        )

    def move_format(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line: a name and `knight` or `knave`, such as "
            f"`{self._names(puzzle)[0]} knight`; it can be changed later."
        )

    def answer_format(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line for each person: the name and `knight` or `knave`, such as "
            f"`{self._names(puzzle)[0]} knight`."
        )

    def draw_board(self, puzzle: Puzzle, state: Roles) -> str:
        return "\n".join(
            f"{name}: {ROLES[role]}" for name, role in zip(self._names(puzzle), state, strict=True)
        )

    def parse_move(self, puzzle: Puzzle, state: Roles, text: str) -> tuple[int, int]:
        names = [name.lower() for name in self._names(puzzle)]
        if short := _SHORT.fullmatch(text):
            name = next((name for name in names if name[0] == short[1].lower()), short[1])
            text = f"{name.capitalize()} {ROLES['-+'.index(short[2]) + 1]}"
        found = match_move(_MOVE, text, "a move is a name and knight or knave")
        if found[1].lower() not in names:
            raise ValueError(
                f"nobody is called {quote(found[1])}; there are {', '.join(self._names(puzzle))}"
            )
        person, role = names.index(found[1].lower()), ROLES.index(found[2].lower())
        if state[person] == role:
            raise ValueError(f"{found[1]} is held to be a {ROLES[role]} already")
        return person, role

    def legal_moves(self, puzzle: Puzzle, state: Roles) -> list[str]:
        people = zip(self._names(puzzle), state, strict=True)
        return [f"{name} {ROLES[role]}" for name, held in people for role in (1, 2) if role != held]

    def apply(self, puzzle: Puzzle, state: Roles, move: tuple[int, int]) -> Roles:
        person, role = move
        return (*state[:person], role, *state[person + 1 :])

    def is_solved(self, puzzle: Puzzle, state: Roles) -> bool:
        if 0 in state:
            return False
        knights = [role == 2 for role in state]
        statements = zip(knights, puzzle.clues[puzzle.size :], strict=True)
        return all(_is_true(statement, knights) == is_knight for is_knight, statement in statements)

    def solve(self, puzzle: Puzzle, state: Roles) -> list[str] | None:
        people = zip(self._names(puzzle), puzzle.solution, state, strict=True)
        return [f"{name} {ROLES[role]}" for name, role, held in people if role != held]

    def compact_board(self, puzzle: Puzzle, state: Roles) -> str:
        names = self._names(puzzle)
        said = "\n".join(
            f"{name[0]}:{_short(statement, names)}"
            for name, statement in zip(names, puzzle.clues[puzzle.size :], strict=True)
        )
        held = "\n".join(f"{name[0]}{'?-+'[role]}" for name, role in zip(names, state, strict=True))
        return f"{said}\n{held}"

    def compact_answer(self, answer: str) -> str:
        lines = (line.split() for line in answer.split("\n"))
        return "\n".join(f"{name[0]}{'-+'[role == 'knight']}" for name, role in lines)

    def parse_answer(self, puzzle: Puzzle, text: str) -> Roles:
        state = super().parse_answer(puzzle, text)
        if 0 in state:
            raise ValueError(f"nothing is said about {self._names(puzzle)[state.index(0)]}")
        return state

    def _solver_input(self, puzzle: Puzzle) -> bytes:
        return bytes(part for statement in puzzle.clues[puzzle.size :] for part in statement)

    def _names(self, puzzle: Puzzle) -> tuple[str, ...]:
        return puzzle.clues[: puzzle.size]


def _text(statement: Statement, names: Sequence[str]) -> str:
    form, one, one_knight, other, other_knight = statement
    if form == 4:
        return f"exactly {one} of the {len(names)} of us {'is a knight' if one == 1 else 'are knights'}."
    first = f"{names[one]} is a {ROLES[1 + one_knight]}"
    second = f"{names[other]} is a {ROLES[1 + other_knight]}"
    return (
        f"{first}.",
        f"{names[one]} and {names[other]} are of the same kind.",
        f"{first} and {second}.",
        f"{first} or {second}, or both.",
        "",
        f"if {first}, then {second}.",
    )[form]


def _short(statement: Statement, names: Sequence[str]) -> str:
    """Format a statement compactly: first letters of the names, `+` for a knight and `-` for a knave.

    The letters identify the people, because all names start with different letters.
    """
    form, one, one_knight, other, other_knight = statement
    if form == 4:
        return f"#{one}"
    first, second = f"{names[one][0]}{'-+'[one_knight]}", f"{names[other][0]}{'-+'[other_knight]}"
    return (
        first,
        f"{first[0]}={second[0]}",
        f"{first}&{second}",
        f"{first}|{second}",
        "",
        f"{first}>{second}",
    )[form]


def _is_true(statement: Statement, knights: Sequence[bool]) -> bool:
    """Return whether a statement is true. `knights` contains True for each person who is a knight."""
    form, one, one_knight, other, other_knight = statement
    if form == 4:
        return sum(knights) == one
    first, second = knights[one] == one_knight, knights[other] == other_knight
    return (first, first == second, first and second, first or second, False, not first or second)[form]
