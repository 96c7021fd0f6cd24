"""Countdown puzzles: combine numbers with arithmetic operations until only the target number is left.

Every intermediate result must be a positive integer, so answers do not depend on rounding.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

from phalanx.puzzles.kind import Puzzle, PuzzleKind, match_move
from phalanx.puzzles.splitmix64 import SplitMix64
from phalanx.text.answers import quote

OPERATORS = "+-*/"
Numbers: TypeAlias = tuple[int, ...]
Step: TypeAlias = tuple[int, int, int]
"""One arithmetic operation: first number, index of the operator in `OPERATORS`, and second number."""

_MOVE = re.compile(r"(\d{1,9}) ?([-+*/x×÷]) ?(\d{1,9})", re.ASCII)
_EXPRESSION = re.compile(r"(?:\s*+(?:\d{1,9}+(?!\d)|[-+*/()])){1,64}+\s*+", re.ASCII)
_AST_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
"""Classes of `ast` nodes for the operators in `OPERATORS`, in the same order."""


class Countdown(PuzzleKind[Numbers, Step]):
    """Countdown: combine all numbers with + - * / until only the target is left.

    A state consists of the remaining numbers. A move replaces two of them with the result of an operation.
    `clues` contains only the target.
    """

    name = "countdown"
    description = "combine all numbers with + - * / until only the target is left"
    has_unique_solution = False
    difficulties: ClassVar = {
        "easy": {"numbers": 3, "max_number": 10, "min_target": 5, "max_target": 50},
        "medium": {"numbers": 4, "max_number": 25, "min_target": 20, "max_target": 200},
        "hard": {"numbers": 6, "max_number": 100, "min_target": 100, "max_target": 999},
    }

    def _generate_records(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        return [_generate(SplitMix64(seed), *parameters) for seed in seeds]

    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        numbers, steps, target = record
        solution = tuple(part for step in steps for part in step)
        return Puzzle(self.name, seed, difficulty, len(numbers), numbers, (target,), solution)

    def rules(self, puzzle: Puzzle) -> str:
        return (
            f"This is countdown. Combine numbers by +, -, * and / until only {puzzle.clues[0]} is left. Each "
            "number must be used, and only once. Every result on the way must be a positive whole number."
        )

    def move_format(self, puzzle: Puzzle) -> str:
        return "Answer with one line that combines two numbers, such as `8 * 3`; their result replaces them."

    def answer_format(self, puzzle: Puzzle) -> str:
        return "Answer with one expression that uses every number once, such as `(8 * 3) + 5`."

    def draw_board(self, puzzle: Puzzle, state: Numbers) -> str:
        return f"Numbers: {', '.join(map(str, state))}\nTarget: {puzzle.clues[0]}"

    def parse_move(self, puzzle: Puzzle, state: Numbers, text: str) -> Step:
        found = match_move(_MOVE, text, "a move combines two numbers, such as `8 * 3`")
        symbol = {"x": "*", "×": "*", "÷": "/"}.get(found[2], found[2])
        one, operator, other = int(found[1]), OPERATORS.index(symbol), int(found[3])
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
            for one, other in itertools.permutations(state, 2)
            for operator in range(4)
            if _is_valid(one, operator, other)
        )
        return [f"{one} {OPERATORS[operator]} {other}" for one, operator, other in moves]

    def apply(self, puzzle: Puzzle, state: Numbers, move: Step) -> Numbers:
        return _combine(state, move)

    def is_solved(self, puzzle: Puzzle, state: Numbers) -> bool:
        return state == puzzle.clues

    def is_lost(self, puzzle: Puzzle, state: Numbers) -> bool:
        return len(state) == 1 and state != puzzle.clues

    def solve(self, puzzle: Puzzle, state: Numbers) -> list[str] | None:
        if state != puzzle.given:
            return self.solve_as_expert(puzzle, state)
        return [f"{one} {OPERATORS[operator]} {other}" for one, operator, other in _solution_steps(puzzle)]

    def solve_as_expert(self, puzzle: Puzzle, state: Numbers) -> list[str] | None:
        # Search in a fixed order instead of using the generator's solution, so that equal numbers always get
        # the same answer.
        steps = _search(state, puzzle.clues[0], set())
        return None if steps is None else [f"{one} {OPERATORS[op]} {other}" for one, op, other in steps]

    def compact_board(self, puzzle: Puzzle, state: Numbers) -> str:
        return f"{' '.join(map(str, sorted(state)))}={puzzle.clues[0]}"

    def compact_answer(self, answer: str) -> str:
        return answer.replace(" ", "")

    def parse_answer(self, puzzle: Puzzle, text: str) -> Numbers:
        value, used = _evaluate(text)
        if sorted(used) != sorted(puzzle.given):
            raise ValueError(f"every number must be used once; used are {', '.join(map(str, used))}")
        return (value,)

    def solution_text(self, puzzle: Puzzle) -> str:
        written = [(number, str(number)) for number in puzzle.given]
        for one, operator, other in _solution_steps(puzzle):
            texts = []
            for number in (one, other):
                index = next(index for index, (value, _) in enumerate(written) if value == number)
                texts.append(written.pop(index)[1])
            written.append((_result(one, operator, other), f"({texts[0]} {OPERATORS[operator]} {texts[1]})"))
        return written[0][1][1:-1]


def _solution_steps(puzzle: Puzzle) -> Iterator[Step]:
    """Iterate over the steps of the generator's solution."""
    parts = puzzle.solution
    return zip(parts[::3], parts[1::3], parts[2::3], strict=True)


def _result(one: int, operator: int, other: int) -> int:
    """Return the result of a step. Raise `ValueError` if it is not a positive integer below 10**9."""
    if operator == 0 and one + other < 10**9:
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


def _is_valid(one: int, operator: int, other: int) -> bool:
    """Return whether the result of a step is a positive integer below 10**9."""
    try:
        _result(one, operator, other)
    except ValueError:
        return False
    return True


def _combine(numbers: Numbers, step: Step) -> Numbers:
    """Return the numbers after a step: both numbers of the step are removed, and its result is appended."""
    left = list(numbers)
    left.remove(step[0])
    left.remove(step[2])
    return (*left, _result(*step))


def _generate(
    rng: SplitMix64, count: int, max_number: int, min_target: int, max_target: int
) -> tuple[Numbers, list[Step], int]:
    """Draw random numbers and steps that combine them. The target is the result of the last step.

    Returns:
        The numbers, the steps and the target.
    """
    while True:
        numbers = tuple(1 + rng.integers(max_number) for _ in range(count))
        left, steps = numbers, list[Step]()
        while len(left) > 1:
            first, second = rng.permutation(len(left))[:2]
            one, other = max(left[first], left[second]), min(left[first], left[second])
            choices = [0, 2] + [1] * (one > other) + [3] * (other > 1 and one % other == 0)
            step = (one, choices[rng.integers(len(choices))], other)
            steps.append(step)
            left = _combine(left, step)
            if left[-1] > 10 * max_target:
                break
        if len(left) == 1 and min_target <= left[0] <= max_target and left[0] not in numbers:
            return numbers, steps, left[0]


def _search(numbers: Numbers, target: int, dead_ends: set[Numbers]) -> list[Step] | None:
    """Return steps that lead to the target, or None if there are none.

    Args:
        numbers: Numbers to combine.
        target: Number that must be left at the end.
        dead_ends: Sorted tuples of numbers from which the target cannot be reached. The search adds further
            tuples to this set.
    """
    if len(numbers) == 1:
        return [] if numbers[0] == target else None
    key = tuple(sorted(numbers))
    if key in dead_ends:
        return None
    for first in range(len(key)):
        for second in range(first):
            for operator in range(4):
                step = (key[first], operator, key[second])
                try:
                    left = _combine(key, step)
                except ValueError:
                    continue
                rest = _search(left, target, dead_ends)
                if rest is not None:
                    return [step, *rest]
    dead_ends.add(key)
    return None


def _evaluate(text: str) -> tuple[int, list[int]]:
    """Evaluate an arithmetic expression, and return its value and the numbers that occur in it.

    Raises:
        ValueError: If the text is not a valid expression of numbers, + - * / and parentheses, or if an
            intermediate result is not allowed; see `_result`.
    """
    invalid = f"an expression has numbers, + - * / and brackets, got {quote(text)}"
    if not _EXPRESSION.fullmatch(text):
        raise ValueError(invalid)
    try:
        # Python does not accept leading zeros and line breaks.
        expression = ast.parse(re.sub(r"\b0+(?=\d)", "", " ".join(text.split())), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{quote(text)} is no expression: {error.msg}") from error
    used: list[int] = []

    def evaluate(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            used.append(node.value)
            return node.value
        if isinstance(node, ast.BinOp) and isinstance(node.op, _AST_OPERATORS):
            operator = _AST_OPERATORS.index(type(node.op))
            return _result(evaluate(node.left), operator, evaluate(node.right))
        raise ValueError(invalid)

    return evaluate(expression), used
