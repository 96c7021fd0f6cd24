"""This checkout beside another one, such as the commit before a change: the same works in turns; ratios.

git worktree add /tmp/before HEAD~1    # build its C++ kernels there, or copy src/phalanx/_native*.so into it
python benchmarks/against_commit.py /tmp/before

Each checkout is measured in processes of its own, by its own sources and its own benchmarks, with the `.venv`
of the checkout where it has one. A ratio below the target means that this checkout is slower; where the
machine has other work, look at the ratio by processor time.
"""

import argparse
import dataclasses
import pathlib
import statistics
import subprocess
from collections.abc import Sequence

from measuring import turns
from measuring.conditions import conditions
from measuring.options import peer_options, words
from measuring.peers import BENCHMARKS, Peer
from measuring.turns import Contender
from measuring.verdicts import Comparison, Measurement, Verdict

BEFORE, AFTER = "other", "this"
WORKS = {
    "arc": "ARC, native, 1,024 environments, 30x30, random boxes: steps",
    "proofs": "proofs, native, 256 environments, generated knowledge: steps",
    "plan": "a throughput plan of 1,000,000 lengths: samples",
    "pack": "packing the tokens of 100,000 samples: tokens",
    "ppo": "PPO, the default training with 256 environments: steps",
}
"""What is measured, and what its rates count; how is in `runners/commit_runner.py`."""
LEAST = 0.95
"""The least that this checkout's rate may be of the other's."""
PATIENCE = 600.0


@dataclasses.dataclass(frozen=True)
class Work:
    """A work by its name."""

    work: str

    def __str__(self) -> str:
        return WORKS[self.work]


class CommitComparison(Comparison[Measurement]):
    """This checkout over the other."""

    title = "a second (median)"

    def verdicts(self) -> list[Verdict]:
        """For each work the median of the rounds' ratios: a machine that slows down does so for both."""
        found = []
        for work in self.works:
            before, after = self.get(work, BEFORE), self.get(work, AFTER)
            if before is not None and after is not None:
                clock = _median_ratio(before.rates, after.rates)
                processors = _median_ratio(before.facts["cpu_rates"], after.facts["cpu_rates"])
                found.append(Verdict("this / other", str(work), clock, LEAST))
                found.append(Verdict("the same by processor time", str(work), processors, None))
        return found


def _median_ratio(before: Sequence[float], after: Sequence[float]) -> float:
    return statistics.median(new / old for old, new in zip(before, after, strict=True))


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = peer_options(__doc__, 1.0)
    parser.add_argument("checkout", type=pathlib.Path, help="the folder of the other checkout")
    parser.add_argument("--works", type=words, default=tuple(WORKS), help=f"some of {','.join(WORKS)}")
    parser.add_argument("--quick", action="store_true", help="tiny and short: a smoke test, not a figure")
    arguments = parser.parse_args(given)
    if unknown := [name for name in arguments.works if name not in WORKS]:
        parser.error(f"no work {unknown[0]!r}; there are {', '.join(WORKS)}")
    if not (arguments.checkout / "src" / "phalanx" / "__init__.py").is_file():
        parser.error(f"{arguments.checkout} is no checkout of Phalanx: it has no src/phalanx")
    return arguments


def commit_of(checkout: pathlib.Path) -> str:
    """What a checkout stands at, in words; a star for changes that are not committed."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=*"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def measure(
    work: str, checkouts: dict[str, pathlib.Path], arguments: argparse.Namespace
) -> list[Measurement]:
    """Both checkouts' repeats of a work, in turns."""
    contenders = []
    for name, checkout in checkouts.items():
        settings = {"work": work, "checkout": checkout, "seconds": arguments.seconds}
        if arguments.quick:
            settings["quick"] = True
        contenders.append(Contender(name, Peer(name, "commit_runner.py", checkout=checkout), settings))
    taken = turns.in_turns(contenders, arguments.venv_dir, arguments.repeats, PATIENCE)
    return [
        Measurement(
            Work(work),
            contender.name,
            turn.rates,
            {"cpu_rates": turn.cpu_rates, **turn.conditions, **conditions("jax")},
        )
        for contender, turn in zip(contenders, taken, strict=True)
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Measure, tell, and say by the exit code whether nothing is slower."""
    arguments = parse_arguments(given)
    checkouts = {BEFORE: arguments.checkout.resolve(), AFTER: BENCHMARKS.parent}
    measurements: list[Measurement] = []
    for work in arguments.works:
        for measurement in measure(work, checkouts, arguments):
            measurement.facts["commit"] = commit_of(checkouts[measurement.contender])
            measurements.append(measurement)
            turns.say(measurement, "against_commit")
    return turns.tell("against_commit", CommitComparison(measurements), arguments)


if __name__ == "__main__":
    turns.run("against_commit", main)
