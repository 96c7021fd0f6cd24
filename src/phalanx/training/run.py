"""A run: one training from its first update to its last, whatever the algorithm, that can end at any time.

What an update is, is the `Algorithm`'s; what is written of a run is in `journal`, its folder in `folder`.
"""

import contextlib
import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from phalanx.io.atomic import remove_stale_temporaries
from phalanx.io.checksum import CorruptFileError
from phalanx.io.lock import lock_folder
from phalanx.training import run_dir as folders
from phalanx.training.algorithm import Algorithm, Progress, RunConfig, TrainResult, Update, UpdateResult
from phalanx.training.best import BestCheckpoint
from phalanx.training.checkpoints import Checkpointer, check_facts, config_digest, whole
from phalanx.training.journal import Journal, of_seed
from phalanx.training.processes import (
    ProcessLostError,
    agree,
    any_process,
    is_first_process,
    local,
    wait_for_all,
)
from phalanx.training.stop_signals import Stop, stop_on_signals
from phalanx.training.warm_start import CheckpointRef, begin_with, weight_names

_LOG = logging.getLogger("phalanx.training")
Show = Callable[[Progress], None]
Resume = bool | Literal["auto"]
_DISK_ERRORS = (OSError, ValueError, RuntimeError)
"""Orbax passes on what its storage library says of a disk as a ValueError or a RuntimeError."""


def train(
    algorithm: Algorithm,
    folder: str | Path,
    *,
    resume: Resume = False,
    extend: bool = False,
    init_from: CheckpointRef | str | None = None,
    handlers: folders.MakeHandlers = folders.default_handlers,
    show: Show = lambda progress: None,
) -> TrainResult:
    """Train to the end, or until Ctrl-C or SIGTERM, which save and stop; a second one stops at once.

    A new run refuses a folder that holds something; `resume` goes on from the newest checkpoint, to the same
    numbers as a run that was never interrupted, and `"auto"` starts or goes on, whichever it is. `extend`
    lets a run go on with more updates than it was started with. `init_from` names a run, as `RUN`,
    `RUN@STEP` or `RUN@best`, whose weights a new one begins with. `handlers` are those of the run's logger;
    `show` is called after every update.
    """
    origin = CheckpointRef.parse(init_from) if isinstance(init_from, str) else init_from
    restart = resume == "auto" and folders.run_status(folder) in ("new", "killed early")
    goes_on = bool(resume) and not restart
    return Run(algorithm, Path(folder), goes_on, handlers, show, restart, extend, origin).train()


@dataclasses.dataclass
class Run:
    """One training in one folder; `train` explains the arguments."""

    algorithm: Algorithm
    folder: Path
    resume: bool
    handlers: folders.MakeHandlers
    show: Show
    restart: bool = False
    """Whether a run that was killed before its first checkpoint may be there."""
    extend: bool = False
    init_from: CheckpointRef | None = None
    update: int = 0
    """Updates made so far."""
    seconds: float = 0.0
    """Spent in them."""
    counts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What they went through; arrays over the seeds where there are several."""
    first: Progress | None = None
    last: Progress | None = None

    def train(self) -> TrainResult:
        """All updates that are left, and what goes with them."""
        algorithm, config = self.algorithm, self.algorithm.config
        again = self.restart and (self.folder / folders.FACTS).is_file()
        if self.resume or again:
            self._check_same_run()
        asked = f"{self.resume} {config_digest(config)} {algorithm.data_fingerprint()}"
        agree("config, data or --resume", hashlib.sha256(asked.encode()).hexdigest())
        start, update = algorithm.compile()
        learner = start(jax.random.key(algorithm.seed))
        facts: dict[str, Any] = {"kind": algorithm.kind}
        if self.init_from is not None and not self.resume:
            learner, facts["init_from"] = begin_with(algorithm, learner, self.init_from)
        self.counts = {algorithm.unit: 0}
        with contextlib.ExitStack() as stack:
            if is_first_process():
                if not self.resume and not again:
                    folders.create_run(self.folder, config, facts)
                stack.enter_context(lock_folder(self.folder))
                remove_stale_temporaries(self.folder)
                checkpoints = stack.enter_context(Checkpointer(self.folder, keep=config.checkpoint.keep))
            wait_for_all()
            if not is_first_process():
                checkpoints = stack.enter_context(Checkpointer(self.folder, read_only=True))
            kept = BestCheckpoint(self.folder, config.checkpoint, writes=is_first_process())
            best = stack.enter_context(contextlib.closing(kept))
            if self.resume:
                learner = self._restored(checkpoints, learner)
            journal = stack.enter_context(
                Journal(algorithm, self.folder, self.handlers, self._facts(learner))
            )
            journal.describe({**self._facts(learner), "status": "running"})
            stop = stack.enter_context(stop_on_signals())
            try:
                return self._go(learner, update, checkpoints, best, journal, stop)
            except ProcessLostError as error:
                journal.describe({"status": "interrupted"})
                raise ProcessLostError(f"{error}; {self._way_on()}") from error
            except BaseException:
                journal.describe({"status": "failed"})
                raise

    def _go(
        self,
        learner: PyTree,
        update: Update,
        checkpoints: Checkpointer,
        best: BestCheckpoint,
        journal: Journal,
        stop: Stop,
    ) -> TrainResult:
        algorithm, config = self.algorithm, self.algorithm.config
        total, every, begun = algorithm.num_updates, config.evaluation.every, self.update
        saved_at, exhausted = time.monotonic(), False
        if not self.resume:
            self._evaluate(learner, journal, best)
        while self.update < total:
            stopped, overdue = any_process((stop.signal is not None, self._is_overdue(saved_at)))
            if stopped:
                break
            if self.update > begun and (overdue or self.update % config.checkpoint.every == 0):
                self._save(learner, checkpoints, journal, "running")
                saved_at = time.monotonic()
            began = time.perf_counter()
            try:
                learner, report = update(learner)
            except StopIteration:
                exhausted = True
                break
            self.last, rates = self._advanced(report, began)
            self.first = self.first or self.last
            journal.log(learner, report, self.update, rates)
            self.show(self.last)
            if every and self.update % every == 0 and self.update < total:
                self._evaluate(learner, journal, best)
        finished = exhausted or self.update >= total
        if finished and self.update > begun:
            self._evaluate(learner, journal, best, last=True)
        self._save(learner, checkpoints, journal, "finished" if finished else "interrupted")
        if is_first_process():
            with journal.tolerating("what was learned could not be written"):
                algorithm.finish(local(learner), self.folder)
        return TrainResult(
            run=self.folder,
            update=self.update,
            interrupted=not finished,
            signal=stop.signal,
            seconds=self.seconds,
            counts=self._totals(),
            evaluations=journal.evaluations,
            first=self.first,
            last=self.last,
            learner=learner,
        )

    def _advanced(self, report: UpdateResult, began: float) -> tuple[Progress, dict[str, Any]]:
        """Wait for an update and count it: how far and how fast, as it is shown and as it is logged."""
        unit, own = self.algorithm.unit, local(report)
        numbers, counts = jax.device_get((_headline(own, self.algorithm.headline), own.counts))
        lasted = time.perf_counter() - began
        self.update += 1
        self.seconds += lasted
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + np.asarray(count, np.int64)
        rate = np.asarray(counts[unit]) / lasted
        known = {} if self.last is None else self.last.metrics
        progress = Progress(
            self.update,
            self.algorithm.num_updates,
            self.seconds,
            self._totals(),
            float(np.sum(rate)),
            {**known, **{name: float(np.mean(number)) for name, number in numbers.items()}},
        )
        logged = {f"{unit.rpartition('_')[2]}_per_second": rate, "seconds": self.seconds}
        return progress, {**self.counts, **logged}

    def _totals(self) -> dict[str, int]:
        return {name: int(np.sum(count)) for name, count in self.counts.items()}

    def _is_overdue(self, saved_at: float) -> bool:
        minutes = self.algorithm.config.checkpoint.minutes
        return minutes is not None and time.monotonic() - saved_at >= 60 * minutes

    def _evaluate(
        self, learner: PyTree, journal: Journal, best: BestCheckpoint, *, last: bool = False
    ) -> None:
        """Measure what was learned, and keep it where it is the best so far."""
        records = journal.evaluate(learner, self.update, self.counts, last=last)
        score = best.score(records)
        if score is not None:
            learner = self.algorithm.whole(learner)
            with journal.tolerating("the best checkpoint could not be saved", _DISK_ERRORS):
                best.keep(score, self.update, learner, self._saved(learner))

    def _saved(self, learner: PyTree) -> dict[str, Any]:
        """The facts of a checkpoint, but for the algorithm's own."""
        algorithm = self.algorithm
        return {
            "update": self.update,
            "seconds": self.seconds,
            "counts": {name: np.asarray(count).tolist() for name, count in self.counts.items()},
            "config": config_digest(algorithm.config),
            "data": algorithm.data_fingerprint(),
            "weights": weight_names(algorithm, learner),
            "num_seeds": algorithm.num_seeds,
            "algorithm": {},
        }

    def _save(self, learner: PyTree, checkpoints: Checkpointer, journal: Journal, status: str) -> None:
        algorithm = self.algorithm
        learner = algorithm.whole(learner)
        if not is_first_process():
            return
        with journal.tolerating("a checkpoint could not be saved", _DISK_ERRORS):
            own = algorithm.save(self.folder, self.update, checkpoints.steps())
            checkpoints.save(self.update, learner, self._saved(learner) | {"algorithm": own})
        told = {"updates": self.update, "seconds": self.seconds, "status": status}
        journal.describe({**self._facts(learner), **told}, self.counts)

    def _facts(self, learner: PyTree) -> dict[str, Any]:
        """For `run.json`."""
        algorithm = self.algorithm
        own = of_seed(learner, 0, algorithm.num_seeds)
        size = count_parameters(algorithm.policy(own))
        return {"kind": algorithm.kind, "num_parameters": size, **algorithm.facts(own)}

    def _check_same_run(self) -> None:
        config = self.algorithm.config
        folders.check_same_kind(self.folder, self.algorithm.kind)
        begun = folders.read_config(self.folder, type(config))
        if self.extend:
            begun = folders.extend_config(begun, self.algorithm.length, config)
        folders.check_same_config(self.folder, begun, config)
        if self.init_from is not None:
            folders.check_same_origin(self.folder, self.init_from.run)

    def _restored(self, checkpoints: Checkpointer, learner: PyTree) -> PyTree:
        """The learner of the newest checkpoint; the algorithm, the clock and the counts go on from there."""
        config = self.algorithm.config
        begun = folders.read_config(self.folder, type(config))
        learner = self.algorithm.whole(learner)
        for step, facts in whole(checkpoints, self.folder):
            self._check_saved(step, facts, begun)
            try:
                learner = checkpoints.restore(step, learner)
                self.algorithm.restore(self.folder, facts["algorithm"])
            except (CorruptFileError, FileNotFoundError) as error:
                _LOG.warning("checkpoint %d of %s is passed over: %s", step, self.folder, error)
                continue
            break
        else:
            raise ValueError(f"no checkpoint of {self.folder} is whole; start a new run with another --out")
        agree("newest checkpoint", f"{step:020d}")
        if begun != config and is_first_process():
            folders.extend_run(self.folder, config, {"config": facts["config"], "update": step})
        self.update, self.seconds = step, float(facts["seconds"])
        self.counts = {name: np.asarray(count, np.int64) for name, count in facts["counts"].items()}
        return self.algorithm.share(learner)

    def _way_on(self) -> str:
        """How a run that lost a process goes on."""
        with Checkpointer(self.folder, read_only=True) as checkpoints:
            step = checkpoints.latest()
        if step is None:
            return f"{self.folder} has no checkpoint yet: start it again with --resume auto"
        return (
            f"checkpoint {step} of {self.folder} is whole: --resume goes on from there, with as many "
            "processes as you like, to the same weights"
        )

    def _check_saved(self, step: int, facts: Mapping[str, Any], begun: RunConfig) -> None:
        """A checkpoint must be of this config and of this data."""
        check_facts(self.folder, step, facts, begun)
        if facts["data"] != self.algorithm.data_fingerprint():
            raise ValueError(
                f"the data has changed since checkpoint {step} of {self.folder} was saved: go on with the "
                "data that it was trained on, or start a new run with another --out"
            )


def count_parameters(network: PyTree) -> int:
    """Numbers that a network learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(network) if isinstance(leaf, jax.Array))


def _headline(report: UpdateResult, names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of these names that an update has."""
    known = {**report.metrics, **(_episode_means(dict(report.episodes)) if report.episodes else {})}
    return {name: known[name] for name in names if name in known}


@jax.jit
def _episode_means(episodes: dict[str, Array]) -> dict[str, Array]:
    ended = episodes.get("episode_mask")
    means = {"reward_mean": jnp.mean(episodes["episode_returns"], where=ended)}
    if "success_mask" in episodes:
        means["success_rate"] = jnp.mean(episodes["success_mask"].astype(jnp.float32), where=ended)
    return means
