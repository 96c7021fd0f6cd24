"""What is written of a run while it goes on: metrics, episodes, evaluations, facts; a folder for each seed.

Only the first process writes. What the logger's files look like is in `phalanx.logging`.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from phalanx.logging.experiment_logger import ExperimentLogger
from phalanx.training.algorithm import Algorithm, UpdateResult
from phalanx.training.processes import is_first_process, local
from phalanx.training.run_dir import FACTS, MakeHandlers, write_metadata

_LOG = logging.getLogger("phalanx.training")


def of_seed(tree: PyTree, seed: int, num_seeds: int) -> PyTree:
    """One seed's part of a learner or a report; all of it where there is no axis of seeds."""
    tree = local(tree)
    return tree if num_seeds == 1 else jax.tree.map(lambda leaf: leaf[seed] if np.ndim(leaf) else leaf, tree)


class Journal:
    """One logger for each seed, the evaluations, and `run.json`."""

    def __init__(
        self, algorithm: Algorithm, folder: Path, handlers: MakeHandlers, facts: Mapping[str, Any]
    ) -> None:
        self._algorithm, self._settings = algorithm, algorithm.config.logging
        seeds = algorithm.num_seeds
        self._folders = [folder] if seeds == 1 else [folder / f"seed_{seed}" for seed in range(seeds)]
        self._described = self._folders if seeds == 1 else [folder, *self._folders]
        self.evaluations: list[dict[str, Any]] = []
        self._failures: dict[str, int] = {}
        self._loggers: list[ExperimentLogger] = []
        self._writes = is_first_process()
        if self._writes:
            # Sampled episodes are played for the purpose, whole and with their states; see `log`.
            metrics_only = self._settings.model_copy(update={"sampling_enabled": False})
            for each in self._folders:
                each.mkdir(parents=True, exist_ok=True)
                logger = ExperimentLogger(metrics_only, handlers(each, algorithm.config))
                logger.log_config(algorithm.config, dict(facts))
                self._loggers.append(logger)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for logger in self._loggers:
            logger.close()
        for what, times in self._failures.items():
            if times > 1:
                _LOG.warning("%s, %d times in this run", what, times)

    def log(self, learner: PyTree, report: UpdateResult, update: int, rates: Mapping[str, Any]) -> None:
        """An update's metrics, and from time to time a few whole episodes."""
        settings = self._settings
        logging_due = settings.batched_logging_enabled and update % settings.log_frequency == 0
        sampling_due = settings.sampling_enabled and update % settings.sample_frequency == 0
        for seed, logger in enumerate(self._loggers):
            if logging_due:
                own, own_rates = self._own((report, rates), seed)
                logger.log_batch_step(batch_data(own, own_rates, update))
            if sampling_due:
                key = jax.random.fold_in(jax.random.key(self._algorithm.seed), update)
                for episode in self._algorithm.sample_episodes(self._own(learner, seed), key, update):
                    logger.log_episode_summary(episode)

    def evaluate(
        self, learner: PyTree, update: int, counts: Mapping[str, Any], *, last: bool
    ) -> list[dict[str, Any]]:
        """Every process evaluates, so that none waits for the first at the next update."""
        seeds, before = self._algorithm.num_seeds, len(self.evaluations)
        for seed in range(seeds):
            own = {name: int(count) for name, count in self._own(counts, seed).items()}
            for record in self._algorithm.evaluate(self._own(learner, seed), update, last):
                line = {**record, "timestamp": time.time(), "step": update, **own}
                line |= {} if seeds == 1 else {"seed": seed}
                self.evaluations.append(line)
                if self._writes:
                    self._loggers[seed].log_evaluation(line)
        return self.evaluations[before:]

    def describe(self, facts: Mapping[str, Any], counts: Mapping[str, Any] | None = None) -> None:
        """Renew `run.json`; counts are of all seeds together in the run's, and in each seed's its own."""
        several = {"num_seeds": len(self._folders)} if len(self._folders) > 1 else {}
        for place, folder in enumerate(self._described if self._writes else []):
            own = self._own(counts or {}, place - 1) if several and place else counts or {}
            told = {name: int(np.sum(count)) for name, count in own.items()}
            with self.tolerating(f"{FACTS} could not be written"):
                write_metadata(folder, {**facts, **told, **(several if not place else {})})

    @contextlib.contextmanager
    def tolerating(self, what: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
        """A disk that is full, or gone, costs what was to be written on it but not the training."""
        try:
            yield
        except errors as error:
            self._failures[what] = self._failures.get(what, 0) + 1
            if self._failures[what] == 1:
                _LOG.warning("%s: %s: %s; training goes on", what, type(error).__name__, error)

    def _own(self, tree: PyTree, seed: int) -> PyTree:
        return of_seed(tree, seed, self._algorithm.num_seeds)


def batch_data(report: UpdateResult, rates: Mapping[str, Any], update: int) -> dict[str, Any]:
    """An update's report as `ExperimentLogger.log_batch_step` takes it: every episode that ended counts."""
    episodes = {name: array.reshape(-1) for name, array in report.episodes.items()}
    return {"update_step": update, **episodes, **report.metrics, **rates}
