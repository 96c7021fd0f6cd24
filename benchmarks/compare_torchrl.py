"""`BatchedVecEnv` beside TorchRL's `ParallelEnv` of single environments: proofs, steps a second, interleaved.

Both run the same `ProofEnv` and are stepped by TorchRL's own loop (`step_and_maybe_reset`) with random legal
actions, copies into tensordicts included. JSON lines as they are measured, then a table of rates and ratios.
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
from pathlib import Path
from typing import Any

import torch
from figures import Verdict, figures_table
from rich.console import Console
from rich.table import Table
from tensordict import TensorDictBase
from torchrl.envs import EnvBase, ParallelEnv

from phalanx.adapters.torchrl import BatchedVecEnv, num_environments
from phalanx.core.machine import machine
from phalanx.proofs.data import GENERATED, DataHandler
from phalanx.proofs.vocabulary import IndexManager

BATCHED, PARALLEL = "BatchedVecEnv", "ParallelEnv"
WARM_UP = 30
"""Steps before measuring; by then every function has been compiled, those for partial resets too."""
TARGET = 10.0
"""How many times faster the largest batch must be than the fastest number of workers."""


class Contender:
    """A kind of environment, started and warm."""

    def __init__(self, kind: str, env: EnvBase, started: float) -> None:
        self.kind, self.env, self.environments = kind, env, num_environments(env)
        self.rates: list[float] = []
        env.set_seed(0)
        self._data = env.reset()
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
            _, self._data = self.env.step_and_maybe_reset(_with_legal_action(self._data))

    def record(self, conditions: dict[str, Any]) -> dict[str, Any]:
        """The measurement as one JSON object."""
        return {
            "benchmark": "compare_torchrl",
            "contender": self.kind,
            "environments": self.environments,
            "steps_per_second_median": round(statistics.median(self.rates), 1),
            "steps_per_second_worst": round(min(self.rates), 1),
            "start_seconds": round(self.start_seconds, 2),
            "repeats": len(self.rates),
            **conditions,
        }


def _with_legal_action(data: TensorDictBase) -> TensorDictBase:
    mask = data.get("action_mask")
    drawn = torch.multinomial(mask.reshape(-1, mask.shape[-1]).float(), 1)
    return data.set("action", drawn.reshape(mask.shape[:-1]))


def make_environment(data: str, padding_states: int, batch_size: int) -> BatchedVecEnv:
    """Training on the data's training queries; workers make theirs by this too."""
    torch.set_num_threads(1)
    data_handler = DataHandler() if data == GENERATED else DataHandler(path=data, on_leak="drop")
    return BatchedVecEnv(
        index_manager=IndexManager(data_handler),
        data_handler=data_handler,
        queries=data_handler.train_queries,
        batch_size=batch_size,
        padding_states=padding_states,
    )


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=GENERATED, help="a folder of a knowledge base, or 'generated'")
    parser.add_argument("--padding-states", type=int, default=130)
    parser.add_argument("--batch-sizes", type=numbers, default=[64, 256])
    parser.add_argument("--workers", type=numbers, default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="about the length of one repeat")
    parser.add_argument("--json", action="store_true", help="JSON lines only, no tables")
    arguments = parser.parse_args(given)
    if arguments.data != GENERATED and not Path(arguments.data).is_dir():
        parser.error(f"--data {arguments.data} is not a folder")
    if not arguments.batch_sizes or not arguments.workers:
        parser.error("--batch-sizes and --workers need a number each")
    return arguments


def compare(arguments: argparse.Namespace) -> Iterator[Contender]:
    """Every contender, measured in turns; workers of one number at a time, so that memory suffices."""
    make = functools.partial(make_environment, arguments.data, arguments.padding_states)
    batched = []
    for size in arguments.batch_sizes:
        begin = time.perf_counter()
        batched.append(Contender(BATCHED, make(size), begin))
    for workers in arguments.workers:
        begin = time.perf_counter()
        # JAX's threads do not survive a fork.
        env = ParallelEnv(workers, functools.partial(make, 1), mp_start_method="spawn")
        parallel = Contender(PARALLEL, env, begin)
        try:
            for _, contender in itertools.product(range(arguments.repeats), [*batched, parallel]):
                contender.measure(arguments.seconds)
        finally:
            env.close()
        yield parallel
    yield from batched


def verdicts(measured: Sequence[Contender]) -> list[Verdict]:
    """How many times faster a batch is than workers; the largest batch against the fastest has a target."""
    rate = {(one.kind, one.environments): statistics.median(one.rates) for one in measured}
    batches = [size for kind, size in rate if kind == BATCHED]
    workers = [size for kind, size in rate if kind == PARALLEL]
    shown = [
        Verdict(
            "ratio", f"{size} in a batch / {count} workers", rate[BATCHED, size] / rate[PARALLEL, count], None
        )
        for size, count in itertools.product(batches, workers)
    ]
    best = rate[BATCHED, max(batches)] / max(rate[PARALLEL, count] for count in workers)
    return [*shown, Verdict("ratio", f"{max(batches)} in a batch / the fastest workers", best, TARGET)]


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
    torch.set_num_threads(1)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torchrl", "jax")}
    conditions = {
        "data": Path(arguments.data).name,
        "padding_states": arguments.padding_states,
        "torch_threads": 1,
        **versions,
    }
    measured = []
    for one in compare(arguments):
        measured.append(one)
        print(json.dumps(one.record({**conditions, **machine()})), flush=True)
    found = verdicts(measured)
    for verdict in found:
        print(json.dumps(verdict.record("compare_torchrl")), flush=True)
    if not arguments.json:
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(table(measured), figures_table(found, "compared"))
    return 1 if any(verdict.passed is False for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
