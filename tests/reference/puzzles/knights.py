"""Reference generator and solver of knights and knaves.

An assignment of roles to people is an integer in which bit `i` is 1 if person `i` is a knight. The truth
table of a statement is an integer in which bit `a` is 1 if the statement is true in assignment `a`.
"""

import functools
from collections.abc import Sequence

from phalanx.puzzles.kinds.knights import Statement
from phalanx.puzzles.splitmix64 import SplitMix64
from tests.reference.puzzles.search import MAX_ATTEMPTS

NAMES = 12


def generate_knights(seed: int, parameters: Sequence[int]) -> bytes:
    """Return the indices of the names, five numbers per statement, and 2 for a knight or 1 for a knave."""
    people, forms = parameters
    rng = SplitMix64(seed)
    names, knight = rng.permutation(NAMES)[:people], truth_tables(people)[0]
    for _ in range(MAX_ATTEMPTS):
        way, statements = rng.integers(1 << people), list[Statement]()
        while len(statements) < people:
            speaker = len(statements)
            statement = _statement(rng, speaker, people, forms)
            if not (knight[speaker] ^ truth_table(statement, people)) >> way & 1:
                statements.append(statement)
        if consistent_assignments(people, statements) == 1 << way:
            parts = [part for statement in statements for part in statement]
            return bytes([*names, *parts, *_roles(way, people)])
    raise RuntimeError("no statements that leave one way were found")


def solve_knights(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the assignments that are consistent with the statements."""
    people, found = parameters[0], list[bytes]()
    left = consistent_assignments(people, [tuple(puzzle[at : at + 5]) for at in range(0, 5 * people, 5)])  # type: ignore[misc]
    while left and len(found) < limit:
        found.append(bytes(_roles((left & -left).bit_length() - 1, people)))
        left &= left - 1
    return found


def _roles(way: int, people: int) -> list[int]:
    return [1 + (way >> person & 1) for person in range(people)]


def _statement(rng: SplitMix64, speaker: int, people: int, forms: int) -> Statement:
    """Draw a statement about two other people or about the number of knights."""
    form = rng.integers(forms)
    if form == 4:
        return form, rng.integers(people + 1), 0, 0, 0
    one, other = ((speaker + 1 + shift) % people for shift in rng.permutation(people - 1)[:2])
    if form == 1:
        return form, one, 1, other, 1
    return form, one, rng.integers(2), other, rng.integers(2)


@functools.cache
def truth_tables(people: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the truth tables of simple statements about a group of people.

    Returns:
        For each person, the truth table of "this person is a knight"; for each number from 0 to `people`, the
        truth table of "exactly this many people are knights"; and the truth table of a statement that is
        always true.
    """
    assignments = range(1 << people)
    knight = tuple(
        sum(1 << assignment for assignment in assignments if assignment >> person & 1)
        for person in range(people)
    )
    counts = tuple(
        sum(1 << assignment for assignment in assignments if assignment.bit_count() == k)
        for k in range(people + 1)
    )
    return knight, counts, (1 << (1 << people)) - 1


def truth_table(statement: Statement, people: int) -> int:
    """Return the truth table of a statement: bit `a` is 1 if the statement is true in assignment `a`."""
    form, one, one_knight, other, other_knight = statement
    knight, counts, every = truth_tables(people)
    if form == 4:
        return counts[one]
    first = knight[one] if one_knight else every & ~knight[one]
    second = knight[other] if other_knight else every & ~knight[other]
    same, implied = every & ~(first ^ second), every & ~first | second
    return (first, same, first & second, first | second, 0, implied)[form]


def consistent_assignments(people: int, statements: Sequence[Statement]) -> int:
    """Return the assignments in which exactly the knights' statements are true, as a truth table.

    Bit `a` is 1 if every knight tells the truth and every knave lies in assignment `a`.
    """
    knight, _, left = truth_tables(people)
    for person, statement in enumerate(statements):
        left &= ~(knight[person] ^ truth_table(statement, people))
    return left
