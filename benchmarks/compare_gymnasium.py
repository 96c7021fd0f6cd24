"""`PhalanxVectorEnv` beside Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv`: steps a second, interleaved.

All run the same environment (ARC on generated tasks, or proofs) with random legal actions, observations as
NumPy arrays. JSON lines as they are measured, then a table of rates and ratios.
"""

import argparse
import functools
import importlib.metadata
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from figures import Verdict, figures_table
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from rich.console import Console
from rich.table import Table

import phalanx.adapters.gymnasium
from phalanx.core.machine import machine

gym.register_envs(phalanx.adapters.gymnasium)

NATIVE, SYNC, ASYNC = "PhalanxVectorEnv", "SyncVectorEnv", "AsyncVectorEnv"
IDS = {"arc": "phalanx/Arc-v0", "proofs": "phalanx/Proof-v0"}
WARM_UP = 30
"""Steps before measuring; by then every function has been compiled."""
TARGET = 10.0
"""How many times faster the largest native batch must be than the fastest of Gymnasium's."""


class Contender:
    """A kind of vector environment, started and warm."""

    def __init__(self, kind: str, envs: VectorEnv, started: float) -> None:
        self.kind, self.envs, self.environments = kind, envs, envs.num_envs
        self.rates: list[float] = []
        self._random = np.random.default_rng(0)
        self._seen, _ = envs.reset(seed=0)
        self._step(WARM_UP)
        self.start_seconds = time.perf_counter() - started

    def measure(self, seconds: float) -> None:
        """One repeat of about this length."""
        begin = time.perf_counter()
        steps = 0
        while (passed := time.perf_counter() - begin) < seconds:
            self._step(5)
            steps += 5
        self.rates.append(steps * self.environments / passed)

    def _step(self, count: int) -> None:
        for _ in range(count):
            self._seen, *_ = self.envs.step(self._legal_actions())

    def _legal_actions(self) -> np.ndarray:
        mask = self._seen["action_mask"]
        legal = (self._random.random(mask.shape, np.float32) * mask).argmax(-1)
        sizes = getattr(self.envs.single_action_space, "nvec", None)
        if sizes is None:
            return legal
        cells = self._random.integers(sizes[1:], size=(self.environments, len(sizes) - 1))
        return np.concatenate([legal[:, None], cells], axis=1)

    def record(self, conditions: dict[str, Any]) -> dict[str, Any]:
        """The measurement as one JSON object."""
        return {
            "benchmark": "compare_gymnasium",
            "contender": self.kind,
            "environments": self.environments,
            "steps_per_second_median": round(statistics.median(self.rates), 1),
            "steps_per_second_worst": round(min(self.rates), 1),
            "start_seconds": round(self.start_seconds, 2),
            "repeats": len(self.rates),
            **conditions,
        }


def make_one(name: str) -> gym.Env:
    """A single environment, without Gymnasium's checks of every step; workers make theirs by this too."""
    return gym.make(IDS[name], disable_env_checker=True)


def make(kind: str, name: str, count: int) -> VectorEnv:
    """A vector environment of one kind."""
    if kind == NATIVE:
        return gym.make_vec(IDS[name], num_envs=count)
    makers = [functools.partial(make_one, name)] * count
    # JAX's threads do not survive a fork.
    return SyncVectorEnv(makers) if kind == SYNC else AsyncVectorEnv(makers, context="spawn")


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", choices=sorted(IDS), default="arc")
    parser.add_argument("--batch-sizes", type=numbers, default=[64, 1024])
    parser.add_argument("--sync", type=int, default=64, help="environments of the SyncVectorEnv")
    parser.add_argument(
        "--workers", type=int, default=4, help="processes of the AsyncVectorEnv; 0 leaves it out"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="about the length of one repeat")
    parser.add_argument("--json", action="store_true", help="JSON lines only, no tables")
    arguments = parser.parse_args(given)
    if not arguments.batch_sizes or arguments.sync < 1:
        parser.error("--batch-sizes and --sync need a number each")
    return arguments


def compare(arguments: argparse.Namespace) -> Iterator[Contender]:
    """Every contender, measured in turns."""
    wanted = [(NATIVE, size) for size in arguments.batch_sizes] + [(SYNC, arguments.sync)]
    wanted += [(ASYNC, arguments.workers)] if arguments.workers else []
    contenders: list[Contender] = []
    try:
        for kind, count in wanted:
            begin = time.perf_counter()
            contenders.append(Contender(kind, make(kind, arguments.environment, count), begin))
        for _, contender in itertools.product(range(arguments.repeats), contenders):
            contender.measure(arguments.seconds)
    finally:
        for contender in contenders:
            contender.envs.close()
    yield from contenders


def verdicts(measured: Sequence[Contender]) -> list[Verdict]:
    """How many times faster a native batch is; the largest against the fastest of the others has a target."""
    native = {one.environments: statistics.median(one.rates) for one in measured if one.kind == NATIVE}
    others = {
        f"{one.kind} of {one.environments}": statistics.median(one.rates)
        for one in measured
        if one.kind != NATIVE
    }
    shown = [
        Verdict("ratio", f"{size} at once / {name}", native[size] / others[name], None)
        for size, name in itertools.product(native, others)
    ]
    best = native[max(native)] / max(others.values())
    return [*shown, Verdict("ratio", f"{max(native)} at once / the fastest of Gymnasium's", best, TARGET)]


def table(measured: Sequence[Contender]) -> Table:
    """Rates for the terminal."""
    made = Table("contender", title="environment steps a second")
    for name in ("environments", "median", "worst", "start, s"):
        made.add_column(name, justify="right")
    for one in measured:
        figures = statistics.median(one.rates), min(one.rates), one.start_seconds
        made.add_row(one.kind, str(one.environments), *(f"{figure:,.1f}" for figure in figures))
    return made


def main() -> int:
    arguments = parse_arguments()
    versions = {name: importlib.metadata.version(name) for name in ("gymnasium", "jax", "numpy")}
    measured = []
    for one in compare(arguments):
        measured.append(one)
        record = one.record({"environment": arguments.environment, **versions, **machine()})
        print(json.dumps(record), flush=True)
    found = verdicts(measured)
    for verdict in found:
        print(json.dumps(verdict.record("compare_gymnasium")), flush=True)
    if not arguments.json:
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(table(measured), figures_table(found, "compared"))
    return 1 if any(verdict.passed is False for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
