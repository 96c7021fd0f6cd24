"""Hyperparameter sweeps with Optuna. Trials run as local processes or Ray tasks."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from phalanx.extras import require_extra
from phalanx.io.lock import lock_folder
from phalanx.logging import read_records
from phalanx.training.checkpoints import CheckpointRef
from phalanx.training.stop_signals import stop_on_signals

STUDY = "sweep.log"
"""Name of the Optuna journal file in a sweep folder."""
DEFAULT_METRICS = ("success_rate", "mrr_100", "mean_token_accuracy")
"""Default metrics for ranking trials. The first metric in this list that the trials have is used."""
SamplerName = Literal["grid", "random", "tpe"]
Goal = Literal["max", "min"]
Space = Mapping[str, Any]
"""Search space of a sweep: Optuna distributions by setting name."""
StartTrial = Callable[[Sequence[str], Path], Any]
"""Function that starts `phalanx` with the given arguments and appends its output to the given file. It
returns an object with the `poll`, `wait` and `terminate` methods of `subprocess.Popen`."""
_POLL_SECONDS = 0.05
_RANGE = re.compile(r"(uniform|loguniform|integers)\(([^,()]+),([^,()]+)\)")


def parse_space(settings: Sequence[str]) -> dict[str, Any]:
    """Parse settings such as `lr=1e-3,3e-4` into a search space: Optuna distributions by setting name.

    The text after the equals sign is a list of values, such as `1e-3,3e-4`, or one of the ranges
    `uniform(low,high)`, `loguniform(low,high)` and `integers(low,high)`.

    >>> parse_space(["lr=loguniform(1e-4,1e-2)"])
    {'lr': FloatDistribution(high=0.01, log=True, low=0.0001, step=None)}
    """
    return dict(_parse_setting(setting) for setting in settings)


def _parse_setting(setting: str) -> tuple[str, Any]:
    distributions = _import_optuna().distributions
    name, equals, value = setting.partition("=")
    if not equals or not name or not value:
        raise ValueError(f"a sweep takes settings such as lr=1e-3,3e-4, got {setting!r}")
    match = _RANGE.fullmatch(value)
    if match is None:
        return name, distributions.CategoricalDistribution(split_values(value))
    kind = match[1]
    try:
        low, high = map(int if kind == "integers" else float, match.groups()[1:])
    except ValueError:
        expected = "integers" if kind == "integers" else "numbers"
        raise ValueError(f"{setting}: the bounds must be {expected}") from None
    if not low < high:
        raise ValueError(f"{setting}: the lower bound must come first")
    if kind == "loguniform" and low <= 0:
        raise ValueError(f"{setting}: the bounds of loguniform must be positive")
    if kind == "integers":
        return name, distributions.IntDistribution(low, high)
    return name, distributions.FloatDistribution(low, high, log=kind == "loguniform")


def split_values(text: str) -> list[str]:
    """Split values at commas, except inside brackets and quotes.

    >>> split_values("1e-3,3e-4"), split_values("[gravity,denoise],[gravity]"), split_values("7")
    (['1e-3', '3e-4'], ['[gravity,denoise]', '[gravity]'], ['7'])
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        elif not quote:
            depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def grid(space: Space) -> list[dict[str, Any]]:
    """Return all combinations of the values in a search space. The last setting varies fastest.

    Raises:
        ValueError: If the search space contains a range.
    """
    for name, distribution in space.items():
        if not hasattr(distribution, "choices"):
            raise ValueError(
                f"{name} is a range, and a grid needs lists of values: choose --sampler random or tpe, with "
                "--trials"
            )
    choices = [distribution.choices for distribution in space.values()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*choices)]


@dataclasses.dataclass(frozen=True)
class SweepTrial:
    """A training run of a sweep."""

    number: int
    params: Mapping[str, Any]
    """Values of the varied settings, by name."""

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return f"trial_{self.number:03d}"

    @property
    def settings(self) -> list[str]:
        """Settings as `key=value`."""
        return [f"{name}={value}" for name, value in self.params.items()]


class Sweep:
    """A hyperparameter sweep.

    The sweep is an Optuna study that is stored in `sweep.log` in its folder. Its trials are training runs in
    the subfolders `trial_000/`, `trial_001/`, ...

    To continue a sweep that was stopped, create it again with the same arguments. Trials whose process was
    stopped or returned an error are started again. The sampler for trial `number` has the seed
    `seed + number`, so if trials run one at a time, the sampled settings are the same as without the
    interruption.

    Args:
        folder: Sweep folder.
        command: Arguments to `phalanx` for training, such as `["train", "ppo", "--env", "arc"]`, without the
            settings of a trial.
        settings: Search space in the format that `parse_space` documents.
        sampler: Method for selecting the settings of trials. `grid` tries all combinations, `random` samples
            independently, and `tpe` is Optuna's tree-structured Parzen estimator, which learns from the
            completed trials.
        num_trials: Number of trials for `random` and `tpe`. It can be increased later. Must be None for
            `grid`.
        seed: Seed for the sampler.
        metric: Evaluation or training metric for ranking trials. Defaults to the first of `DEFAULT_METRICS`
            that the trials have.
        goal: Whether to maximize (`max`) or minimize (`min`) the metric. Defaults to `min` if the name of the
            metric ends in `loss`, and to `max` otherwise.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        command: Sequence[str],
        settings: Sequence[str],
        *,
        sampler: SamplerName = "grid",
        num_trials: int | None = None,
        seed: int = 0,
        metric: str | None = None,
        goal: Goal | None = None,
    ) -> None:
        self.folder, self.command, self.space = Path(folder), list(command), parse_space(settings)
        self.sampler, self.seed = sampler, seed
        self.metric, self.goal = metric, goal or ("min" if metric and metric.endswith("loss") else "max")
        self._grid: list[dict[str, Any]] = []
        if sampler == "grid":
            if num_trials is not None:
                raise ValueError("--trials is for --sampler random and tpe; a grid has all combinations")
            self._grid = grid(self.space)
            num_trials = len(self._grid)
        elif num_trials is None:
            raise ValueError(f"--sampler {sampler} needs --trials, the number of trials")
        self.num_trials = num_trials
        self.exit_codes: dict[str, int] = {}
        """Exit codes of the trials that have ended since this object was created, by trial name."""
        self._identity = json.dumps([self.command, list(settings), sampler, seed])
        self._study: Any = None

    def validate(self, load_config: Callable[[list[str]], object]) -> None:
        """Check the settings before the first trial.

        For a grid, all combinations are checked. Otherwise, each listed value and both bounds of each range
        are checked, together with the first values of the other settings.

        Args:
            load_config: Function that creates a config from settings. It raises `ValueError` if a setting is
                invalid.
        """
        if self._grid:
            candidates = self._grid
        else:
            values = {name: _extreme_values(distribution) for name, distribution in self.space.items()}
            first = {name: options[0] for name, options in values.items()}
            candidates = [{**first, name: value} for name in values for value in values[name]]
        for params in candidates:
            load_config(SweepTrial(0, params).settings)

    def run(self, start: StartTrial, jobs: int, on_end: Callable[[SweepTrial, int], None]) -> int | None:
        """Run all trials that are not complete.

        On SIGINT or SIGTERM, the running trials are asked to save a checkpoint and stop.

        Args:
            start: Function that starts a trial, such as `start_process`.
            jobs: Maximum number of trials that run at the same time.
            on_end: Function that is called with a trial and its exit code when the trial ends.

        Returns:
            The number of the signal that stopped the sweep, or None if it was not stopped.
        """
        self._open_study()
        with lock_folder(self.folder, "sweep.lock"), stop_on_signals() as stop:
            unfinished = self.trials("RUNNING")
            running: list[tuple[SweepTrial, Any]] = []
            try:
                while True:
                    while stop.signal is None and len(running) < jobs:
                        trial = unfinished.pop(0) if unfinished else self._ask()
                        if trial is None:
                            break
                        running.append((trial, start(self._arguments(trial), self.log_path(trial))))
                    if not running:
                        return stop.signal
                    if stop.signal is not None:
                        for _, process in running:
                            process.terminate()
                    for trial, process in list(running):
                        code = process.poll() if stop.signal is None else process.wait()
                        if code is not None:
                            running.remove((trial, process))
                            self.exit_codes[trial.name] = code
                            if code == 0:
                                self._store_value(trial)
                            on_end(trial, code)
                    time.sleep(_POLL_SECONDS)
            finally:
                for _, process in running:
                    process.terminate()

    def log_path(self, trial: SweepTrial) -> Path:
        """Return the path of the log file with a trial's output."""
        return self.folder / f"{trial.name}.log"

    def rank(self) -> list[tuple[SweepTrial, float]]:
        """Return the completed trials with their metric values, best first. NaN values come last."""
        scores = [(trial, self._value(trial)) for trial in self.trials("COMPLETE", "FAIL")]
        sign = 1 if self.goal == "min" else -1
        return sorted(scores, key=lambda score: (math.isnan(score[1]), sign * score[1]))

    def ranking_metric(self, metrics: Mapping[str, float]) -> str:
        """Return the name of the metric by which trials are ranked.

        It is `metric` or, if that is None, the first of `DEFAULT_METRICS` that the trial has.

        Args:
            metrics: Metrics of a trial.

        Raises:
            ValueError: If the trial does not have the metric.
        """
        names = DEFAULT_METRICS if self.metric is None else (self.metric,)
        found = next((name for name in names if name in metrics), None)
        if found is None:
            raise ValueError(
                f"the trials have no metric {' or '.join(names)}; choose one with --metric: "
                f"{', '.join(sorted(metrics))}"
            )
        return found

    def _arguments(self, trial: SweepTrial) -> list[str]:
        out = str((self.folder / trial.name).absolute())
        return [*self.command, *trial.settings, "--out", out, "--auto-resume"]

    def _open_study(self) -> Any:
        """Create or load the Optuna study."""
        if self._study is not None:
            return self._study
        optuna = _import_optuna()
        path = self.folder / STUDY
        is_used = self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir()))
        if is_used and not path.is_file():
            raise ValueError(f"{self.folder} already exists and is not a sweep; choose another --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        journal = optuna.storages.journal.JournalFileBackend(str(path))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(journal),
            study_name="sweep",
            direction=f"{self.goal}imize",
            load_if_exists=True,
        )
        if study.user_attrs.get("sweep", self._identity) != self._identity:
            raise ValueError(
                f"{self.folder} is another sweep: repeat its command to continue it, or choose another --out"
            )
        objective = study.user_attrs.get("objective")
        if self.sampler == "tpe" and objective not in (None, [self.metric, self.goal]):
            raise ValueError(
                f"TPE has learned from {objective[0] or 'the default metric'} ({objective[1]}) in "
                f"{self.folder}: keep --metric and --goal, or choose another --out"
            )
        study.set_user_attr("sweep", self._identity)
        self._study = study
        return study

    def trials(self, *states: str) -> list[SweepTrial]:
        """Return the trials that have been started, ordered by number.

        Args:
            states: Names of Optuna states, such as `COMPLETE`. Only trials in one of these states are
                returned. If none is given, all trials are returned.
        """
        selected = tuple(_import_optuna().trial.TrialState[state] for state in states) or None
        return [
            SweepTrial(trial.number, trial.params)
            for trial in self._open_study().get_trials(deepcopy=False, states=selected)
        ]

    def _ask(self) -> SweepTrial | None:
        """Create the next trial and return it. Returns None if all trials have been started."""
        optuna = _import_optuna()
        number = len(self._study.trials)
        if number >= self.num_trials:
            return None
        params = self._grid[number] if self._grid else self._sample(number)
        # The trial is added in one step, so that a killed process leaves no trial without parameters.
        self._study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING, params=params, distributions=dict(self.space)
            )
        )
        return SweepTrial(number, params)

    def _sample(self, number: int) -> dict[str, Any]:
        """Sample the settings of a trial.

        They depend on the seed, the trial number and, for `tpe`, the completed trials.
        """
        optuna = _import_optuna()
        samplers = optuna.samplers
        sampler = samplers.TPESampler if self.sampler == "tpe" else samplers.RandomSampler
        study = optuna.create_study(direction=f"{self.goal}imize", sampler=sampler(seed=self.seed + number))
        study.add_trials(self._study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)))
        return study.ask(dict(self.space)).params

    def _store_value(self, trial: SweepTrial) -> None:
        """Store the metric of a completed trial in the study. If it is NaN, the trial is marked as failed."""
        value = self._value(trial)
        self._study.set_user_attr("objective", [self.metric, self.goal])
        if math.isnan(value):  # Optuna accepts no NaN
            self._study.tell(trial.number, state=_import_optuna().trial.TrialState.FAIL)
        else:
            self._study.tell(trial.number, value)

    def _value(self, trial: SweepTrial) -> float:
        metrics = last_metrics(self.folder / trial.name)
        return metrics[self.ranking_metric(metrics)]


def _extreme_values(distribution: Any) -> list[Any]:
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    return [distribution.low, distribution.high]


def _import_optuna() -> Any:
    with require_extra("a sweep", "sweep", "optuna"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def last_metrics(run: Path) -> dict[str, float]:
    """Return the last training and evaluation metrics of a run, averaged over its seeds.

    If the last evaluation has several records, the first one is used. If a training metric and an evaluation
    metric have the same name, the evaluation metric is returned.
    """
    seeds = [_last_metrics_of_seed(seed) for seed in CheckpointRef(run).seeds or [run]]
    names = [name for name in seeds[0] if all(name in seed for seed in seeds)]
    return {name: sum(seed[name] for seed in seeds) / len(seeds) for name in names}


def _last_metrics_of_seed(run: Path) -> dict[str, float]:
    metrics: dict[str, Any] = {}
    if (run / "batch_metrics.jsonl").exists():
        for record in read_records(run / "batch_metrics.jsonl"):
            metrics |= record["metrics"]
    if (run / "evaluations.jsonl").exists():
        records = list(read_records(run / "evaluations.jsonl"))
        last = next((record for record in records if record["step"] == records[-1]["step"]), {})
        metrics |= {name: value for name, value in last.items() if name not in ("timestamp", "step")}
    return {name: float(value) for name, value in metrics.items() if type(value) in (int, float)}


@contextlib.contextmanager
def connect_to_ray(address: str) -> Iterator[tuple[StartTrial, int]]:
    """Connect to a Ray cluster to run trials as Ray tasks. Every task uses one CPU.

    All machines in the cluster must have Phalanx installed and share the sweep folder.

    Args:
        address: Address `HOST:PORT` of the cluster, or `auto` for a cluster on this machine that was started
            with `ray start --head`.

    Yields:
        A function that starts trials, and the number of CPUs in the cluster.

    Raises:
        ValueError: If Ray is not installed or the connection fails.
    """
    from phalanx.io.worker_pool import WorkerPoolError, ray_cluster, require_ray

    try:
        ray = require_ray("running trials on a cluster")
        with ray_cluster(address):
            run_task = ray.remote(num_cpus=1, max_retries=0)(_run_task)

            def start(arguments: Sequence[str], log: Path) -> _RayTask:
                return _RayTask(ray, run_task.remote(list(arguments), str(log.resolve()), str(Path.cwd())))

            yield start, max(1, int(ray.cluster_resources().get("CPU", 1)))
    except (ImportError, WorkerPoolError) as error:
        raise ValueError(str(error)) from error


class _RayTask:
    """A trial in a Ray task, with the `poll`, `wait` and `terminate` methods of `subprocess.Popen`."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def poll(self) -> int | None:
        ready, _ = self._ray.wait([self._reference], timeout=0)
        return self.wait() if ready else None

    def wait(self) -> int:
        try:
            return int(self._ray.get(self._reference))
        except self._ray.exceptions.TaskCancelledError:
            return 128 + signal.SIGTERM
        except self._ray.exceptions.RayError as error:
            print(f"a Ray task failed: {' '.join(str(error).split())[:300]}", file=sys.stderr)
            return 1

    def terminate(self) -> None:
        self._ray.cancel(self._reference)


def _run_task(arguments: list[str], log: str, folder: str) -> int:
    """Run a trial in a new process on a machine in the cluster and return its exit code.

    If the task is canceled, the trial saves a checkpoint and stops.
    """
    process = start_process(arguments, Path(log), Path(folder))
    try:
        # Ray cancels a task with an exception between two Python instructions, which `wait` would not see.
        while process.poll() is None:
            time.sleep(0.1)
    except KeyboardInterrupt:
        process.terminate()
    return process.wait()


def start_process(
    arguments: Sequence[str], log: Path, folder: Path | None = None
) -> "subprocess.Popen[bytes]":
    """Start `phalanx` as a process on this machine.

    Args:
        arguments: Arguments to `phalanx`.
        log: File to which the output is appended.
        folder: Working directory. Defaults to the current one.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "phalanx", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            # In its own session, the process does not receive Ctrl-C from the terminal directly.
            start_new_session=True,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
