"""The run loop that all algorithms share: updates, logging, evaluations and checkpoints."""

import collections
import contextlib
import dataclasses
import logging
import numbers
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from phalanx.compilation_cache import enable_compilation_cache
from phalanx.core.environment import without_weak_type
from phalanx.io.append_only import read_records
from phalanx.io.atomic import remove_stale_temporaries
from phalanx.io.checksum import CorruptFileError
from phalanx.io.lock import lock_folder
from phalanx.logging.experiment_logger import ExperimentLogger
from phalanx.training import run_dir as run_dirs
from phalanx.training.algorithm import (
    Algorithm,
    DataExhausted,
    Progress,
    TrainResult,
    UpdateResult,
    algorithm_address,
)
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
from phalanx.training.stop_signals import StopRequest, stop_on_signals
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
    the same result as a separate run with that seed. The seeds run one after the other and share compiled
    programs.

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
    if jax.process_count() > 1:
        raise ValueError(
            f"{algorithm.name} trains in one process, and each of {jax.process_count()} processes would "
            "repeat the complete training: start a single process"
        )
    enable_compilation_cache()
    path = Path(run_dir)
    ref = CheckpointRef.parse(init_from) if isinstance(init_from, str) else init_from
    status: run_dirs.RunStatus = "new"
    if auto_resume:
        status = run_dirs.run_status(path)
    elif resume or extend:
        status = "resumable"
    with stop_on_signals() as stop:
        options: dict[str, Any] = {"extend": extend, "handlers": handlers, "stop": stop}
        if algorithm.config.num_seeds == 1:
            return Run(algorithm, path, status, init_from=ref, **options).run(show)
        return _train_seeds(algorithm, path, status, ref, show, options)


def _train_seeds(
    algorithm: Algorithm,
    path: Path,
    status: run_dirs.RunStatus,
    init_from: CheckpointRef | None,
    show: Show,
    options: dict[str, Any],
) -> TrainResult:
    """Train with several seeds, one after the other. The arguments are those of `train` and `Run`."""
    config = algorithm.config
    results: list[TrainResult] = []
    counts: set[str] = set()

    def show_total(progress: Progress) -> None:
        # The updates of all seeds count as one training.
        counts.update(progress.counts)
        done = sum(result.update for result in results)
        num_updates = config.num_seeds * progress.num_updates
        show(dataclasses.replace(progress, update=done + progress.update, num_updates=num_updates))

    try:
        with _parent_run(algorithm, path, status, options["extend"], init_from, counts):
            for number in range(config.num_seeds):
                one = config.model_copy(update={"seed": config.seed + number, "num_seeds": 1})
                folder = path / f"seed_{number}"
                # A seed may have been stopped before its first checkpoint, or not have been started.
                of_seed = "new" if status == "new" else run_dirs.run_status(folder)
                ref = None if init_from is None else init_from.for_seed(number)
                run = Run(algorithm._replace_config(one), folder, of_seed, init_from=ref, **options)
                results.append(run.run(show_total))
                if results[-1].signal is not None:
                    break
    finally:
        algorithm.close()  # the runs close only their copies
    return _combine_results(path, config.num_seeds, results)


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
        stop: The signals that stop the run.
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
        stop: StopRequest,
    ) -> None:
        self.algorithm, self.run_dir, self.status = algorithm, run_dir, status
        self.extend, self.init_from, self.handlers, self.stop = extend, init_from, handlers, stop
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

    def run(self, show: Show) -> TrainResult:
        """Create or resume the run, train until the last update or a signal, and save the result.

        Args:
            show: Function that is called with the progress after every update.
        """
        first = None
        with self._open():
            while self.stop.signal is None and (progress := self._advance()) is not None:
                first = first or progress
                show(progress)
            result = self._finish(self.stop.signal)
        return dataclasses.replace(result, first=first, last=self.last if first else None)

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Create or resume the run, and release its resources at the end of the context."""
        with contextlib.ExitStack() as stack:
            try:
                self._start(stack)
                yield
            except BaseException:
                if self._is_open:
                    self._write_metadata({"status": "failed"})
                raise
            finally:
                self.algorithm.close()
                for what, times in self._failures.items():
                    if times > 1:
                        _LOG.warning("%s, %d times in this run", what, times)

    def _start(self, stack: contextlib.ExitStack) -> None:
        algorithm, config = self.algorithm, self.algorithm.config
        resuming = self.status in ("resumable", "finished")
        if self.status != "new":
            _check_same_run(algorithm, self.run_dir, self.extend, self.init_from)
        key = jax.random.key(config.seed)
        state = algorithm.init(key)
        metadata = _describe(algorithm)
        if self.init_from is not None and not resuming:
            params, metadata["init_from"] = load_params(self.init_from, state.params)
            state = algorithm.init(key, params)
        if self.status == "new":
            run_dirs.create_run(self.run_dir, config, metadata)
        stack.enter_context(lock_folder(self.run_dir))
        remove_stale_temporaries(self.run_dir)
        self._checkpoints = stack.enter_context(Checkpointer(self.run_dir, config.checkpoint))
        # A weak type would change in the first update, whose program would then be compiled twice.
        self.state = jax.tree.map(without_weak_type, self._restore(state) if resuming else state)
        self._first_update = self.update
        self._logger = ExperimentLogger(config.logging, self.handlers(self.run_dir, config))
        stack.callback(self._logger.close)
        self._logger.log_config(config, self._metadata())
        self._is_open = True
        self._write_metadata({**self._metadata(), "status": "running"})
        self._saved_at = time.monotonic()
        if not resuming and self._evaluate(final=False):
            self._save()

    @property
    def _is_overdue(self) -> bool:
        """True if the last checkpoint is older than `checkpoint.minutes`."""
        minutes = self.algorithm.config.checkpoint.minutes
        return minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes

    def _advance(self) -> Progress | None:
        """Run one update and log it. Evaluate the policy and save a checkpoint when due.

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
            # Waits until the update has been computed.
            result = jax.device_get(
                UpdateResult(dict(result.metrics), dict(result.episodes), dict(result.counts))
            )
        except DataExhausted:
            self._exhausted = True
            return None
        self._metrics = None
        self.last = self._count(result, began)
        self._log(result, self.last)
        if self.update < total:  # `_finish` evaluates and saves the last update
            is_best = every > 0 and self.update % every == 0 and self._evaluate(final=False)
            if is_best or self._is_overdue or self.update % config.checkpoint.every == 0:
                self._save()
        return self.last

    def _finish(self, signal: int | None) -> TrainResult:
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
        """Add the counts of an update to the totals, and return the progress.

        Args:
            result: Result of the update, with NumPy arrays.
            began: Value of `time.perf_counter()` at the start of the update.
        """
        means, num_episodes = _episode_means(result.episodes)
        known, counts = {**result.metrics, **means}, result.counts
        seconds = time.perf_counter() - began
        self.update += 1
        self.seconds += seconds
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + int(count)
        rate = int(counts[self.algorithm.unit]) / seconds
        metrics = {} if self.last is None else dict(self.last.metrics)
        metrics |= {name: float(known[name]) for name in self.algorithm.headline if name in known}
        num_updates = self.algorithm.num_updates
        if self.last is not None:
            num_episodes = num_episodes or self.last.num_episodes
        return Progress(
            self.update, num_updates, self.seconds, dict(self.counts), rate, metrics, num_episodes
        )

    def _log(self, result: UpdateResult, progress: Progress) -> None:
        """Log metrics and sampled episodes when they are due."""
        rate = {f"{self.algorithm.unit}_per_second": progress.per_second, "seconds": progress.seconds}

        def sample_episodes() -> list[dict[str, Any]]:
            # `jax.random.fold_in` would have to be compiled.
            seed = np.random.SeedSequence((self.algorithm.config.seed, self.update)).generate_state(1)[0]
            return self.algorithm.sample_episodes(unreplicate(self.state), jax.random.key(seed), self.update)

        data = batch_data(result, {**progress.counts, **rate}, self.update)
        self._logger.log_batch_step(data, sample_episodes)

    def _evaluate(self, *, final: bool) -> bool:
        """Evaluate the policy and log the results.

        Returns:
            True if the metric that `checkpoint.best_metric` names has its best value so far.
        """
        settings = self.algorithm.config.evaluation
        results = self.algorithm.evaluate(unreplicate(self.state), settings, final)
        records = [result.as_record() for result in results]
        for record in records:
            logged = {**record, "timestamp": time.time(), "step": self.update, **self.counts}
            self.evaluations.append(logged)
            self._logger.log_evaluation(logged)
        self._metrics = _numbers(records[0]) if records else None
        if (metric := self.algorithm.config.checkpoint.best_metric) is None:
            return False
        if self._metrics is None:
            raise ValueError(f"checkpoint.best_metric is {metric!r}, but this run has no evaluations")
        return self._checkpoints.is_better(self._metrics)

    def _save(self, *, final: bool = False) -> None:
        """Save a checkpoint and, if the run continues, update `run.json`.

        Args:
            final: Whether this is the last checkpoint of the run, which must be saved.
        """
        algorithm = self.algorithm
        self._saved_at = time.monotonic()
        metadata = {
            "seconds": self.seconds,
            "counts": self.counts,
            "config": config_digest(algorithm.config),
            "data": algorithm.fingerprint(),
            "metrics": self._metrics,
            "params": [
                name for name, leaf in arrays_by_name({"params": self.state.params}).items() if leaf.size
            ],
        }
        with self._tolerate("a checkpoint could not be saved", final=final):
            self._checkpoints.save(self.update, self.state, metadata, algorithm.state_dict())
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
        if self.run_dir.is_dir():
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
        for step, metadata in intact_checkpoints(self._checkpoints, self.run_dir):
            check_metadata(self.run_dir, step, metadata, before)
            if metadata["data"] != algorithm.fingerprint():
                raise ValueError(
                    f"the data has changed since checkpoint {step} of {self.run_dir} was saved: restore the "
                    "data that it was trained on, or start a new run with another --out"
                )
            try:
                state = self._checkpoints.restore(step, state)
                algorithm.load_state_dict(self._checkpoints.load_state_dict(step))
            except (CorruptFileError, FileNotFoundError) as error:
                _LOG.warning("skipping checkpoint %d of %s: %s", step, self.run_dir, error)
                continue
            break
        else:
            raise ValueError(f"{self.run_dir} has no intact checkpoint; start a new run with another --out")
        if before != config:
            run_dirs.extend_run(self.run_dir, config, {"config": metadata["config"], "update": step})
        self.update, self.seconds = step, float(metadata["seconds"])
        self.counts = {name: int(count) for name, count in metadata["counts"].items()}
        self._metrics = metadata["metrics"]
        self.evaluations = _load_evaluations(self.run_dir, step)
        return state


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
    counts: Collection[str],
) -> Iterator[None]:
    """Create or reopen the folder of a run with several seeds, and lock it.

    At the end of the context, the folder's `run.json` is updated. The caller adds the names of the counts to
    `counts` within the context.
    """
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
        run_dirs.write_metadata(run_dir, {"status": "running"})

        def write_combined_metadata() -> None:
            seeds = [run_dir / f"seed_{number}" for number in range(config.num_seeds)]
            existing = [seed for seed in seeds if (seed / run_dirs.METADATA).is_file()]
            combined = _combine_metadata([run_dirs.load_metadata(seed) for seed in existing], counts)
            if combined["status"] == "finished" and len(existing) < len(seeds):
                combined["status"] = "interrupted"
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
    """Combine the `run.json` entries of the seeds into entries for the `run.json` of the parent folder.

    The training time and the counts are summed. The status is that of the least successful seed. Other
    entries are those of the first seed.
    """
    own = {"format", "phalanx", "name", "machine", "command", "commit", "jax", "started", "updated"}
    own |= {"init_from", "extended"}
    combined = {name: value for name, value in (seeds[0] if seeds else {}).items() if name not in own}
    for name in ("seconds", *counts):
        if name in combined:
            combined[name] = sum(seed.get(name, 0) for seed in seeds)
    states = {seed.get("status") for seed in seeds}
    order = ("failed", "interrupted", "running", "finished")
    combined["status"] = next((status for status in order if status in states), "interrupted")
    return combined


def _sum_counts(seeds: Sequence[TrainResult]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        total.update(seed.counts)
    return dict(total)


def _combine_results(run_dir: Path, num_seeds: int, seeds: list[TrainResult]) -> TrainResult:
    """Combine the results of several seeds into one for the parent folder. Counts and times are summed.

    If a signal stopped the training, there may be fewer results than `num_seeds`.
    """
    return TrainResult(
        run_dir=run_dir,
        update=min(seed.update for seed in seeds) if len(seeds) == num_seeds else 0,
        interrupted=any(seed.interrupted for seed in seeds) or len(seeds) < num_seeds,
        signal=seeds[-1].signal,
        seconds=sum(seed.seconds for seed in seeds),
        counts=_sum_counts(seeds),
        evaluations=[
            {**record, "seed": number} for number, seed in enumerate(seeds) for record in seed.evaluations
        ],
        first=seeds[0].first,
        last=seeds[-1].last,
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
    check_same_code(run_dir, algorithm._code())
    if init_from is not None:
        run_dirs.check_same_init(run_dir, init_from.run)


def _describe(algorithm: Algorithm) -> dict[str, Any]:
    """Return the entries of `run.json` that identify the algorithm, the environment and the code of a run."""
    env = getattr(algorithm.config, "env", None)
    about: dict[str, Any] = {"algorithm": algorithm.name, "env": getattr(env, "id", None)}
    about["code"] = algorithm._code()
    address = algorithm_address(type(algorithm))
    return about if address == algorithm.name else {**about, "entry_point": address}


def count_parameters(network: PyTree) -> int:
    """Return the number of parameters of a network: the total number of elements of its arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(network) if isinstance(leaf, jax.Array))


def batch_data(result: UpdateResult, speed: Mapping[str, Any], update: int) -> dict[str, Any]:
    """Convert the result of an update to the format that `ExperimentLogger.log_batch_step` expects.

    `speed` contains counts and throughput, which are added to the metrics.
    """
    episodes = {name: np.asarray(array).reshape(-1) for name, array in result.episodes.items()}
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
    return np.size(episodes["episode_returns"]) if ended is None else np.sum(ended)


def _episode_means(episodes: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    """Return metrics of the episodes that ended in an update, and the number of these episodes.

    The metrics are `reward_mean` and, if `episodes` has a `success_mask`, `success_rate`. There are none if
    no episode ended, because NaN would look like divergence.
    """
    count = int(_num_episodes(episodes)) if episodes else 0
    if not count:
        return {}, 0
    ended = episodes.get("episode_mask", True)
    means = {"reward_mean": float(np.mean(episodes["episode_returns"], where=ended))}
    if "success_mask" in episodes:
        means["success_rate"] = float(np.mean(episodes["success_mask"], where=ended))
    return means, count
