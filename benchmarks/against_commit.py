"""Compare the speed of this checkout with another one: `python -m benchmarks.against_commit CHECKOUT`.

Each checkout runs its own code and its own benchmarks, in turn, in a process per case. The other checkout
must have a compiled native extension and the same suites. The exit code is 1 if a case is slower than in
the other checkout.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.peers import REPOSITORY, Worker, WorkerError
from benchmarks.timing import DEFAULT_REPEATS, DEFAULT_SECONDS, Repeat, measure_in_turn

CASES = (
    "arc_env/native-30x30-1024",
    "proof_env",
    "batch_planning/plan-sorted",
    "batch_planning/pack",
    "ppo",
    "lm/generate-small-batch-64",
    "lm/train-small",
)
"""Cases to compare, as `SUITE/CASE`. A suite alone means its first case."""
MIN_RATIO = 0.95
"""Lowest ratio of the speeds that is not reported as slower, because of noise."""


def has_suite(checkout: pathlib.Path, case: str) -> bool:
    """Return whether a checkout has the suite of a case."""
    return (checkout / "benchmarks" / "speed" / f"{case.partition('/')[0]}.py").is_file()


def commit_of(checkout: pathlib.Path) -> str:
    """Return the commit of a checkout, with `*` if there are uncommitted changes."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def measure(
    case: str, checkouts: Sequence[pathlib.Path], repeats: int, seconds: float, smoke: bool = False
) -> list[list[Repeat]]:
    """Measure a case in all checkouts in turn, and return the repeats of each checkout."""
    suite, _, name = case.partition("/")
    settings = {"suite": suite, "case": name, "smoke": smoke, "seconds": seconds}
    command = [sys.executable, "-m", "benchmarks.workers.suite_case", json.dumps(settings)]
    with contextlib.ExitStack() as stack:
        workers = []
        for checkout in checkouts:
            worker = stack.enter_context(Worker(command, checkout, use_source=True))
            worker.wait_until_ready()
            workers.append(worker)
        return measure_in_turn(workers, repeats)


def compare(case: str, before: Sequence[Repeat], after: Sequence[Repeat]) -> dict[str, Any]:
    """Return the speeds of the other checkout and of this one, and their ratio.

    The ratio is the median over the rounds, so that a slower phase of the machine affects both sides.
    """

    def ratio(cpu: bool) -> float:
        pairs = zip(before, after, strict=True)
        return statistics.median(new.value("/s", cpu) / old.value("/s", cpu) for old, new in pairs)

    return {
        "case": case,
        "other_per_second": statistics.median(repeat.value("/s") for repeat in before),
        "this_per_second": statistics.median(repeat.value("/s") for repeat in after),
        "ratio": round(ratio(cpu=False), 3),
        "cpu_ratio": round(ratio(cpu=True), 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against_commit", description=__doc__)
    parser.add_argument("checkout", type=pathlib.Path, help="folder of the other checkout")
    parser.add_argument(
        "--only",
        action="append",
        metavar="SUITE[/CASE]",
        help=f"cases to compare [default: {', '.join(CASES)}]",
    )
    parser.add_argument(
        "--repeats", type=int, default=DEFAULT_REPEATS, help="repeats of each case [default: %(default)s]"
    )
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="seconds of a repeat [default: %(default)g]"
    )
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes, to check that everything runs")
    options = parser.parse_args(arguments)
    other = options.checkout.resolve()
    if not (other / "src" / "phalanx" / "__init__.py").is_file():
        parser.error(f"{options.checkout} is not a checkout of Phalanx: it has no src/phalanx")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if unknown := [case for case in options.only or () if not has_suite(REPOSITORY, case)]:
        parser.error(f"there is no suite {unknown[0].partition('/')[0]!r} in benchmarks/speed")
    slower = []
    for case in options.only or CASES:
        if missing := [path for path in (other, REPOSITORY) if not has_suite(path, case)]:
            print(f"{case}: skipped, because {missing[0]} has no such suite", file=sys.stderr)
            continue
        try:
            before, after = measure(
                case, (other, REPOSITORY), options.repeats, options.seconds, options.smoke
            )
        except WorkerError as error:
            print(f"{case}: {error}", file=sys.stderr)
            return 2
        record = compare(case, before, after)
        commits = {"other": commit_of(other), "this": commit_of(REPOSITORY)}
        print(json.dumps({**record, **commits}), flush=True)
        if record["ratio"] < MIN_RATIO:
            slower.append(case)
    if slower and not options.smoke:
        print(f"slower than {commit_of(other)}: {', '.join(slower)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
