"""Phalanx beside JaxARC and ARCLE: the same task, random operations, auto-reset, observations; interleaved.

The peers are installed from PyPI, each in a virtual environment of its own. JSON lines go to standard output
as they are measured, then a table of rates, ratios and targets. The method is told in `README.md`, beside.
"""

import argparse
import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import arc_report
import jax
import measuring
from arc_report import ARCLE, JAXARC, JAXARC_ALONE, NATIVE, XLA, ArcComparison, ArcMeasurement, Workload
from measuring import Contender
from peers import Peer

from phalanx.arc.benchmark import conditions
from phalanx.arc.readers import load_tasks

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
    "jaxarc": Peer("jaxarc", "jaxarc_runner.py", ("jaxarc==1.0.3", f"jax=={jax.__version__}")),
    # ARCLE does not run on Gymnasium 1.0 and later.
    "arcle": Peer("arcle", "arcle_runner.py", ("arcle==0.2.6", "gymnasium<1.0", "numpy<2")),
    "phalanx": Peer("phalanx", "phalanx_runner.py", ()),
}
PATIENCE = 600.0
"""Seconds after which a runner that does not answer is given up."""


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = measuring.options(__doc__, 1.0, "about how long one repeat lasts")
    words = {"type": lambda text: tuple(text.split(","))}
    numbers = {"type": lambda text: tuple(int(part) for part in text.split(","))}
    parser.add_argument("--grids", default=("30x30", "5x5"), **words)
    parser.add_argument("--formats", default=("bbox", "point", "mask"), **words)
    parser.add_argument("--batches", default=(1, 64, 1024), **numbers)
    parser.add_argument("--peers", default=("jaxarc", "arcle"), help="jaxarc,arcle or one of them", **words)
    parser.add_argument("--engines", default=("native", "xla"), help="native,xla or one of them", **words)
    parser.add_argument(
        "--jaxarc-reset",
        default=("auto",),
        help="auto (documented wrappers), inline (its published benchmark), cached (the same episode)",
        **words,
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
) -> list[ArcMeasurement]:
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
    turns = measuring.in_turns(chosen, arguments.venv_dir, arguments.repeats, PATIENCE)
    return [
        ArcMeasurement(workload, contender.name, turn.rates, {**conditions(), **turn.conditions})
        for (workload, contender), turn in zip(entries, turns, strict=True)
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
    measurements: list[ArcMeasurement] = []
    with tempfile.TemporaryDirectory() as folder:
        tasks = task_files(pathlib.Path(folder))
        for group in groups:
            for measurement in measure(group, tasks, arguments):
                measurements.append(measurement)
                print(json.dumps(measurement.record()), flush=True)
    here = conditions()
    told = (
        f"{arguments.repeats} interleaved repeats of about {arguments.seconds:g} s, medians; "
        f"{here['nproc']} cores of {here['cpu']}, jax {here['jax']}."
    )
    return measuring.tell("compare_arc", ArcComparison(measurements), arc_report, arguments, told)


if __name__ == "__main__":
    measuring.run("compare_arc", main)
