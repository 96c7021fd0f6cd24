"""Logging: records per second, and the overhead per update of a training run.

A record has ten metrics. Phalanx writes it as a line of JSON and flushes the file after each record, so
that a crash loses nothing. `csv` is the writer of the standard library, which is also flushed after each
record. PyTorch's `SummaryWriter` for TensorBoard buffers its events and is flushed once per 200 records. It
is measured with the default queue of 10 events, and with one that holds all events between two flushes.

`ppo-update` and `log-update` are the times of an update of PPO with the default settings on ARC, and of
logging its metrics and episode statistics.
"""

import csv
import functools
import itertools
import tempfile
from pathlib import Path

import jax

from benchmarks.peers import TRL
from benchmarks.suite import Suite, Workload
from benchmarks.workers.arc_ppo import SMOKE_OVERRIDES
from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig
from phalanx.training import PPO, PPOConfig
from phalanx.training.run import batch_data

suite = Suite("logging", unit="records/s", packages=("jax", "numpy"))

_SIZES = {"num_records": 200, "num_metrics": 10}
_SMOKE = {"num_records": 2}
_SMOKE_TRAINING = {"overrides": SMOKE_OVERRIDES}


def _metrics(step: int, num_metrics: int) -> dict[str, float]:
    return {f"metric_{index}": step + index / 7 for index in range(num_metrics)}


def _logger() -> ExperimentLogger:
    config = LoggingConfig(log_frequency=1, sample_frequency=0)
    return ExperimentLogger(config, {"file": FileHandler(Path(tempfile.mkdtemp()), config)})


@suite.case("records", group="records", smoke=_SMOKE, **_SIZES)
def records(num_records: int, num_metrics: int) -> Workload:
    """Log metrics to a JSON Lines file."""
    logger, steps = _logger(), itertools.count(1)

    def run() -> None:
        for _ in range(num_records):
            step = next(steps)
            logger.log_batch_step({"update_step": step, **_metrics(step, num_metrics)})

    return Workload(run, num_records)


@suite.case("csv-records", group="records", system="csv", smoke=_SMOKE, **_SIZES)
def csv_records(num_records: int, num_metrics: int) -> Workload:
    """Write metrics to a CSV file."""
    path, steps = Path(tempfile.mkdtemp(), "metrics.csv"), itertools.count(1)

    def run() -> None:
        with path.open("a") as file:
            writer = csv.writer(file)
            for _ in range(num_records):
                step = next(steps)
                writer.writerow([step, *_metrics(step, num_metrics).values()])
                file.flush()

    return Workload(run, num_records)


for _id, _max_queue in (("tensorboard-records", 10), ("tensorboard-records-long-queue", 2000)):
    suite.peer_case(
        _id,
        TRL,
        "tensorboard_writer",
        group="records",
        system="torch.utils.tensorboard",
        max_queue=_max_queue,
        **_SIZES,
    )


@functools.cache
def _ppo(overrides: tuple[str, ...]) -> PPO:
    return PPO(PPOConfig.load("arc", overrides))


@suite.case("ppo-update", group="update", unit="ms", smoke=_SMOKE_TRAINING)
def ppo_update(overrides: tuple[str, ...] = ()) -> Workload:
    """Perform one update of PPO on ARC."""
    ppo = _ppo(overrides)
    state = ppo.init(jax.random.key(0))

    def run() -> None:
        nonlocal state
        state, result = ppo.update(state)
        jax.block_until_ready((state, result))

    return Workload(run, 1)


@suite.case("log-update", group="update", unit="ms", smoke=_SMOKE_TRAINING)
def log_update(overrides: tuple[str, ...] = ()) -> Workload:
    """Log the result of an update: transfer, aggregate and write it."""
    ppo, logger, steps = _ppo(overrides), _logger(), itertools.count(1)
    _, result = ppo.update(ppo.init(jax.random.key(0)))
    return Workload(lambda: logger.log_batch_step(batch_data(result, {}, next(steps))), 1)
