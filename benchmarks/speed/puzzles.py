"""Puzzles per second: generating puzzles with prompt and solution, and verifying answers.

Kinds that reasoning-gym has, too, are generated with the same sizes in both libraries, in one process each.
The setting `comparison` names remaining differences. Generation times vary between puzzles, so each repeat
generates new ones, and enough of them that repeats usually differ by less than 30%.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.peers import REASONING_GYM
from benchmarks.suite import Suite, Workload
from phalanx.puzzles import PuzzleKind, PuzzleVectorEnvironment, puzzle_kind, puzzle_kinds
from phalanx.text.answers import extract_answer

suite = Suite("puzzles", unit="puzzles/s", packages=("numpy",))

_SMOKE = {"batch_size": 2}
_SMOKE_GENERATE = {"batch_size": 2, "num_puzzles": 2}
_BATCH_SIZE = 64
_NUM_PUZZLES = {"binary": 4096, "bridges": 16_384, "hitori": 1024}
"""Least number of puzzles per repeat for kinds that are slow or vary a lot. The others use 8,192."""


class Pair(NamedTuple):
    """A kind of puzzle that both libraries have, with settings for similar puzzles."""

    kind: str
    difficulty: str
    params: Mapping[str, int]
    """Parameters of the generator. If empty, those of the difficulty are used."""
    dataset: str
    dataset_settings: Mapping[str, Any]
    num_puzzles: int
    """Least number of puzzles that reasoning-gym generates per repeat."""
    comparison: str


PAIRS = (
    Pair(
        "sudoku",
        "hard",
        {},
        "sudoku",
        {"min_empty": 50, "max_empty": 50},
        160,
        "both: 9x9, 50 empty cells, unique solution",
    ),
    Pair(
        "futoshiki",
        "hard",
        {},
        "futoshiki",
        {"min_board_size": 7, "max_board_size": 7},
        96,
        "both: 7x7, unique solution; Phalanx: 16 inequalities and about 37 empty cells; "
        "reasoning-gym: 2 to 23 inequalities and about 32 empty cells",
    ),
    Pair(
        "sokoban",
        "custom",
        {"rows": 8, "columns": 8, "boxes": 3, "walls": 15, "min_pushes": 3, "max_pushes": 5, "boards": 8000},
        "sokoban",
        {"min_w": 8, "max_w": 8, "min_h": 8, "max_h": 8, "min_boxes": 3, "max_boxes": 3},
        2048,
        "both: 8x8, 3 boxes, solutions of about 20 moves",
    ),
    Pair(
        "countdown",
        "hard",
        {},
        "countdown",
        {"min_numbers": 6, "max_numbers": 6},
        192,
        "both: 6 numbers up to 100, target 100 to 999, all numbers must be used; Phalanx: all intermediate "
        "results are positive integers; reasoning-gym: only the final value is checked",
    ),
    Pair(
        "knights",
        "hard",
        {},
        "knights_knaves",
        {"n_people": 6},
        512,
        "both: 6 people, unique solution; the statement types and wording differ",
    ),
)


def _kind(name: str, params: Mapping[str, int]) -> PuzzleKind[Any, Any]:
    kind = puzzle_kind(name)
    if not params:
        return kind
    return type("CustomKind", (type(kind),), {"difficulties": {"custom": params}})()


def generate(
    kind: str, difficulty: str, params: Mapping[str, int], batch_size: int, num_puzzles: int
) -> Workload:
    """Generate puzzles with their prompts and solutions, in batches."""
    environment = PuzzleVectorEnvironment([_kind(kind, params)], difficulty, turns="single")
    starts = itertools.count(0, batch_size)

    def run() -> None:
        for first in itertools.islice(starts, num_puzzles // batch_size):
            prompts = environment.reset(range(first, first + batch_size))
            if not all(prompts) or not all(each.expert_actions() for each in environment.environments):
                raise AssertionError("a puzzle has no prompt or no solution")

    return Workload(run, num_puzzles)


def verify(kind: str, difficulty: str, params: Mapping[str, int], batch_size: int) -> Workload:
    """Parse correct answers and check the rules of the puzzle.

    For several kinds, reasoning-gym first compares an answer with its stored solution, which is faster.
    """
    chosen = _kind(kind, params)
    puzzles = chosen.generate_batch(range(batch_size), difficulty)
    answers = [chosen.solution_text(puzzle) for puzzle in puzzles]

    def run() -> None:
        for puzzle, answer in zip(puzzles, answers, strict=True):
            if not chosen.is_solved(puzzle, chosen.parse_answer(puzzle, extract_answer(answer))):
                raise AssertionError(f"the answer of {kind} was rejected")

    return Workload(run, batch_size)


def _add_generation(name: str, difficulty: str, params: Mapping[str, int]) -> None:
    suite.case(
        f"generate-{name.replace('_', '-')}",
        smoke=_SMOKE_GENERATE,
        kind=name,
        difficulty=difficulty,
        params=params,
        batch_size=_BATCH_SIZE,
        num_puzzles=_NUM_PUZZLES.get(name, 8192),
    )(generate)


def _add_reasoning_gym(work: str, pair: Pair, batch_size: int) -> None:
    suite.peer_case(
        f"reasoning-gym-{work}-{pair.kind}",
        REASONING_GYM,
        "reasoning_gym_puzzles",
        group=f"{work}-{pair.kind}",
        system="reasoning-gym 0.1.25",
        work=work,
        dataset=pair.dataset,
        dataset_settings=pair.dataset_settings,
        batch_size=batch_size,
        comparison=pair.comparison,
    )


for _pair in PAIRS:
    _add_generation(_pair.kind, _pair.difficulty, _pair.params)
    _add_reasoning_gym("generate", _pair, _pair.num_puzzles)
    suite.case(
        f"verify-{_pair.kind}",
        smoke=_SMOKE,
        kind=_pair.kind,
        difficulty=_pair.difficulty,
        params=_pair.params,
        batch_size=_BATCH_SIZE,
    )(verify)
    _add_reasoning_gym("verify", _pair, 16)
_COMPARED = {pair.kind for pair in PAIRS}
for _name in [kind.name for kind in puzzle_kinds() if kind.name not in _COMPARED]:
    _add_generation(_name, "hard", {})
