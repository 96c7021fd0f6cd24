"""Puzzles made in process: text steps a second, puzzles made a second, and reasoning-gym beside them.

Everything is per second of one processor (`time.process_time`), which other work on the machine disturbs
less than the clock. JSON lines as they are measured, then a table of figures and targets; exit code 1 if one
is missed. reasoning-gym is installed in a virtual environment of its own. What is compared with what, and
what is not alike, is told in `docs/puzzles.md`.
"""

import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from measuring import turns
from measuring.conditions import conditions
from measuring.options import peer_options, positive, words
from measuring.peers import Peer
from measuring.records import console
from measuring.verdicts import Verdict, exit_code, figures_table

from phalanx.native import native_module
from phalanx.puzzles import PuzzleVectorEnvironment, puzzle_kinds

PHALANX = Peer("phalanx", "phalanx_puzzles_runner.py")
REASONING_GYM = Peer("reasoning-gym", "reasoning_gym_runner.py", ("reasoning-gym==0.1.25",))
STEP_TARGET, RATIO_TARGET = 10_000.0, 100.0
PATIENCE = 300.0
PARTS = ("steps", "environments", "making", "comparison")
WORDED = {"arc-v2": ("fill_3", "fill_5"), "proofs-v1": ("0",)}
"""Registered environments with words, and moves that are always legal; cells are added as needed."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A kind that both have, ours at a difficulty or with parameters, theirs with settings."""

    kind: str
    difficulty: str
    dataset: str
    settings: str
    """Theirs, as JSON; `{}` for their defaults."""
    alike: str
    """What both make, and where they differ."""


WORKS = (
    Work(
        "sudoku", "hard", "sudoku", '{"min_empty": 50, "max_empty": 50}',
        "9x9, 50 blanks, one solution, checked by both",
    ),
    Work("sudoku", "9,3,3,40", "sudoku", "{}", "9x9, one solution, checked; 40 blanks, theirs 30 to 50"),
    Work(
        "futoshiki", "hard", "futoshiki", '{"min_board_size": 7, "max_board_size": 7}',
        "7x7, one solution, checked by both; 16 signs and about 37 blanks, theirs 2 to 23 and about 32",
    ),
    Work("futoshiki", "hard", "futoshiki", "{}", "one solution; 7x7, theirs 4x4 to 9x9"),
    Work(
        "sokoban", "hard", "sokoban",
        '{"min_w": 8, "max_w": 8, "min_h": 8, "max_h": 8, "min_boxes": 3, "max_boxes": 3}',
        "8x8, 3 boxes; shortest solutions of 8 to 16 pushes, about 49 moves, theirs about 18 moves",
    ),
    Work(
        "sokoban", "8,8,3,15,3,5,8000", "sokoban",
        '{"min_w": 8, "max_w": 8, "min_h": 8, "max_h": 8, "min_boxes": 3, "max_boxes": 3}',
        "8x8, 3 boxes; shortest solutions of 3 to 5 pushes, about 20 moves, theirs about 18",
    ),
    Work("sokoban", "hard", "sokoban", "{}", "8x8 with 3 boxes, theirs 6x6 to 10x10 with 4 to 10 boxes"),
    Work(
        "countdown", "hard", "countdown", '{"min_numbers": 6, "max_numbers": 6}',
        "6 numbers to 100, target 100 to 999; whole numbers all the way, theirs by sympy",
    ),
    Work("countdown", "5,100,100,999", "countdown", "{}", "target 100 to 999; 5 numbers, theirs 4 to 6"),
    Work(
        "knights", "hard", "knights_knaves", '{"n_people": 6}',
        "6 people, one solution, checked by both; theirs in more words",
    ),
)  # fmt: skip


def stepping(size: int, seconds: float, repeats: int) -> Iterator[dict[str, Any]]:
    """Send the solvers' answers through `PuzzleVectorEnvironment.step`."""
    for kind in puzzle_kinds():
        for difficulty in kind.difficulties:
            batch = PuzzleVectorEnvironment(kind, difficulty)
            batch.reset(range(size))
            answers = [environment.expert_actions() or [] for environment in batch.environments]
            rounds = [
                [each[min(n, len(each) - 1)] for each in answers] for n in range(max(map(len, answers)))
            ]
            rates, solved = [], 0
            for _ in range(repeats):
                taken, spent = 0, 0.0
                while spent < seconds:
                    batch.reset(range(size))
                    for number, answered in enumerate(rounds):
                        started = time.process_time()
                        step = batch.step(answered)
                        spent += time.process_time() - started
                        # Of an episode that is over nothing is verified, so it does not count.
                        taken += sum(number < len(each) for each in answers)
                    solved = sum(info.solved for info in step.infos)
                rates.append(taken / spent)
            assert solved == size, (kind.name, difficulty, solved)
            yield {
                "benchmark": "puzzle_steps",
                "kind": kind.name,
                "difficulty": difficulty,
                "batch": size,
                "steps_per_cpu_second_median": round(statistics.median(rates)),
                "steps_per_cpu_second_worst": round(min(rates)),
                "repeats": repeats,
            }


def worded(size: int, seconds: float, repeats: int) -> Iterator[dict[str, Any]]:
    """Legal moves through `TextVectorWrapper.step`; episodes that end begin anew, which is not timed."""
    import phalanx
    from phalanx.text import TextVectorWrapper

    for name, moves in WORDED.items():
        environment = phalanx.make(name)
        batch = TextVectorWrapper(environment)
        form = environment.config.action.selection_format if name == "arc-v2" else ""
        cells = {"": "", "point": " 0 0", "bbox": " 0 0 1 1", "mask": " 0,0"}[form]
        batch.reset(range(size))
        batch.reset_where(batch.step([moves[0] + cells] * size).dones, range(size))  # compiles
        rates, letters = [], 0
        for repeat in range(repeats):
            taken, spent = 0, 0.0
            while spent < seconds:
                answers = [moves[taken // size % len(moves)] + cells] * size
                started = time.process_time()
                step = batch.step(answers)
                spent += time.process_time() - started
                assert not any(info.error for info in step.infos)
                taken, letters = taken + size, max(map(len, step.texts))
                if step.dones.any():
                    batch.reset_where(step.dones, range(repeat, repeat + size))
            rates.append(taken / spent)
        yield {
            "benchmark": "environment_text_steps",
            "kind": name,
            "difficulty": f"texts up to {letters:,} letters",
            "batch": size,
            "steps_per_cpu_second_median": round(statistics.median(rates)),
            "steps_per_cpu_second_worst": round(min(rates)),
            "repeats": repeats,
        }


def making(seconds: float, repeats: int) -> Iterator[dict[str, Any]]:
    """`generate_batch`, puzzles as data."""
    for kind in puzzle_kinds():
        for difficulty in kind.difficulties:
            rates, first, count = [], 0, 8
            while len(rates) < repeats:
                started = time.process_time()
                kind.generate_batch(range(first, first + count), difficulty)
                spent = time.process_time() - started
                first += count
                if spent < seconds:
                    count = min(4 * count, 1 + int(1.2 * count * seconds / max(spent, 1e-4)))
                else:
                    rates.append(count / spent)
            yield {
                "benchmark": "puzzle_making",
                "kind": kind.name,
                "difficulty": difficulty,
                "puzzles_per_cpu_second_median": round(statistics.median(rates)),
                "puzzles_per_cpu_second_worst": round(min(rates)),
                "repeats": repeats,
            }


def beside(work: Work, arguments: Any) -> dict[str, Any]:
    """Both in turns: puzzles with their text and their answer."""
    ours = {"kind": work.kind, "difficulty": work.difficulty, "seconds": arguments.seconds}
    theirs = {"dataset": work.dataset, "settings": work.settings, "seconds": arguments.seconds}
    contenders = [
        turns.Contender("phalanx", PHALANX, ours),
        turns.Contender("reasoning-gym", REASONING_GYM, theirs),
    ]
    found = turns.in_turns(contenders, arguments.venv_dir, arguments.repeats, PATIENCE)
    # All puzzles over all time: some take a hundred times as long as others, and a median would hide them.
    rates = [statistics.harmonic_mean(one.cpu_rates) for one in found]
    return {
        "benchmark": "puzzle_comparison",
        **dataclasses.asdict(work),
        "phalanx_per_cpu_second": round(rates[0], 1),
        "reasoning_gym_per_cpu_second": round(rates[1], 1),
        "ratio": round(rates[0] / rates[1], 1),
        "repeats": arguments.repeats,
        **found[1].conditions,
    }


def main() -> int:
    parser = peer_options(__doc__, 1.0)
    parser.add_argument(
        "--batch", type=positive, default=1024, help="puzzles that are stepped together [1024]"
    )
    parser.add_argument("--parts", type=words, default=PARTS, help=f"of {', '.join(PARTS)} [all]")
    arguments = parser.parse_args()
    here = {"native": native_module() is not None, **conditions("numpy")}
    verdicts = []
    stepped = arguments.batch, arguments.seconds / 4, arguments.repeats
    for record in itertools.chain(
        stepping(*stepped) if "steps" in arguments.parts else (),
        worded(*stepped) if "environments" in arguments.parts else (),
    ):
        print(json.dumps(record | here), flush=True)
        work = f"{record['kind']}, {record['difficulty']}"
        rate = record["steps_per_cpu_second_median"]
        verdicts.append(Verdict("verified text steps per CPU second", work, rate, STEP_TARGET))
    for record in () if "making" not in arguments.parts else making(arguments.seconds / 4, arguments.repeats):
        print(json.dumps(record | here), flush=True)
        work = f"{record['kind']}, {record['difficulty']}"
        verdicts.append(
            Verdict("puzzles made per CPU second", work, record["puzzles_per_cpu_second_median"], None)
        )
    for work in WORKS if "comparison" in arguments.parts else ():
        record = beside(work, arguments)
        print(json.dumps(record | here), flush=True)
        verdicts.append(
            Verdict(
                "puzzles, times reasoning-gym's", f"{work.kind}: {work.alike}", record["ratio"], RATIO_TARGET
            )
        )
    if not arguments.json:
        console().print(figures_table(verdicts))
    return exit_code(verdicts)


if __name__ == "__main__":
    turns.run("puzzles", main)
