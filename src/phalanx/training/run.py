"""The run loop that all algorithms share: updates, logging, evaluations and checkpoints."""

import collections
import contextlib
import dataclasses
import hashlib
import logging
import numbers
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from phalanx.io.atomic import remove_stale_temporaries
from phalanx.io.checksum import CorruptFileError
from phalanx.io.jsonl import read_records
from phalanx.io.lock import lock_folder
from phalanx.logging.experiment_logger import ExperimentLogger
from phalanx.training import run_dir as run_dirs
from phalanx.training.algorithm import Algorithm, DataExhausted, Progress, TrainResult, UpdateResult
from phalanx.training.checkpoints import (
    Checkpointer,
    CheckpointRef,
    arrays_by_name,
    check_metadata,
    config_digest,
    intact_checkpoints,
)
from phalanx.training.code_identity import check_same_code
from phalanx.training.device_mesh import unreplicate
from phalanx.training.process_group import ProcessLostError
from phalanx.training.stop_signals import stop_on_signals
from phalanx.training.warm_start import load_params

_LOG = logging.getLogger("phalanx.training")
Show = Callable[[Progress], None]


class SaveError(RuntimeError):
    """Raised at the end of a run if its result could not be saved, for example because the disk is full.

    The run is not finished. It can be resumed from its newest intact checkpoint.
    """


def train(
    algorithm: Algorithm,
    run_dir: str | Path,
    *,
    resume: bool = False,
    auto_resume: bool = False,
    extend: bool = False,
    init_from: CheckpointRef | str | None = None,
    handlers: run_dirs.MakeHandlers = run_dirs.default_handlers,
    show: Show = lambda progress: None,
) -> TrainResult:
    """Train until the last update. On SIGINT or SIGTERM, save a checkpoint and stop.

    With `num_seeds` > 1, each seed is a complete run in its own subfolder (`seed_0/`, `seed_1/`, ...), with
    the same result as a separate run with that seed. The seeds take turns, one update each, and share
    compiled programs.

    Args:
        algorithm: Algorithm to train with.
        run_dir: Run folder. For a new run, it must be empty or not exist.
        resume: Continue from the newest checkpoint, with the same result as without the interruption.
        auto_resume: Start the run or, if it has a checkpoint, continue it. If it is finished, return its
            result without training.
        extend: Continue a run with more updates than it was started with.
        init_from: Run that provides the initial parameters, as `RUN`, `RUN@STEP` or `RUN@best`. If None, new
            parameters are created.
        handlers: Function that creates the handlers for the run's logger.
        show: Function that is called with the progress after every update.

    Raises:
        SaveError: If the last checkpoint or the exported files could not be saved. Checkpoints that could not
            be saved earlier only cause warnings.
    """
    algorithm.check_num_processes(algorithm.mesh.processes.size)
    path = Path(run_dir)
    ref = CheckpointRef.parse(init_from) if isinstance(init_from, str) else init_from
    status: run_dirs.RunStatus = "new"
    if auto_resume:
        status = run_dirs.run_status(path)
    elif resume or extend:
        status = "resumable"
    num_seeds = algorithm.config.num_seeds
    options: dict[str, Any] = {"extend": extend, "handlers": handlers}
    with contextlib.ExitStack() as stack:
        runs: list[Run] = []
        if num_seeds == 1:
            runs.append(Run(algorithm, path, status, init_from=ref, **options))
        else:
            stack.callback(algorithm.close)  # the runs close only their copies
            stack.enter_context(_parent_run(algorithm, path, status, extend, ref, runs))
            runs += [
                Run(
                    algorithm.with_seed(algorithm.seed + number),
                    path / f"seed_{number}",
                    # A seed may have been stopped before its first checkpoint when others already had one.
                    "new" if status == "new" else run_dirs.run_status(path / f"seed_{number}"),
                    init_from=None if ref is None else ref.for_seed(number),
                    **options,
                )
                for number in range(num_seeds)
            ]
        for run in runs:
            stack.enter_context(run.open())
        stop = stack.enter_context(stop_on_signals())
        first = last = None
        while True:
            stopped, *overdue = algorithm.mesh.any_process(
                (stop.signal is not None, *(run.is_overdue for run in runs))
            )
            if stopped:
                break
            advanced = [run.advance(late) for run, late in zip(runs, overdue, strict=True)]
            progress = [one for one in advanced if one is not None]
            if not progress:
                break
            last = progress[0] if num_seeds == 1 else _combine_progress(progress)
            first = first or last
            show(last)
        results, errors = [], []
        for run in runs:
            try:
                results.append(run.finish(stop.signal))
            except SaveError as error:  # the other seeds are saved before the command fails
                errors.append(error)
        if errors:
            raise errors[0]
        result = results[0] if num_seeds == 1 else _combine_results(path, results)
        return dataclasses.replace(result, first=first, last=last)


class Run:
    """The training loop for one seed, which has its own run folder.

    Args:
        algorithm: Algorithm to train with.
        run_dir: Run folder.
        status: Status of the run, as returned by `run_status`. It determines whether the run is created, is
            started again, or continues from a checkpoint.
        extend: See `train`.
        init_from: Checkpoint that provides the initial parameters. If None, new parameters are created.
        handlers: See `train`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        run_dir: Path,
        status: run_dirs.RunStatus = "new",
        *,
        extend: bool = False,
        init_from: CheckpointRef | None = None,
        handlers: run_dirs.MakeHandlers = run_dirs.default_handlers,
    ) -> None:
        self.algorithm, self.run_dir, self.status = algorithm, run_dir, status
        self.mesh = algorithm.mesh
        self.extend, self.init_from, self.handlers = extend, init_from, handlers
        self.update = 0
        """Number of completed updates."""
        self.seconds = 0.0
        """Time spent in updates, in seconds."""
        self.counts: dict[str, int] = {algorithm.unit: 0}
        """Sum of `UpdateResult.counts` over all updates."""
        self.evaluations: list[dict[str, Any]] = []
        """Records of the evaluations so far, including those before the run was resumed."""
        self.last: Progress | None = None
        self._exhausted = self._is_open = False
        self._metrics: dict[str, float] | None = None
        """Evaluation metrics of the current state. None if the current state has not been evaluated."""
        self._failures: dict[str, int] = {}
        """Number of failed writes to the disk, by description of what failed."""
        self._logger: ExperimentLogger | None = None
        """Logger of the first process. None in other processes."""

    @contextlib.contextmanager
    def open(self) -> Iterator["Run"]:
        """Create or resume the run, and release its resources at the end of the context."""
        with contextlib.ExitStack() as stack:
            try:
                self._open(stack)
                yield self
            except BaseException as error:
                if not self._is_open:
                    raise
                lost = isinstance(error, ProcessLostError)
                self._write_metadata({"status": "interrupted" if lost else "failed"})
                if lost:
                    raise ProcessLostError(f"{error}; {self._resume_hint()}") from error
                raise
            finally:
                self.algorithm.close()
                for what, times in self._failures.items():
                    if times > 1:
                        _LOG.warning("%s, %d times in this run", what, times)

    def _open(self, stack: contextlib.ExitStack) -> None:
        algorithm, config = self.algorithm, self.algorithm.config
        resuming = self.status in ("resumable", "finished")
        if self.status != "new":
            _check_same_run(algorithm, self.run_dir, self.extend, self.init_from)
        agreed = f"{resuming} {config_digest(config)} {algorithm.data_fingerprint()}"
        self.mesh.check_agreement("config, data or --resume", hashlib.sha256(agreed.encode()).hexdigest())
        state = algorithm.init(jax.random.key(algorithm.seed))
        metadata = _describe(algorithm)
        if self.init_from is not None and not resuming:
            params, metadata["init_from"] = load_params(self.init_from, state.params)
            state = algorithm.init(jax.random.key(algorithm.seed), params)
        is_first = self.mesh.is_first_process
        if is_first:
            if self.status == "new":
                run_dirs.create_run(self.run_dir, config, metadata)
            stack.enter_context(lock_folder(self.run_dir))
            remove_stale_temporaries(self.run_dir)
            self._checkpoints = stack.enter_context(Checkpointer(self.run_dir, config.checkpoint))
        self.mesh.wait_for_all()
        if not is_first:
            self._checkpoints = stack.enter_context(Checkpointer(self.run_dir, read_only=True))
        self.state = self._restore(state) if resuming else state
        self._first_update = self.update
        if is_first:
            self._logger = ExperimentLogger(config.logging, self.handlers(self.run_dir, config))
            stack.callback(self._logger.close)
            self._logger.log_config(config, self._metadata())
        self._is_open = True
        self._write_metadata({**self._metadata(), "status": "running"})
        self._saved_at = time.monotonic()
        if not resuming and self._evaluate(final=False):
            self._save()

    @property
    def is_overdue(self) -> bool:
        """True if the last checkpoint is older than `checkpoint.minutes`."""
        minutes = self.algorithm.config.checkpoint.minutes
        return minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes

    def advance(self, overdue: bool = False) -> Progress | None:
        """Run one update and log it. Evaluate the policy and save a checkpoint when due.

        Args:
            overdue: Whether the last checkpoint is too old. If so, a checkpoint is saved after this update.

        Returns:
            The progress, or None if no updates are left.
        """
        algorithm, config = self.algorithm, self.algorithm.config
        total, every = algorithm.num_updates, config.evaluation.every
        if self._exhausted or self.update >= total:
            return None
        began = time.perf_counter()
        try:
            self.state, result = algorithm.update(self.state)
        except DataExhausted:
            self._exhausted = True
            return None
        self._metrics = None
        self.last = self._count(result, began)
        self._log(result, self.last)
        if self.update < total:  # `finish` evaluates and saves the last update
            is_best = every > 0 and self.update % every == 0 and self._evaluate(final=False)
            if is_best or overdue or self.update % config.checkpoint.every == 0:
                self._save()
        return self.last

    def finish(self, signal: int | None) -> TrainResult:
        """Save the last checkpoint, export the result, and record that the run ended.

        If all updates are done or the training data is exhausted, the policy is evaluated first.

        Args:
            signal: Number of the signal that stopped the run, or None.

        Raises:
            SaveError: If a file could not be written.
        """
        algorithm = self.algorithm
        finished = self._exhausted or self.update >= algorithm.num_updates
        if finished and self.update > self._first_update:
            self._evaluate(final=True)
        with _raise_save_error(self.run_dir):
            self._save(final=True)
            if self.mesh.is_first_process:
                algorithm.export(unreplicate(self.state), self.run_dir)
            self._write_progress("finished" if finished else "interrupted", final=True)
        self._is_open = False
        return TrainResult(
            run_dir=self.run_dir,
            update=self.update,
            interrupted=not finished,
            signal=signal,
            seconds=self.seconds,
            counts=dict(self.counts),
            evaluations=self.evaluations,
            state=self.state,
        )

    def _count(self, result: UpdateResult, began: float) -> Progress:
        """Wait until an update has been computed, add its counts to the totals, and return the progress.

        Args:
            result: Result of the update.
            began: Value of `time.perf_counter()` at the start of the update.
        """
        own = unreplicate(result)
        headline = {name: own.metrics[name] for name in self.algorithm.headline if name in own.metrics}
        headline, (means, num_episodes), counts = jax.device_get(
            (headline, _episode_means(dict(own.episodes)), own.counts)
        )
        # Without episodes, the means are NaN, which would look like divergence.
        known = {**headline, **(means if num_episodes else {})}
        seconds = time.perf_counter() - began
        self.update += 1
        self.seconds += seconds
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + int(count)
        rate = int(counts[self.algorithm.unit]) / seconds
        metrics = {} if self.last is None else dict(self.last.metrics)
        metrics |= {name: float(known[name]) for name in self.algorithm.headline if name in known}
        num_updates, num_episodes = self.algorithm.num_updates, int(num_episodes)
        if self.last is not None:
            num_episodes = num_episodes or self.last.num_episodes
        return Progress(
            self.update, num_updates, self.seconds, dict(self.counts), rate, metrics, num_episodes
        )

    def _log(self, result: UpdateResult, progress: Progress) -> None:
        """Log metrics and sampled episodes when they are due."""
        if self._logger is None:
            return
        rate = {f"{self.algorithm.unit}_per_second": progress.per_second, "seconds": progress.seconds}

        def sample_episodes() -> list[dict[str, Any]]:
            key = jax.random.fold_in(jax.random.key(self.algorithm.seed), self.update)
            return self.algorithm.sample_episodes(unreplicate(self.state), key, self.update)

        data = batch_data(unreplicate(result), {**progress.counts, **rate}, self.update)
        self._logger.log_batch_step(data, sample_episodes)

    def _evaluate(self, *, final: bool) -> bool:
        """Evaluate the policy and log the results.

        Every process runs the evaluation, so that no process has to wait for another process at the next
        update.

        Returns:
            True if the metric that `checkpoint.best_metric` names has its best value so far.
        """
        settings = self.algorithm.config.evaluation
        results = self.algorithm.evaluate(unreplicate(self.state), settings, final)
        records = [result.as_record() for result in results]
        for record in records:
            logged = {**record, "timestamp": time.time(), "step": self.update, **self.counts}
            self.evaluations.append(logged)
            if self._logger is not None:
                self._logger.log_evaluation(logged)
        self._metrics = _numbers(records[0]) if records else None
        if (metric := self.algorithm.config.checkpoint.best_metric) is None:
            return False
        if self._metrics is None:
            raise ValueError(f"checkpoint.best_metric is {metric!r}, but this run has no evaluations")
        is_better = self.mesh.is_first_process and self._checkpoints.is_better(self._metrics)
        return self.mesh.any_process([is_better])[0]

    def _save(self, *, final: bool = False) -> None:
        """Save a checkpoint and, if the run continues, update `run.json`.

        Args:
            final: Whether this is the last checkpoint of the run, which must be saved.
        """
        algorithm = self.algorithm
        self._saved_at = time.monotonic()
        state = self.mesh.gather_state(self.state)
        if not self.mesh.is_first_process:
            return
        metadata = {
            "seconds": self.seconds,
            "counts": self.counts,
            "config": config_digest(algorithm.config),
            "data": algorithm.data_fingerprint(),
            "metrics": self._metrics,
            "params": [name for name, leaf in arrays_by_name({"params": state.params}).items() if leaf.size],
        }
        steps = self._checkpoints.steps()
        with self._tolerate("a checkpoint could not be saved", final=final):
            metadata["host_state"] = algorithm.save_host_state(self.run_dir, self.update, steps)
            self._checkpoints.save(self.update, state, metadata)
        if not final:
            self._write_progress("running")

    def _write_progress(self, status: str, *, final: bool = False) -> None:
        """Write the progress and the status of the run to `run.json`."""
        progress = {"updates": self.update, "seconds": self.seconds, "status": status, **self.counts}
        self._write_metadata({**self._metadata(), **progress}, final=final)

    def _metadata(self) -> dict[str, Any]:
        """Return the entries of `run.json` that describe the model and the algorithm."""
        state = unreplicate(self.state)
        return {"num_parameters": count_parameters(state.params), **self.algorithm.metadata(state)}

    def _write_metadata(self, metadata: Mapping[str, Any], *, final: bool = False) -> None:
        if self.mesh.is_first_process and self.run_dir.is_dir():
            with self._tolerate(f"{run_dirs.METADATA} could not be written", final=final):
                run_dirs.write_metadata(self.run_dir, metadata)

    @contextlib.contextmanager
    def _tolerate(self, what: str, *, final: bool = False) -> Iterator[None]:
        """Catch `OSError` in the `with` block, for example if the disk is full, and log a warning instead.

        Args:
            what: Description of what failed, for the warning.
            final: Whether the run ends. If so, the error is not caught, because nothing is saved later.
        """
        try:
            yield
        except OSError as error:
            if final:
                raise
            self._failures[what] = self._failures.get(what, 0) + 1
            if self._failures[what] == 1:
                _LOG.warning("%s: %s: %s; training continues", what, type(error).__name__, error)

    def _restore(self, state: PyTree) -> PyTree:
        """Return the state of the newest intact checkpoint, with the structure of `state`."""
        algorithm, config = self.algorithm, self.algorithm.config
        before = run_dirs.load_run_config(self.run_dir, type(config))
        state = self.mesh.gather_state(state)
        for step, metadata in intact_checkpoints(self._checkpoints, self.run_dir):
            check_metadata(self.run_dir, step, metadata, before)
            if metadata["data"] != algorithm.data_fingerprint():
                raise ValueError(
                    f"the data has changed since checkpoint {step} of {self.run_dir} was saved: restore the "
                    "data that it was trained on, or start a new run with another --out"
                )
            try:
                state = self._checkpoints.restore(step, state)
                algorithm.restore_host_state(self.run_dir, metadata["host_state"])
            except (CorruptFileError, FileNotFoundError) as error:
                _LOG.warning("skipping checkpoint %d of %s: %s", step, self.run_dir, error)
                continue
            break
        else:
            raise ValueError(f"{self.run_dir} has no intact checkpoint; start a new run with another --out")
        self.mesh.check_agreement("their newest checkpoint", f"{step:020d}")
        if before != config and self.mesh.is_first_process:
            run_dirs.extend_run(self.run_dir, config, {"config": metadata["config"], "update": step})
        self.update, self.seconds = step, float(metadata["seconds"])
        self.counts = {name: int(count) for name, count in metadata["counts"].items()}
        self._metrics = metadata["metrics"]
        self.evaluations = _load_evaluations(self.run_dir, step)
        return self.mesh.shard_state(state)

    def _resume_hint(self) -> str:
        if run_dirs.run_status(self.run_dir) == "no_checkpoint":
            return f"{self.run_dir} has no checkpoint yet: start it again with --auto-resume"
        return f"--resume continues {self.run_dir} from its newest checkpoint, with any number of processes"


def _load_evaluations(run_dir: Path, last_step: int) -> list[dict[str, Any]]:
    """Read the records of a run's evaluations up to step `last_step`.

    If an evaluation was repeated, only its last record is returned. If the file is missing or damaged, the
    result is empty, because a run can be resumed without these records.
    """
    try:
        records = [r for r in read_records(run_dir / run_dirs.EVALUATIONS) if r["step"] <= last_step]
        known = {(record["step"], record.get("split"), record.get("mode")): record for record in records}
        return sorted(known.values(), key=lambda record: record["step"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("the previous evaluations of %s could not be read: %s", run_dir, error)
        return []


@contextlib.contextmanager
def _parent_run(
    algorithm: Algorithm,
    run_dir: Path,
    status: run_dirs.RunStatus,
    extend: bool,
    init_from: CheckpointRef | None,
    runs: Sequence[Run],
) -> Iterator[None]:
    """Create or reopen the folder of a run with several seeds, and lock it.

    At the end of the context, the folder's `run.json` is updated. The caller adds the runs of the seeds to
    `runs` within the context.
    """
    if not algorithm.mesh.is_first_process:
        algorithm.mesh.wait_for_all()
        yield
        return
    config = algorithm.config
    if status == "new":
        metadata = {**_describe(algorithm), "num_seeds": config.num_seeds}
        if init_from is not None:
            metadata["init_from"] = {"run": str(init_from.run.absolute())}
        run_dirs.create_run(run_dir, config, metadata)
    else:
        _check_same_run(algorithm, run_dir, extend, init_from)
        before = run_dirs.load_run_config(run_dir, type(config))
        if before != config:
            run_dirs.extend_run(run_dir, config, {"config": config_digest(before)})
    with lock_folder(run_dir):
        remove_stale_temporaries(run_dir)
        algorithm.mesh.wait_for_all()
        run_dirs.write_metadata(run_dir, {"status": "running"})

        def write_combined_metadata() -> None:
            seeds = [run_dir / f"seed_{number}" for number in range(config.num_seeds)]
            existing = [seed for seed in seeds if (seed / run_dirs.METADATA).is_file()]
            counts = {name for run in runs for name in run.counts}
            combined = _combine_metadata([run_dirs.load_metadata(seed) for seed in existing], counts)
            run_dirs.write_metadata(run_dir, combined)

        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                write_combined_metadata()
            raise
        with _raise_save_error(run_dir):
            write_combined_metadata()


@contextlib.contextmanager
def _raise_save_error(run_dir: Path) -> Iterator[None]:
    """Convert `OSError` in the `with` block to `SaveError`."""
    try:
        yield
    except OSError as error:
        raise SaveError(
            f"the result of {run_dir} could not be saved: {error}; after fixing the cause, continue the run "
            "with --auto-resume"
        ) from error


def _combine_metadata(seeds: list[dict[str, Any]], counts: Collection[str]) -> dict[str, Any]:
    """Combine the `run.json` entries of the individual seeds into entries for the parent folder's `run.json`.

    The training time and the entries named in `counts` are summed. The status is that of the least successful
    seed. Other entries are those of the first seed.
    """
    own = {"format", "phalanx", "name", "machine", "command", "commit", "jax", "started", "updated"}
    own |= {"init_from", "extended"}
    combined = {name: value for name, value in (seeds[0] if seeds else {}).items() if name not in own}
    for name in combined:
        if name == "seconds" or name in counts:
            combined[name] = sum(seed.get(name, 0) for seed in seeds)
    states = {seed.get("status") for seed in seeds}
    order = ("failed", "interrupted", "running", "finished")
    combined["status"] = next((status for status in order if status in states), "interrupted")
    return combined


def _combine_progress(seeds: list[Progress]) -> Progress:
    """Combine the progress of several seeds. Counts are summed, and metrics are averaged."""
    names = [name for name in seeds[0].metrics if all(name in seed.metrics for seed in seeds)]
    return Progress(
        min(seed.update for seed in seeds),
        seeds[0].num_updates,
        sum(seed.seconds for seed in seeds),
        _sum_counts(seeds),
        # The seeds take turns, so the overall rate is the harmonic mean.
        statistics.harmonic_mean([seed.per_second for seed in seeds]),
        {name: statistics.fmean(seed.metrics[name] for seed in seeds) for name in names},
        sum(seed.num_episodes for seed in seeds),
    )


def _sum_counts(seeds: Sequence[Progress | TrainResult]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        total.update(seed.counts)
    return dict(total)


def _combine_results(run_dir: Path, seeds: list[TrainResult]) -> TrainResult:
    """Combine the results of several seeds into one for the parent folder. Counts and times are summed."""
    return TrainResult(
        run_dir=run_dir,
        update=min(seed.update for seed in seeds),
        interrupted=any(seed.interrupted for seed in seeds),
        signal=seeds[0].signal,
        seconds=sum(seed.seconds for seed in seeds),
        counts=_sum_counts(seeds),
        evaluations=[
            {**record, "seed": number} for number, seed in enumerate(seeds) for record in seed.evaluations
        ],
        seeds=seeds,
    )


def _check_same_run(
    algorithm: Algorithm, run_dir: Path, extend: bool, init_from: CheckpointRef | None
) -> None:
    """Raise ValueError if an existing run cannot be continued with this algorithm and its config."""
    config = algorithm.config
    run_dirs.check_same_algorithm(run_dir, algorithm.name)
    run_dirs.reject_links(run_dir)
    before = run_dirs.load_run_config(run_dir, type(config))
    if extend:
        before = run_dirs.extend_config(before, config)
    run_dirs.check_same_config(run_dir, before, config)
    check_same_code(run_dir, algorithm.code_identity())
    if init_from is not None:
        run_dirs.check_same_init(run_dir, init_from.run)


def _describe(algorithm: Algorithm) -> dict[str, Any]:
    """Return the entries of `run.json` that identify the algorithm, the environment and the code of a run."""
    env = getattr(algorithm.config, "env", None)
    about: dict[str, Any] = {"algorithm": algorithm.name, "env": getattr(env, "id", None)}
    about["code"] = algorithm.code_identity()
    address = algorithm.address()
    return about if address == algorithm.name else {**about, "entry_point": address}


def count_parameters(network: PyTree) -> int:
    """Return the number of parameters of a network: the total number of elements of its arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(network) if isinstance(leaf, jax.Array))


def batch_data(result: UpdateResult, speed: Mapping[str, Any], update: int) -> dict[str, Any]:
    """Convert the result of an update to the format that `ExperimentLogger.log_batch_step` expects.

    `speed` contains counts and throughput, which are added to the metrics.
    """
    episodes = {name: array.reshape(-1) for name, array in result.episodes.items()}
    count = {"num_episodes": _num_episodes(result.episodes)} if episodes else {}
    return {"update_step": update, **episodes, **result.metrics, **speed, **count}


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric entries of an evaluation record."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, numbers.Real) and not isinstance(value, bool)
    }


def _num_episodes(episodes: Mapping[str, Any]) -> Any:
    """Return the number of episodes in `UpdateResult.episodes`."""
    ended = episodes.get("episode_mask")
    return episodes["episode_returns"].size if ended is None else ended.sum()


@jax.jit
def _episode_means(episodes: dict[str, Array]) -> tuple[dict[str, Array], Array | int]:
    """Return metrics of the episodes that ended in an update, and the number of these episodes.

    The metrics are `reward_mean` and, if `episodes` has a `success_mask`, `success_rate`.
    """
    if not episodes:
        return {}, 0
    ended = episodes.get("episode_mask")
    means = {"reward_mean": jnp.mean(episodes["episode_returns"], where=ended)}
    if "success_mask" in episodes:
        means["success_rate"] = jnp.mean(episodes["success_mask"].astype(jnp.float32), where=ended)
    return means, _num_episodes(episodes)
