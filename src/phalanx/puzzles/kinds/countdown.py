"""Countdown: combine all numbers by arithmetic until the target is left.

Every result on the way is a positive whole number, so that no rounding decides.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.splitmix64 import SplitMix64
from phalanx.text.env import quote

OPERATORS = "+-*/"
Numbers: TypeAlias = tuple[int, ...]
Step: TypeAlias = tuple[int, int, int]
"""A number, an operator's place in `OPERATORS`, and another number."""

_MOVE = re.compile(r"(\d{1,9}) ?([-+*/x×÷]) ?(\d{1,9})", re.ASCII)
_TOKENS = re.compile(r"\s*(\d{1,9}|[-+*/()])", re.ASCII)
_MOST_TOKENS = 64


class Countdown(PuzzleKind[Numbers, Step]):
    """A state is the numbers that are left; a move combines two of them. Clues are the target."""

    name = "countdown"
    about = "combine all numbers by + - * / until the target is left"
    unique = False
    difficulties: ClassVar = {
        "easy": {"numbers": 3, "largest": 10, "least_target": 5, "most_target": 50},
        "medium": {"numbers": 4, "largest": 25, "least_target": 20, "most_target": 200},
        "hard": {"numbers": 6, "largest": 100, "least_target": 100, "most_target": 999},
    }

    def _make(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        return [_drawn(SplitMix64(seed), *parameters) for seed in seeds]

    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        numbers, steps, target = record
        solution = tuple(part for step in steps for part in step)
        return Puzzle(self.name, seed, difficulty, len(numbers), numbers, (target,), solution)

    def rules(self, puzzle: Puzzle) -> str:
        return (
            f"This is countdown. Combine numbers by +, -, * and / until only {puzzle.clues[0]} is left. Each "
            "number must be used, and only once. Every result on the way must be a positive whole number."
        )

    def moves(self, puzzle: Puzzle) -> str:
        return "Answer with one line that combines two numbers, such as `8 * 3`; their result replaces them."

    def whole(self, puzzle: Puzzle) -> str:
        return "Answer with one expression that uses every number once, such as `(8 * 3) + 5`."

    def start(self, puzzle: Puzzle) -> Numbers:
        return puzzle.given

    def draw(self, puzzle: Puzzle, state: Numbers) -> str:
        return f"Numbers: {', '.join(map(str, state))}\nTarget: {puzzle.clues[0]}"

    def parse(self, puzzle: Puzzle, state: Numbers, text: str) -> Step:
        found = _MOVE.fullmatch(text)
        if found is None:
            raise ValueError(f"a move combines two numbers, such as `8 * 3`, got {quote(text)}")
        one, operator, other = int(found[1]), OPERATORS.index(_plain(found[2])), int(found[3])
        left = list(state)
        for number in (one, other):
            if number not in left:
                raise ValueError(f"{number} is not among the numbers that are left")
            left.remove(number)
        _result(one, operator, other)
        return one, operator, other

    def legal_moves(self, puzzle: Puzzle, state: Numbers) -> list[str]:
        moves = dict.fromkeys(
            (one, operator, other)
            for first, one in enumerate(state)
            for second, other in enumerate(state)
            if first != second
            for operator in range(4)
            if _is_whole(one, operator, other)
        )
        return [f"{one} {OPERATORS[operator]} {other}" for one, operator, other in moves]

    def apply(self, puzzle: Puzzle, state: Numbers, move: Step) -> Numbers:
        return _combined(state, move)

    def is_solved(self, puzzle: Puzzle, state: Numbers) -> bool:
        return state == puzzle.clues

    def is_lost(self, puzzle: Puzzle, state: Numbers) -> bool:
        return len(state) == 1 and state != puzzle.clues

    def solve(self, puzzle: Puzzle, state: Numbers) -> list[str] | None:
        parts = puzzle.solution
        steps: list[Step] | None = list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
        if state != puzzle.given:
            steps = _search(state, puzzle.clues[0], set())
        return None if steps is None else [f"{one} {OPERATORS[op]} {other}" for one, op, other in steps]

    def teach(self, puzzle: Puzzle, state: Numbers) -> list[str] | None:
        # The first way by a fixed order, not the maker's: equal numbers are then always answered alike.
        steps = _search(state, puzzle.clues[0], set())
        return None if steps is None else [f"{one} {OPERATORS[op]} {other}" for one, op, other in steps]

    def compact(self, puzzle: Puzzle, state: Numbers) -> str:
        return f"{' '.join(map(str, sorted(state)))}={puzzle.clues[0]}"

    def compact_answer(self, answer: str) -> str:
        return answer.replace(" ", "")

    def read(self, puzzle: Puzzle, text: str) -> Numbers:
        value, used = _evaluated(text)
        if sorted(used) != sorted(puzzle.given):
            raise ValueError(f"every number must be used once; used are {', '.join(map(str, used))}")
        return (value,)

    def answer(self, puzzle: Puzzle) -> str:
        written = [(number, str(number)) for number in puzzle.given]
        parts = puzzle.solution
        for one, operator, other in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            texts = []
            for number in (one, other):
                at = next(place for place, (value, _) in enumerate(written) if value == number)
                texts.append(written.pop(at)[1])
            written.append((_result(one, operator, other), f"({texts[0]} {OPERATORS[operator]} {texts[1]})"))
        return written[0][1][1:-1]


def _plain(operator: str) -> str:
    return {"x": "*", "×": "*", "÷": "/"}.get(operator, operator)


def _result(one: int, operator: int, other: int) -> int:
    """The result of a step; a `ValueError` where it is no positive whole number."""
    if operator == 0:
        return one + other
    if operator == 1 and one > other:
        return one - other
    if operator == 2 and one * other < 10**9:
        return one * other
    if operator == 3 and other and one % other == 0:
        return one // other
    raise ValueError(
        f"{one} {OPERATORS[operator]} {other} is no positive whole number of at most nine digits"
    )


def _is_whole(one: int, operator: int, other: int) -> bool:
    """Whether a step has a result."""
    try:
        _result(one, operator, other)
    except ValueError:
        return False
    return True


def _combined(numbers: Numbers, step: Step) -> Numbers:
    """The numbers without two of them, and their result behind."""
    left = list(numbers)
    left.remove(step[0])
    left.remove(step[2])
    return (*left, _result(*step))


def _drawn(
    draws: SplitMix64, count: int, largest: int, least: int, most: int
) -> tuple[Numbers, list[Step], int]:
    """Numbers, the steps that combine them, and what those come to."""
    while True:
        numbers = tuple(1 + draws.below(largest) for _ in range(count))
        left, steps = numbers, list[Step]()
        while len(left) > 1:
            first, second = draws.order(len(left))[:2]
            one, other = max(left[first], left[second]), min(left[first], left[second])
            choices = [0, 2] + [1] * (one > other) + [3] * (other > 1 and one % other == 0)
            step = (one, choices[draws.below(len(choices))], other)
            steps.append(step)
            left = _combined(left, step)
            if left[-1] > 10 * most:
                break
        if len(left) == 1 and least <= left[0] <= most and left[0] not in numbers:
            return numbers, steps, left[0]


def _search(numbers: Numbers, target: int, dead: set[Numbers]) -> list[Step] | None:
    """Steps that leave the target; `dead` collects numbers from which none do."""
    if len(numbers) == 1:
        return [] if numbers[0] == target else None
    key = tuple(sorted(numbers))
    if key in dead:
        return None
    for first in range(len(key)):
        for second in range(first):
            for operator in range(4):
                step = (key[first], operator, key[second])
                try:
                    left = _combined(key, step)
                except ValueError:
                    continue
                rest = _search(left, target, dead)
                if rest is not None:
                    return [step, *rest]
    dead.add(key)
    return None


def _evaluated(text: str) -> tuple[int, list[int]]:
    """The value of an expression and the numbers in it; a `ValueError` says what is wrong with it."""
    tokens, place = list[str](), 0
    text = text.rstrip()
    while place < len(text):
        found = _TOKENS.match(text, place)
        if found is None or len(tokens) >= _MOST_TOKENS:
            raise ValueError(f"an expression has numbers, + - * / and brackets, got {quote(text)}")
        tokens.append(found[1])
        place = found.end()
    tokens.append("")
    position, used = 0, list[int]()

    def take() -> str:
        nonlocal position
        position += 1
        return tokens[position - 1]

    def term(level: int) -> int:
        if level == 2:
            token = take()
            if token == "(":
                value = term(0)
                if take() != ")":
                    raise ValueError("a bracket is not closed")
                return value
            if not token.isdigit():
                raise ValueError(f"a number or a bracket is missing before {token!r}" if token else
                                 "a number is missing at the end")  # fmt: skip
            used.append(int(token))
            return used[-1]
        value = term(level + 1)
        while tokens[position] and tokens[position] in ("+-", "*/")[level]:
            value = _result(value, OPERATORS.index(take()), term(level + 1))
        return value

    value = term(0)
    if tokens[position]:
        raise ValueError(f"{tokens[position]!r} stands where an operator was expected")
    return value, used
