"""Phalanx beside JaxARC in training: one PPO and one network, two environments, 30x30 grids; interleaved.

First the environments alone under random actions, then whole updates with a network small enough for the
environment to show, and with one so large that it hardly does. JaxARC is installed from PyPI in a virtual
environment of its own. JSON lines go to standard output as they are measured, then tables.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
from importlib.metadata import version
from typing import Any

from compare_arc import task_files
from peers import Peer, Runner, RunnerError
from rich.console import Console
from training_report import (
    JAXARC,
    JAXARC_SPARED,
    PHALANX,
    Comparison,
    Measurement,
    Work,
    markdown,
    print_tables,
)

from phalanx.arc.benchmark import conditions
from phalanx.core.files import atomic_write

_NEEDS = ("jax", "equinox", "optax", "jaxtyping", "numpy", "pydantic")
"""What Phalanx's trainer imports, in the versions that it has here, so that both sides run the same code."""
_JAXARC = ("jaxarc==1.0.3", *(f"{name}=={version(name)}" for name in _NEEDS))
PATIENCE = 1800.0
"""Seconds after which a runner that does not answer is given up."""


def works(arguments: argparse.Namespace) -> list[Work]:
    """What is measured."""
    return [
        Work("rollout", arguments.batch, 16, None),
        Work("ppo", arguments.batch, 16, "small"),
        # A few environments: an update of a thousand would take minutes on two cores.
        Work("ppo", min(arguments.batch, arguments.large_batch), 16, "large"),
    ]


def contenders(work: Work, arguments: argparse.Namespace) -> list[tuple[str, Peer, dict[str, Any]]]:
    """Who does it: name, peer, and the options of its runner."""
    if work.network is None:
        return [
            (JAXARC, Peer("jaxarc-training", "jaxarc_runner.py", _JAXARC), {"steps": 8}),
            (PHALANX, Peer("phalanx", "phalanx_runner.py", ()), {"steps": 64, "engine": "native"}),
        ]
    options = {
        "steps": work.num_steps,
        "network": work.network,
        "epochs": arguments.epochs,
        "minibatches": arguments.minibatches,
    }
    jaxarc = Peer("jaxarc-training", "jaxarc_training_runner.py", _JAXARC)
    phalanx = Peer("phalanx", "phalanx_training_runner.py", ())
    chosen = [(JAXARC, jaxarc, {**options, "reset": "all"}), (PHALANX, phalanx, options)]
    if work.network == "small":
        chosen.insert(1, (JAXARC_SPARED, jaxarc, {**options, "reset": "ended"}))
    return chosen


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    parser.add_argument("--venv-dir", type=pathlib.Path, default=cache / "phalanx" / "peers")
    parser.add_argument("--batch", type=int, default=1024, help="environments")
    parser.add_argument("--large-batch", type=int, default=64, help="environments under the large network")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one repeat lasts")
    parser.add_argument("--only", choices=["rollout", "small", "large"], help="one of the works")
    parser.add_argument("--quick", action="store_true", help="few environments, short: a smoke test")
    parser.add_argument("--json", action="store_true", help="JSON lines only, no tables")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables to this file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batch, arguments.large_batch, arguments.seconds = 32, 8, 0.3
        arguments.repeats = min(arguments.repeats, 2)
    return arguments


def measure(work: Work, task: pathlib.Path, arguments: argparse.Namespace) -> list[Measurement]:
    """Prepare every contender one after the other, then measure them in turns."""
    with contextlib.ExitStack() as stack:
        runners: list[tuple[str, Runner]] = []
        for name, peer, options in contenders(work, arguments):
            settings = {
                "task": task,
                "grid": "30x30",
                "format": "point",
                "batch": work.batch,
                "seconds": arguments.seconds,
                **options,
            }
            python = peer.python(arguments.venv_dir)
            runner = stack.enter_context(Runner(python, peer.runner, settings, PATIENCE))
            runner.wait_until_ready()
            runners.append((name, runner))
        rates: list[list[float]] = [[] for _ in runners]
        for _ in range(arguments.repeats):
            for (_, runner), measured in zip(runners, rates, strict=True):
                measured.append(runner.measure())
        return [
            Measurement(work, name, tuple(measured), {**conditions(), **runner.conditions})
            for (name, runner), measured in zip(runners, rates, strict=True)
        ]


def main() -> int:
    arguments = parse_arguments()
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        task = task_files(pathlib.Path(folder))["30x30"]
        for work in works(arguments):
            if arguments.only not in (None, work.network or work.name):
                continue
            for measurement in measure(work, task, arguments):
                measurements.append(measurement)
                print(json.dumps(measurement.record()), flush=True)
    comparison = Comparison(measurements)
    verdicts = comparison.verdicts()
    for verdict in verdicts:
        print(json.dumps(verdict.record("compare_training")), flush=True)
    if not arguments.json:
        print_tables(comparison, verdicts, Console(width=None if sys.stdout.isatty() else 140))
    if arguments.markdown is not None:
        here = conditions()
        told = (
            f"`python benchmarks/compare_training.py`: {arguments.repeats} interleaved repeats of about "
            f"{arguments.seconds:g} s, medians; {here['nproc']} cores of {here['cpu']}, jax {here['jax']}."
        )
        with atomic_write(arguments.markdown, "w") as file:
            file.write(markdown(comparison, verdicts, told))
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RunnerError as error:
        sys.exit(f"compare_training: {error}")
