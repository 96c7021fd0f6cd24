"""Phalanx beside JaxARC in training: one PPO and one network, two environments, 30x30 grids; interleaved.

First the environments alone under random actions, then whole updates with a network small enough for the
environment to show, and with one so large that it hardly does. JaxARC is installed from PyPI in a virtual
environment of its own. JSON lines go to standard output as they are measured, then tables.
"""

import argparse
import dataclasses
import pathlib
import tempfile
from importlib.metadata import version

from compare_arc import task_files
from measuring import turns
from measuring.conditions import conditions
from measuring.options import peer_options
from measuring.peers import Peer
from measuring.turns import Contender
from measuring.verdicts import Comparison, Measurement, Rows, Verdict

_NEEDS = ("jax", "equinox", "optax", "jaxtyping", "numpy", "pydantic")
"""What Phalanx's trainer imports, in the versions that it has here, so that both sides run the same code."""
_JAXARC = ("jaxarc==1.0.3", *(f"{name}=={version(name)}" for name in _NEEDS))
PATIENCE = 1800.0
"""Seconds after which a runner that does not answer is given up."""


PHALANX, JAXARC, JAXARC_SPARED = "phalanx", "jaxarc", "jaxarc, ended only"
"""The last is JaxARC with new episodes computed only where one has ended; its own wrappers compute all."""

STANDARD_BATCH = 1024
"""The number of environments that the targets speak of."""


@dataclasses.dataclass(frozen=True)
class Work:
    """One thing that every contender does on 30x30 grids."""

    name: str
    """`rollout` under random actions, or `ppo`."""
    batch: int
    num_steps: int
    network: str | None
    grid: str = "30x30"

    def __str__(self) -> str:
        kind = "random policy" if self.network is None else f"{self.network} network"
        return f"{self.name}, {kind}, {self.batch:,} environments"


class TrainingMeasurement(Measurement):
    """One contender's repeats of one work; rates count environment steps."""

    @property
    def environment_share(self) -> float | None:
        """Of an update's time, where updates were measured."""
        return self.facts.get("environment_share")

    @property
    def rate_without_environment(self) -> float | None:
        """Steps per second if the environment took no time."""
        share = self.environment_share
        return None if share is None else self.median / (1 - share)


class TrainingComparison(Comparison[TrainingMeasurement]):
    """Against JaxARC, and how far the network bounds the ratio."""

    title = "training on 30x30 grids"

    def verdicts(self) -> list[Verdict]:
        verdicts = []
        for work in self.works:
            ours = self.get(work, PHALANX)
            for peer in (JAXARC, JAXARC_SPARED):
                theirs = self.get(work, peer)
                if ours is None or theirs is None:
                    continue
                target = _target(work) if peer == JAXARC else None
                verdicts.append(Verdict(f"phalanx / {peer}", str(work), ours.median / theirs.median, target))
                if ours.rate_without_environment is not None:
                    bound = ours.rate_without_environment / theirs.median
                    verdicts.append(
                        Verdict(f"the same with a free environment / {peer}", str(work), bound, None)
                    )
        return verdicts

    def table(self) -> tuple[list[str], Rows]:
        """Rates, and where the time goes."""
        header = ["work, contender", "steps/s (median)", "environment", "policy", "update"]
        shares = ("environment_share", "policy_share", "update_share")
        rows = [
            [
                f"{m.work}: {m.contender}",
                self.cell(m),
                *(f"{m.facts[name]:.1%}" if name in m.facts else "" for name in shares),
            ]
            for m in self.measurements
        ]
        return header, rows


def _target(work: Work) -> float | None:
    """The least that the ratio to JaxARC must reach."""
    if work.batch != STANDARD_BATCH:
        return None
    return {None: 100.0, "small": 3.0}.get(work.network)


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
        phalanx = Peer("phalanx", "phalanx_runner.py")
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
    phalanx = Peer("phalanx", "phalanx_training_runner.py")
    chosen = [
        Contender(JAXARC, jaxarc, {**settings, "reset": "all"}),
        Contender(PHALANX, phalanx, settings),
    ]
    if work.network == "small":
        chosen.insert(1, Contender(JAXARC_SPARED, jaxarc, {**settings, "reset": "ended"}))
    return chosen


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = peer_options(__doc__, 3.0)
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
    taken = turns.in_turns(chosen, arguments.venv_dir, arguments.repeats, PATIENCE)
    return [
        TrainingMeasurement(work, contender.name, turn.rates, {**conditions("jax"), **turn.conditions})
        for contender, turn in zip(chosen, taken, strict=True)
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
                turns.say(measurement, "compare_training")
    return turns.tell("compare_training", TrainingComparison(measurements), arguments)


if __name__ == "__main__":
    turns.run("compare_training", main)
