"""Phalanx beside JaxARC in training: one PPO and one network, two environments, 30x30 grids; interleaved.

First the environments alone under random actions, then whole updates with a network small enough for the
environment to show, and with one so large that it hardly does. JaxARC is installed from PyPI in a virtual
environment of its own. JSON lines go to standard output as they are measured, then tables.
"""

import argparse
import json
import pathlib
import tempfile
from importlib.metadata import version

import measuring
import training_report
from compare_arc import task_files
from measuring import Contender
from peers import Peer
from training_report import JAXARC, JAXARC_SPARED, PHALANX, TrainingComparison, TrainingMeasurement, Work

from phalanx.arc.benchmark import conditions

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


def contenders(work: Work, task: pathlib.Path, arguments: argparse.Namespace) -> list[Contender]:
    """Who does it."""
    common = {
        "task": task,
        "grid": "30x30",
        "format": "point",
        "batch": work.batch,
        "seconds": arguments.seconds,
    }
    if work.network is None:
        jaxarc = Peer("jaxarc-training", "jaxarc_runner.py", _JAXARC)
        phalanx = Peer("phalanx", "phalanx_runner.py", ())
        return [
            Contender(JAXARC, jaxarc, {**common, "steps": 8}),
            Contender(PHALANX, phalanx, {**common, "steps": 64, "engine": "native"}),
        ]
    settings = {
        **common,
        "steps": work.num_steps,
        "network": work.network,
        "epochs": arguments.epochs,
        "minibatches": arguments.minibatches,
    }
    jaxarc = Peer("jaxarc-training", "jaxarc_training_runner.py", _JAXARC)
    phalanx = Peer("phalanx", "phalanx_training_runner.py", ())
    chosen = [
        Contender(JAXARC, jaxarc, {**settings, "reset": "all"}),
        Contender(PHALANX, phalanx, settings),
    ]
    if work.network == "small":
        chosen.insert(1, Contender(JAXARC_SPARED, jaxarc, {**settings, "reset": "ended"}))
    return chosen


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = measuring.options(__doc__, 3.0, "about how long one repeat lasts")
    parser.add_argument("--batch", type=int, default=1024, help="environments")
    parser.add_argument("--large-batch", type=int, default=64, help="environments under the large network")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--only", choices=["rollout", "small", "large"], help="one of the works")
    parser.add_argument("--quick", action="store_true", help="few environments, short: a smoke test")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batch, arguments.large_batch, arguments.seconds = 32, 8, 0.3
        arguments.repeats = min(arguments.repeats, 2)
    return arguments


def measure(work: Work, task: pathlib.Path, arguments: argparse.Namespace) -> list[TrainingMeasurement]:
    """Every contender's repeats of a work."""
    chosen = contenders(work, task, arguments)
    turns = measuring.in_turns(chosen, arguments.venv_dir, arguments.repeats, PATIENCE)
    return [
        TrainingMeasurement(work, contender.name, turn.rates, {**conditions(), **turn.conditions})
        for contender, turn in zip(chosen, turns, strict=True)
    ]


def main() -> int:
    arguments = parse_arguments()
    measurements: list[TrainingMeasurement] = []
    with tempfile.TemporaryDirectory() as folder:
        task = task_files(pathlib.Path(folder))["30x30"]
        for work in works(arguments):
            if arguments.only not in (None, work.network or work.name):
                continue
            for measurement in measure(work, task, arguments):
                measurements.append(measurement)
                print(json.dumps(measurement.record()), flush=True)
    here = conditions()
    told = (
        f"{arguments.repeats} interleaved repeats of about {arguments.seconds:g} s, medians; "
        f"{here['nproc']} cores of {here['cpu']}, jax {here['jax']}."
    )
    return measuring.tell(
        "compare_training", TrainingComparison(measurements), training_report, arguments, told
    )


if __name__ == "__main__":
    measuring.run("compare_training", main)
