"""Phalanx beside JaxARC and ARCLE: the same task, random operations, auto-reset, observations; interleaved.

The peers are installed from PyPI, each in a virtual environment of its own. JSON lines go to standard output
as they are measured, then a table of rates, ratios and targets. The method is told in `README.md`, beside.
"""

import argparse
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from measuring import turns
from measuring.conditions import conditions
from measuring.options import peer_options, sizes, words
from measuring.peers import Peer
from measuring.turns import Contender
from measuring.verdicts import Comparison, Measurement, Verdict

from phalanx.arc import load_tasks

TASK_30X30 = "264363fd"
"""An ARC-AGI-1 training task whose grids are all 30x30."""

TASK_5X5 = {
    "train": [
        {
            "input": [[1, 1, 0, 0, 2], [1, 0, 0, 0, 2], [0, 0, 1, 0, 0], [3, 0, 0, 1, 0], [3, 3, 0, 0, 1]],
            "output": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
        },
        {
            "input": [[4, 0, 4, 0, 4], [0, 6, 0, 6, 0], [4, 0, 4, 0, 4], [0, 0, 0, 0, 0], [4, 6, 0, 6, 4]],
            "output": [[4, 4, 4, 4, 4], [4, 4, 4, 4, 4], [4, 4, 4, 4, 4], [4, 4, 4, 4, 4], [4, 4, 4, 4, 4]],
        },
        {
            "input": [[0, 8, 8, 8, 0], [0, 8, 0, 8, 0], [0, 8, 8, 8, 0], [5, 0, 0, 0, 5], [5, 0, 9, 0, 5]],
            "output": [[8, 8, 8, 8, 8], [8, 8, 8, 8, 8], [8, 8, 8, 8, 8], [8, 8, 8, 8, 8], [8, 8, 8, 8, 8]],
        },
    ],
    "test": [
        {
            "input": [[7, 7, 0, 2, 2], [7, 0, 0, 0, 2], [0, 0, 7, 0, 0], [7, 0, 0, 0, 0], [7, 7, 0, 0, 2]],
            "output": [[7, 7, 7, 7, 7], [7, 7, 7, 7, 7], [7, 7, 7, 7, 7], [7, 7, 7, 7, 7], [7, 7, 7, 7, 7]],
        }
    ],
}
"""The most common colour fills the grid: the kind of task that MiniARC has."""

PEERS = {
    "jaxarc": Peer("jaxarc", "jaxarc_runner.py", ("jaxarc==1.0.3", f"jax=={version('jax')}")),
    # ARCLE does not run on Gymnasium 1.0 and later.
    "arcle": Peer("arcle", "arcle_runner.py", ("arcle==0.2.6", "gymnasium<1.0", "numpy<2")),
    "phalanx": Peer("phalanx", "phalanx_runner.py", ()),
}
PATIENCE = 600.0
"""Seconds after which a runner that does not answer is given up."""


NATIVE, XLA = "phalanx native", "phalanx xla"
JAXARC, JAXARC_ALONE, ARCLE = "jaxarc", "jaxarc without vmap", "arcle"


@dataclasses.dataclass(frozen=True)
class Workload:
    """One line of the comparison: every contender steps this."""

    grid: str
    action_format: str
    batch: int

    def __str__(self) -> str:
        return f"{self.grid}, {self.action_format}, {self.batch:,}"


class ArcComparison(Comparison[Measurement]):
    """Against JaxARC and ARCLE, and between batch sizes."""

    heading = "grid, format, batch"

    def verdicts(self) -> list[Verdict]:
        verdicts = []
        for workload in self.works:
            for ours, theirs, target in _targets(workload):
                ratio = self.ratio(workload, ours, theirs)
                if ratio is not None:
                    verdicts.append(Verdict(f"{ours} / {theirs}", str(workload), ratio, target))
        verdicts += self._first_call() + self._growth()
        return verdicts

    def _first_call(self) -> list[Verdict]:
        return [
            Verdict(
                f"first batch_step, {NATIVE} (s)",
                str(m.work),
                m.facts["first_batch_step_seconds"],
                3.0,
                at_most=True,
            )
            for m in self.measurements
            if m.contender == NATIVE and m.work.batch == 1024 and m.work.grid == "30x30"
        ]

    def _growth(self) -> list[Verdict]:
        verdicts = []
        for workload in self.works:
            large = self.get(workload, NATIVE)
            base = self.get(dataclasses.replace(workload, batch=1024), NATIVE)
            if workload.batch == 16_384 and large is not None and base is not None:
                work = f"{workload.grid}, {workload.action_format}"
                growth = large.median / base.median
                verdicts.append(Verdict(f"{NATIVE}, 16,384 / 1,024", work, growth, 0.8))
        return verdicts


def _targets(workload: Workload) -> list[tuple[str, str, float | None]]:
    """Ratios to show for a workload, with the least that each must reach."""
    large = workload.grid == "30x30"
    native = (
        {1: 50.0, 1024: 100.0}.get(workload.batch) if large else {1: 10.0, 1024: 10.0}.get(workload.batch)
    )
    xla = 8.0 if large and workload.batch == 1024 else None
    return [
        (NATIVE, JAXARC, native),
        (NATIVE, JAXARC_ALONE, None),
        (XLA, JAXARC, xla),
        (NATIVE, ARCLE, 1.0),
    ]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = peer_options(__doc__, 1.0)
    parser.add_argument("--grids", type=words, default=("30x30", "5x5"))
    parser.add_argument("--formats", type=words, default=("bbox", "point", "mask"))
    parser.add_argument("--batches", type=sizes, default=(1, 64, 1024))
    parser.add_argument(
        "--peers", type=words, default=("jaxarc", "arcle"), help="jaxarc,arcle or one of them"
    )
    parser.add_argument("--engines", type=words, default=("native", "xla"), help="native,xla or one of them")
    parser.add_argument(
        "--jaxarc-reset",
        type=words,
        default=("auto",),
        help="auto (documented wrappers), inline (its published benchmark), cached (the same episode)",
    )
    parser.add_argument(
        "--growth", type=int, default=16_384, help="largest batch, Phalanx only; 0 leaves it out"
    )
    parser.add_argument(
        "--quick", action="store_true", help="box actions and short repeats only: a smoke test"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.formats, arguments.repeats, arguments.seconds = ("bbox",), 3, 0.3
    return arguments


def task_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The task of each grid size as a JSON file that every runner can read."""
    large = load_tasks("arc-agi-1", ids=[TASK_30X30])[0].to_dict()
    files = {}
    for grid, content in (("30x30", large), ("5x5", TASK_5X5)):
        files[grid] = folder / f"{grid}.json"
        files[grid].write_text(json.dumps(content))
    return files


def contenders(
    workload: Workload, arguments: argparse.Namespace
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Who steps this workload: name, peer, and the options of its runner."""
    batch = workload.batch
    if batch <= max(arguments.batches):
        if "jaxarc" in arguments.peers:
            for reset in arguments.jaxarc_reset:
                name = JAXARC if reset == "auto" else f"{JAXARC} ({reset})"
                yield name, "jaxarc", {"steps": max(8, min(1024, 4096 // batch)), "reset": reset}
            if batch == 1:
                yield JAXARC_ALONE, "jaxarc", {"steps": 4096, "alone": True}
        if "arcle" in arguments.peers:
            yield ARCLE, "arcle", {"steps": max(1, 1024 // batch)}
        if "xla" in arguments.engines:
            yield XLA, "phalanx", {"engine": "xla", "steps": max(16, min(4096, 16_384 // batch))}
    if "native" in arguments.engines:
        yield NATIVE, "phalanx", {"engine": "native", "steps": max(16, min(4096, 65_536 // batch))}


def measure(
    group: list[Workload], tasks: dict[str, pathlib.Path], arguments: argparse.Namespace
) -> list[Measurement]:
    """Every contender's repeats of these workloads, all in turns."""
    entries: list[tuple[Workload, Contender]] = []
    for workload in group:
        common = {
            "task": tasks[workload.grid],
            "grid": workload.grid,
            "format": workload.action_format,
            "batch": workload.batch,
            "seconds": arguments.seconds,
        }
        entries += [
            (workload, Contender(name, PEERS[peer], {**common, **options}))
            for name, peer, options in contenders(workload, arguments)
        ]
    chosen = [contender for _, contender in entries]
    taken = turns.in_turns(chosen, arguments.venv_dir, arguments.repeats, PATIENCE)
    return [
        Measurement(workload, contender.name, turn.rates, {**conditions("jax"), **turn.conditions})
        for (workload, contender), turn in zip(entries, taken, strict=True)
    ]


def main() -> int:
    arguments = parse_arguments()
    groups = [
        [Workload(grid, action_format, batch)]
        for grid in arguments.grids
        for action_format in arguments.formats
        for batch in arguments.batches
    ]
    if arguments.growth:
        # Together with its base, so that the two are measured in turns as well.
        for group in groups:
            if group[0].batch == 1024 and group[0].grid == "30x30":
                group.append(Workload("30x30", group[0].action_format, arguments.growth))
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        tasks = task_files(pathlib.Path(folder))
        for group in groups:
            for measurement in measure(group, tasks, arguments):
                measurements.append(measurement)
                turns.say(measurement, "compare_arc")
    return turns.tell("compare_arc", ArcComparison(measurements), arguments)


if __name__ == "__main__":
    turns.run("compare_arc", main)
