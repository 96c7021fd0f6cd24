"""How fast a training on ARC is, where its time goes, and what logging adds to it.

Timing is in `timed_training`; the same training on another environment is measured in `compare_training.py`.
"""

import dataclasses
import io
import math
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
from measuring.conditions import conditions
from measuring.options import options, positive, run_program, sizes_or_none
from measuring.records import VERDICT, Column, held_to, machine_line, tell
from measuring.timing import at_least_one, seconds_of
from rich.console import Console
from timed_training import TimedParts, TimedTraining, count_parameters, median_parts

from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig, RichHandler, SVGHandler
from phalanx.training.algorithm import UpdateResult
from phalanx.training.ppo import PPO, PPOConfig
from phalanx.training.run import batch_data

QUICK = (
    "env.dataset.num_tasks=20",
    "env.dataset.max_grid_height=3",
    "env.dataset.max_grid_width=3",
    "network.kind=conv",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "num_steps=4",
    "update_epochs=1",
    "num_minibatches=2",
    "evaluation.num_tasks=5",
)
"""A training that compiles and runs in seconds; it shows that the measurement works, and no figure."""
_QUICK_ENVIRONMENTS = 16
ENVIRONMENT_SHARE = 0.10
"""The most of an update's time that the environment may take."""
LOGGING_OVERHEAD = 0.02
"""The most that logging may add to an update's time."""
_ENVIRONMENTS_KEPT = 1_024
"""Environments for which the preset's number of minibatches is kept; more get more, of the same size."""
_PATIENCE = 300.0
"""Seconds after which the logging of large batches is measured with fewer rounds."""
_LEAST_ROUNDS = 2

Kind = Literal["silent", "aggregate", "sample"]
_ROUND: tuple[Kind, ...] = ("sample", "aggregate", "silent")
"""The updates of a round that are logged; one that is not stands before and behind each."""


def timed_arc_training(preset: str, overrides: tuple[str, ...]) -> TimedTraining:
    """A training as `phalanx train ppo --env arc` has it, ready to be timed."""
    experiment = PPO(PPOConfig.load(preset, overrides))
    return TimedTraining(experiment)


@dataclasses.dataclass(frozen=True)
class TrainingBenchmark:
    """Which training is measured, and how often."""

    preset: str = "arc"
    """A preset of `phalanx train ppo --env arc`; its number of environments is replaced."""
    overrides: tuple[str, ...] = ()
    """Further settings, as `phalanx train ppo --env arc` takes them."""
    num_envs: int = 1_024
    """Environments of the training that is timed in parts."""
    logging_envs: tuple[int, ...] = (1_024, 10_000)
    """Environments of the trainings that are timed with and without logging."""
    repeats: int = 5
    """Repeats of the parts."""
    rounds: int = 5
    """Alternations of logging on and off."""
    logging: LoggingConfig | None = None
    """What is logged; None for the default settings."""
    judged: bool = True
    """Whether the figures are held against their targets; small sizes should not be."""

    def __post_init__(self) -> None:
        at_least_one(repeats=self.repeats, rounds=self.rounds)
        for num_envs in (self.num_envs, *self.logging_envs):
            if num_envs < 1:
                raise ValueError(f"a training needs at least 1 environment, got {num_envs}")

    def run(self) -> Iterator[dict[str, Any]]:
        """Every figure, as soon as it is measured."""
        for num_envs in dict.fromkeys((self.num_envs, *self.logging_envs)):
            experiment = PPO(self.config(num_envs))
            training = TimedTraining(experiment)
            if num_envs == self.num_envs:
                yield self.measure_parts(experiment, training)
            if num_envs in self.logging_envs:
                yield self.measure_logging(experiment, training)

    def config(self, num_envs: int) -> PPOConfig:
        """The preset's training with that many environments, and minibatches no larger than at 1,024."""
        config = PPOConfig.load(self.preset, self.overrides)
        minibatches = config.num_minibatches * max(1, round(num_envs / _ENVIRONMENTS_KEPT))
        logging = self.logging or LoggingConfig()
        sizes = (f"num_envs={num_envs}", f"num_minibatches={minibatches}")
        config = PPOConfig.load(self.preset, (*self.overrides, *sizes))
        return config.model_copy(update={"logging": logging})

    def measure_parts(self, experiment: PPO, training: TimedTraining) -> dict[str, Any]:
        """Steps a second end to end, and the share of environment, policy and update."""
        parts = TimedParts(training)
        updates = training.updates_per_repeat()
        times = [parts.time(updates) for _ in range(self.repeats)]
        median = median_parts(times)
        facts = {
            "steps_per_second_median": round(training.steps_per_update / median.whole),
            "steps_per_second_worst": round(training.steps_per_update / max(part.whole for part in times)),
            "update_seconds": round(median.whole, 5),
            "rollout_seconds": round(median.rollout, 5),
            "environment_seconds": round(median.environment, 6),
            **median.shares(),
            "updates_per_repeat": updates,
            "repeats": self.repeats,
            "compile_seconds": round(training.compile_seconds, 2),
        }
        return self._record("training", experiment, training, facts, "environment_share", ENVIRONMENT_SHARE)

    def measure_logging(self, experiment: PPO, training: TimedTraining) -> dict[str, Any]:
        """What logging adds, by updates with and without it in turns."""
        settings = experiment.config.logging
        with tempfile.TemporaryDirectory() as folder:
            cost = LoggingCost(experiment, training, settings, pathlib.Path(folder))
            rounds = cost.measure(self.rounds)
            cost.close()
        facts = {
            "log_frequency": settings.log_frequency,
            "sample_frequency": settings.sample_frequency,
            "num_samples": settings.num_samples,
            "rounds": rounds,
            **cost.times.facts(),
        }
        return self._record("logging", experiment, training, facts, "overhead", LOGGING_OVERHEAD)

    def _record(
        self,
        figure: str,
        experiment: PPO,
        training: TimedTraining,
        facts: dict[str, Any],
        field: str,
        at_most: float,
    ) -> dict[str, Any]:
        config = experiment.config
        rows, columns = config.environment_settings.grid_shape
        record = {
            "benchmark": "train",
            "figure": figure,
            "environments": config.num_envs,
            "grid": f"{rows}x{columns}",
            "network": (
                f"{config.network.kind}, hidden_dim {config.network.hidden_dim}, "
                f"num_layers {config.network.num_layers}"
            ),
            "num_parameters": count_parameters(training.state.params),
            "num_steps": config.num_steps,
            "epochs": config.update_epochs,
            "minibatches": config.num_minibatches,
            **facts,
        }
        targets = {field: {"at_most": at_most}} if self.judged else {}
        return {**held_to(record, targets), **conditions("jax")}


class LoggingTimes:
    """Seconds of updates with logging, each beside the updates without it just before and after.

    Most updates log nothing, some aggregate, a few also sample episodes. What each kind adds, by the median,
    is weighed by how often the settings have it, so that a few updates of each show what a long training
    would; and a machine that slows down does so for both sides of a difference.
    """

    def __init__(self, settings: LoggingConfig) -> None:
        self._settings = settings
        self.cycle = math.lcm(settings.log_frequency, settings.sample_frequency)
        """Updates after which the kinds come in the same order again."""
        self._off: list[float] = []
        self._added: dict[Kind, list[float]] = {"silent": [], "aggregate": [], "sample": []}
        self._inside: dict[Kind, list[float]] = {"silent": [], "aggregate": [], "sample": []}

    def add(self, kind: Kind, whole: float, neighbors: tuple[float, float], logging: float) -> None:
        """An update with logging: how long it took, its neighbors without, and the logging alone."""
        off = statistics.mean(neighbors)
        self._off.append(off)
        self._added[kind].append(whole - off)
        self._inside[kind].append(logging)

    def kind(self, update: int) -> Kind:
        """What is logged of an update."""
        if update % self._settings.sample_frequency == 0:
            return "sample"
        return "aggregate" if update % self._settings.log_frequency == 0 else "silent"

    def facts(self) -> dict[str, Any]:
        """The overhead, what it is made of, and the logging's own seconds as a check."""
        off = statistics.median(self._off)
        return {
            "overhead": round(self._mean(self._added) / off, 5),
            "logger_share": round(self._mean(self._inside) / off, 5),
            "update_seconds_off": round(off, 5),
            "update_seconds_on": round(off + self._mean(self._added), 5),
            "updates_on": len(self._off),
            **{
                f"logger_seconds_{kind}": round(statistics.median(times), 6)
                for kind, times in self._inside.items()
                if times
            },
        }

    def _mean(self, times: dict[Kind, list[float]]) -> float:
        kinds = [self.kind(update) for update in range(1, self.cycle + 1)]
        return sum(kinds.count(kind) * statistics.median(times[kind]) for kind in set(kinds)) / self.cycle


class LoggingCost:
    """Updates with and without logging in turns."""

    def __init__(
        self, experiment: PPO, training: TimedTraining, settings: LoggingConfig, folder: pathlib.Path
    ) -> None:
        self._experiment, self._training, self._settings = experiment, training, settings
        # As in a training: sampled episodes are played for the purpose, whole and with their states.
        metrics_only = settings.model_copy(update={"sample_frequency": 0})
        self._logger = ExperimentLogger(
            metrics_only,
            {
                "file": FileHandler(folder, settings),
                "svg": SVGHandler(folder / "episodes"),
                "rich": RichHandler(settings, console=Console(file=io.StringIO()), live=False),
            },
        )
        self.times = LoggingTimes(settings)

    def measure(self, rounds: int) -> int:
        """Alternate, and say how many rounds there was time for."""
        # Compiles what the logger computes; the pictures' modules are imported here, too.
        self._log(self._training.update(), self.times.cycle)
        began = time.perf_counter()
        for number in range(rounds):
            if number >= _LEAST_ROUNDS and time.perf_counter() - began > _PATIENCE:
                return number
            self._round(number + 1)
        return rounds

    def close(self) -> None:
        """Close the logger; one that failed has cost too little."""
        self._logger.close()
        if self._logger.failures:
            raise RuntimeError(f"logging failed, so its cost is unknown: {self._logger.failures}")

    def _round(self, number: int) -> None:
        cycle = self.times.cycle
        numbers = {self.times.kind(update): number * cycle + update for update in range(1, cycle + 1)}
        before = seconds_of(self._training.update)
        for kind in (kind for kind in _ROUND if kind in numbers):
            began = time.perf_counter()
            report = self._training.update()
            trained = time.perf_counter()
            self._log(report, numbers[kind])
            ended = time.perf_counter()
            after = seconds_of(self._training.update)
            self.times.add(kind, ended - began, (before, after), ended - trained)
            before = after

    def _log(self, report: UpdateResult, update: int) -> None:
        """What a run logs of an update."""
        settings = self._settings
        if update % settings.log_frequency == 0:
            rates = {"env_steps": update, "env_steps_per_second": 0.0, "seconds": 0.0}
            self._logger.log_batch_step(batch_data(report, rates, update))
        if settings.sample_frequency and update % settings.sample_frequency == 0:
            key = jax.random.fold_in(jax.random.key(0), update)
            for episode in self._experiment.sample_episodes(self._training.state, key, update):
                self._logger.log_episode_summary(episode)


def _measured(record: dict[str, Any]) -> str:
    if record["figure"] == "training":
        return (
            f"{record['steps_per_second_median']:,} steps/s (worst {record['steps_per_second_worst']:,}); "
            f"environment {record['environment_share']:.2%}, policy {record['policy_share']:.1%}, "
            f"update {record['update_share']:.1%}"
        )
    return (
        f"{record['overhead']:+.2%} ({record['update_seconds_off']:.3f} s an update without); "
        f"in the logger itself {record['logger_share']:.3%}"
    )


_COLUMNS = (
    Column("figure", lambda record: record["figure"]),
    Column("environments", lambda record: f"{record['environments']:,}", number=True),
    Column("measured", _measured),
    VERDICT,
)


def _footer(records: list[dict[str, Any]]) -> list[str]:
    last = records[-1]
    work = f"{last['grid']} canvas, {last['network']}, {last['num_parameters']:,} parameters"
    return [f"{work}; {machine_line(last, 'jax')}"]


def main(given: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = options(__doc__)
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings of `phalanx train ppo`",
    )
    parser.add_argument("--preset", default="arc", help="preset [arc]")
    parser.add_argument("--environments", type=positive, default=1_024, help="of the timed training [1024]")
    parser.add_argument(
        "--logging",
        type=sizes_or_none,
        default=(1_024, 10_000),
        help="environments for the cost of logging, with commas; empty for none [1024,10000]",
    )
    parser.add_argument(
        "--rounds", type=positive, default=5, help="logging on and off; fewer where updates take long [5]"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny training: a smoke test, not a figure")
    parser.add_argument("--peers", action="store_true", help="then run compare_training.py")
    asked = parser.parse_args(given)
    try:
        benchmark = TrainingBenchmark(
            preset=asked.preset,
            overrides=(*(QUICK if asked.quick else ()), *asked.settings),
            num_envs=_QUICK_ENVIRONMENTS if asked.quick else asked.environments,
            logging_envs=(_QUICK_ENVIRONMENTS,) if asked.quick else asked.logging,
            repeats=asked.repeats,
            rounds=asked.rounds,
            judged=not asked.quick,
        )
        # Built here so that a bad setting is told before anything runs.
        for size in (benchmark.num_envs, *benchmark.logging_envs):
            benchmark.config(size)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    tell(benchmark.run(), asked.json, "Training on ARC", _COLUMNS, _footer)
    if not asked.peers:
        return 0
    passed_on = [name for name in ("quick", "json") if getattr(asked, name)]
    return run_program(
        "compare_training.py", "--repeats", str(asked.repeats), *(f"--{name}" for name in passed_on)
    )


if __name__ == "__main__":
    sys.exit(main())
