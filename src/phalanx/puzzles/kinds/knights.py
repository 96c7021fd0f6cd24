"""Knights and knaves: knights say what is true, knaves what is false; find out who is who.

Statements are truth tables over all ways that things can be, one bit for each.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from phalanx.core.text_environment import shortened
from phalanx.puzzles.draws import Draws
from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.kinds.cells import read_lines

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo")
ROLES = ("unknown", "knave", "knight")

Statement: TypeAlias = tuple[int, int, int, int, int]
"""A form's number, a person and whether a knight is meant, another person and the same; or a number first."""
Roles: TypeAlias = tuple[int, ...]

_MOVE = re.compile(r"([A-Za-z]{1,20})(?: is|:)?(?: an?)? (knight|knave)[.,]?", re.IGNORECASE)


class Knights(PuzzleKind[Roles, tuple[int, int]]):
    """A state is a place in `ROLES` for each person. Clues are the names, then a statement of each person."""

    name = "knights"
    about = "knights say what is true, knaves what is false; find out who is who"
    difficulties: ClassVar = {
        "easy": {"people": 3, "forms": 2},
        "medium": {"people": 4, "forms": 4},
        "hard": {"people": 6, "forms": 6},
    }

    def _make(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        return [_drawn(Draws(seed), *parameters) for seed in seeds]

    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        names, statements, solution = record
        people = len(names)
        return Puzzle(
            self.name, seed, difficulty, people, (0,) * people, (*names, *statements), tuple(solution)
        )

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

    def moves(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line: a name and `knight` or `knave`, such as "
            f"`{self._names(puzzle)[0]} knight`; it can be changed later."
        )

    def whole(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line for each person: the name and `knight` or `knave`, such as "
            f"`{self._names(puzzle)[0]} knight`."
        )

    def start(self, puzzle: Puzzle) -> Roles:
        return puzzle.given

    def draw(self, puzzle: Puzzle, state: Roles) -> str:
        return "\n".join(
            f"{name}: {ROLES[role]}" for name, role in zip(self._names(puzzle), state, strict=True)
        )

    def parse(self, puzzle: Puzzle, state: Roles, text: str) -> tuple[int, int]:
        found = _MOVE.fullmatch(text)
        if found is None:
            raise ValueError(f"a move is a name and knight or knave, got {shortened(text)}")
        names = [name.lower() for name in self._names(puzzle)]
        if found[1].lower() not in names:
            raise ValueError(
                f"nobody is called {shortened(found[1])}; there are {', '.join(self._names(puzzle))}"
            )
        person, role = names.index(found[1].lower()), ROLES.index(found[2].lower())
        if state[person] == role:
            raise ValueError(f"{found[1]} is held to be a {ROLES[role]} already")
        return person, role

    def apply(self, puzzle: Puzzle, state: Roles, move: tuple[int, int]) -> Roles:
        person, role = move
        return (*state[:person], role, *state[person + 1 :])

    def is_solved(self, puzzle: Puzzle, state: Roles) -> bool:
        if 0 in state:
            return False
        way = sum((role == 2) << person for person, role in enumerate(state))
        return bool(_models(puzzle.size, puzzle.clues[puzzle.size :]) >> way & 1)

    def solve(self, puzzle: Puzzle, state: Roles) -> list[str] | None:
        people = zip(self._names(puzzle), puzzle.solution, state, strict=True)
        return [f"{name} {ROLES[role]}" for name, role, held in people if role != held]

    def read(self, puzzle: Puzzle, text: str) -> Roles:
        state = puzzle.given
        for line in read_lines(text, puzzle.size):
            state = self.apply(puzzle, state, self.parse(puzzle, state, line))
        if 0 in state:
            raise ValueError(f"nothing is said about {self._names(puzzle)[state.index(0)]}")
        return state

    def answer(self, puzzle: Puzzle) -> str:
        return "\n".join(self.solve(puzzle, puzzle.given) or ())

    def count_solutions(self, puzzle: Puzzle, limit: int = 2) -> int:
        return min(limit, _models(puzzle.size, puzzle.clues[puzzle.size :]).bit_count())

    def _names(self, puzzle: Puzzle) -> tuple[str, ...]:
        return puzzle.clues[: puzzle.size]


@functools.cache
def _tables(people: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The ways in which each person is a knight; those with each number of knights; all ways."""
    ways = range(1 << people)
    knight = tuple(sum(1 << way for way in ways if way >> person & 1) for person in range(people))
    counts = tuple(sum(1 << way for way in ways if way.bit_count() == k) for k in range(people + 1))
    return knight, counts, (1 << (1 << people)) - 1


def _table(statement: Statement, people: int) -> int:
    """The ways in which a statement is true."""
    form, one, one_knight, other, other_knight = statement
    knight, counts, every = _tables(people)
    if form == 4:
        return counts[one]
    first = knight[one] if one_knight else every & ~knight[one]
    second = knight[other] if other_knight else every & ~knight[other]
    same, implied = every & ~(first ^ second), every & ~first | second
    return (first, same, first & second, first | second, 0, implied)[form]


def _models(people: int, statements: Sequence[Statement]) -> int:
    """The ways in which each statement is true if a knight says it, and false if a knave does."""
    knight, _, models = _tables(people)
    for person, statement in enumerate(statements):
        models &= ~(knight[person] ^ _table(statement, people))
    return models


def _drawn(draws: Draws, people: int, forms: int) -> tuple[tuple[str, ...], tuple[Statement, ...], list[int]]:
    """Names, statements that leave one way, and who is what in it."""
    names = tuple(NAMES[at] for at in draws.order(len(NAMES))[:people])
    knight = _tables(people)[0]
    while True:
        way, statements = draws.below(1 << people), list[Statement]()
        while len(statements) < people:
            speaker = len(statements)
            statement = _statement(draws, speaker, people, forms)
            if not (knight[speaker] ^ _table(statement, people)) >> way & 1:
                statements.append(statement)
        if _models(people, statements) == 1 << way:
            return names, tuple(statements), [1 + (way >> person & 1) for person in range(people)]


def _statement(draws: Draws, speaker: int, people: int, forms: int) -> Statement:
    """Something that one can say of two others, or of how many knights there are."""
    form = draws.below(forms)
    if form == 4:
        return form, draws.below(people + 1), 0, 0, 0
    one, other = ((speaker + 1 + shift) % people for shift in draws.order(people - 1)[:2])
    if form == 1:
        return form, one, 1, other, 1
    return form, one, draws.below(2), other, draws.below(2)


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
