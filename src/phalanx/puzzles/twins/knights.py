"""Knights and knaves: statements as truth tables over all ways that things can be, one bit for each.

The twin of `src/native/puzzles/knights.cc`.
"""

import functools
from collections.abc import Sequence
from typing import TypeAlias

from phalanx.puzzles.splitmix64 import SplitMix64
from phalanx.puzzles.twins.search import MOST_ATTEMPTS

NAMES = 12
Statement: TypeAlias = tuple[int, int, int, int, int]
"""A form's number, a person and whether a knight is meant, another person and the same; or a number first."""


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


def models(people: int, statements: Sequence[Statement]) -> int:
    """The ways in which each statement is true if a knight says it, and false if a knave does."""
    knight, _, left = _tables(people)
    for person, statement in enumerate(statements):
        left &= ~(knight[person] ^ _table(statement, people))
    return left


def make_knights(seed: int, parameters: Sequence[int]) -> bytes:
    """The numbers of the names, five numbers for each statement, and 2 for a knight or 1 for a knave."""
    people, forms = parameters
    draws = SplitMix64(seed)
    names, knight = draws.order(NAMES)[:people], _tables(people)[0]
    for _ in range(MOST_ATTEMPTS):
        way, statements = draws.below(1 << people), list[Statement]()
        while len(statements) < people:
            speaker = len(statements)
            statement = _statement(draws, speaker, people, forms)
            if not (knight[speaker] ^ _table(statement, people)) >> way & 1:
                statements.append(statement)
        if models(people, statements) == 1 << way:
            parts = [part for statement in statements for part in statement]
            return bytes([*names, *parts, *_roles(way, people)])
    raise RuntimeError("no statements that leave one way were found")


def solve_knights(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """The ways that statements leave."""
    people, found = parameters[0], list[bytes]()
    left = models(people, [tuple(puzzle[at : at + 5]) for at in range(0, 5 * people, 5)])  # type: ignore[misc]
    while left and len(found) < limit:
        found.append(bytes(_roles((left & -left).bit_length() - 1, people)))
        left &= left - 1
    return found


def _roles(way: int, people: int) -> list[int]:
    return [1 + (way >> person & 1) for person in range(people)]


def _statement(draws: SplitMix64, speaker: int, people: int, forms: int) -> Statement:
    """Something that one can say of two others, or of how many knights there are."""
    form = draws.below(forms)
    if form == 4:
        return form, draws.below(people + 1), 0, 0, 0
    one, other = ((speaker + 1 + shift) % people for shift in draws.order(people - 1)[:2])
    if form == 1:
        return form, one, 1, other, 1
    return form, one, draws.below(2), other, draws.below(2)
