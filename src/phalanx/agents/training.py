"""Running a training: update after update, with logs, evaluations, checkpoints, and a clean end at any time.

What an update is, is in `ppo`; what is trained on what is an `Experiment`, made for ARC in `arc_training`.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import PyTree
from pydantic import Field

from phalanx.agents.ppo.parallel import Formation, is_first_process, local, wait_for_all
from phalanx.agents.ppo.update import PPO, Learner, Report
from phalanx.core.config import Config
from phalanx.core.environment import Key
from phalanx.logs import ExperimentLogger, LineFile, LoggingConfig
from phalanx.logs.records import as_json
from phalanx.runs import folder as runs
from phalanx.runs.checkpoints import Checkpoints
from phalanx.runs.safeguards import Stop, config_digest, newest_checkpoint, reported, stop_on_interrupt


class CheckpointConfig(Config):
    """When the whole state of a training is saved."""

    every: int = Field(default=50, ge=1)
    """Updates between checkpoints; the last update is always saved."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest are kept."""


class TrainingConfig(Protocol):
    """What every training's config has."""

    @property
    def seed(self) -> int: ...
    @property
    def num_seeds(self) -> int: ...
    @property
    def checkpoint(self) -> CheckpointConfig: ...
    @property
    def logging(self) -> LoggingConfig: ...


Evaluate = Callable[[Any, int, bool], list[dict[str, Any]]]
"""From a network, the updates made and whether it is the last time, to records for `evaluations.jsonl`."""
Watch = Callable[[Any, Key, int], list[dict[str, Any]]]
"""From a network, a key and the updates made, to a few whole episodes for the logger."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that a training is made of."""

    kind: str
    """`arc`, `proofs`, ...: which command made it, and which reads it."""
    config: Any
    """The whole config; a `TrainingConfig`."""
    ppo: PPO
    make_network: Callable[[Key], PyTree]
    evaluate: Evaluate
    watch: Watch
    evaluate_every: int
    """Updates between evaluations; 0 for none but the first and the last."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """For `run.json`."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a training stands, for whoever shows it."""

    update: int
    num_updates: int
    environment_steps: int
    seconds: float
    steps_per_second: float
    episode_return: float
    success_rate: float

    @property
    def seconds_left(self) -> float:
        """By the rate so far."""
        done = max(self.update, 1)
        return self.seconds / done * (self.num_updates - self.update)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    run: Path
    update: int
    interrupted: bool
    environment_steps: int
    seconds: float
    evaluations: list[dict[str, Any]]
    """All of this run's, the first and the last among them."""
    learner: Learner


Show = Callable[[Progress], None]


def train(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    handlers: runs.MakeHandlers = runs.files_only,
    show: Show = lambda progress: None,
    devices: list | None = None,
) -> Outcome:
    """Train to the end, or until Ctrl-C, which saves and stops; a second Ctrl-C stops at once.

    A new run refuses a folder that holds something; `resume` goes on from the newest checkpoint, to the same
    numbers as a run that was never interrupted.
    """
    config = experiment.config
    seeds = config.num_seeds if config.num_seeds > 1 else None
    formation = Formation.create(experiment.ppo, seeds, devices)
    learner = formation.start(experiment.make_network, jax.random.key(config.seed))
    if is_first_process() and not resume:
        runs.create_run(
            folder, config, {"kind": experiment.kind, **_size(learner, seeds), **experiment.facts}
        )
    wait_for_all("the run's folder")
    if resume:
        runs.check_same_config(folder, runs.read_config(folder, type(config)), config)
    with (
        Checkpoints(folder, keep=config.checkpoint.keep) as checkpoints,
        contextlib.ExitStack() as stack,
    ):
        seconds = 0.0
        if resume:
            learner, seconds = _restore(checkpoints, folder, config, learner)
        journal = _Journal(experiment, folder, handlers, seeds)
        stack.callback(journal.close)
        loop = _Loop(experiment, formation, checkpoints, journal, show, seconds)
        with stop_on_interrupt() as wanted:
            return loop.run(learner, folder, wanted)


def batch_data(report: Report, update: int, extra: Mapping[str, Any]) -> dict[str, Any]:
    """An update's report as `ExperimentLogger.log_batch_step` takes it: every episode that ended counts."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1), report.episodes)
    return {
        "update_step": update,
        "episode_returns": flat.returns,
        "episode_lengths": flat.lengths,
        "episode_mask": flat.done,
        **flat.measures,
        **report.metrics,
        **extra,
    }


@dataclasses.dataclass
class _Loop:
    experiment: Experiment
    formation: Formation
    checkpoints: Checkpoints
    journal: "_Journal"
    show: Show
    seconds: float

    def run(self, learner: Learner, folder: Path, wanted: Stop) -> Outcome:
        config, ppo = self.experiment.config, self.experiment.ppo.config
        seeds = config.num_seeds
        steps_per_update = ppo.steps_per_update * seeds
        update = int(local(learner.update).reshape(-1)[0])
        compiled = self.formation.compile_update(learner)
        if update == 0:
            self.journal.evaluate(learner, 0, last=False)
        self.seconds = max(self.seconds, 0.0)
        while update < ppo.num_updates and not wanted.asked:
            began = time.perf_counter()
            learner, report = compiled(learner)
            summary = jax.device_get(_summary(report))
            update += 1
            lasted = time.perf_counter() - began
            self.seconds += lasted
            rates = {
                "environment_steps": update * steps_per_update,
                "steps_per_second": steps_per_update / lasted,
                "seconds": self.seconds,
            }
            self.journal.log(learner, report, update, rates)
            self.show(
                Progress(
                    update,
                    ppo.num_updates,
                    update * steps_per_update,
                    self.seconds,
                    steps_per_update / lasted,
                    *(float(number) for number in summary),
                )
            )
            last = update == ppo.num_updates
            every = self.experiment.evaluate_every
            if last or (every and update % every == 0):
                self.journal.evaluate(learner, update, last=last)
            if last or update % config.checkpoint.every == 0:
                self._save(learner, update)
                self.journal.describe(update, self.seconds, "finished" if last else "running")
        interrupted = update < ppo.num_updates
        if interrupted:
            self._save(learner, update)
            self.journal.describe(update, self.seconds, "interrupted")
        return Outcome(
            folder,
            update,
            interrupted,
            update * steps_per_update,
            self.seconds,
            self.journal.evaluations,
            learner,
        )

    def _save(self, learner: Learner, update: int) -> None:
        facts = {
            "update": update,
            "seconds": self.seconds,
            "config": config_digest(self.experiment.config),
        }
        with reported(f"checkpoint {update} could not be saved"):
            self.checkpoints.save(update, learner, facts)


def _restore(checkpoints: Checkpoints, folder: Path, config: Any, like: Learner) -> tuple[Learner, float]:
    step, facts = newest_checkpoint(checkpoints, folder, config)
    return checkpoints.restore(step, like), float(facts["seconds"])


def load_network(run: Path, ppo: PPO, make_network: Callable[[Key], PyTree], config: Any) -> Any:
    """The network of a run's newest checkpoint; of several seeds, the first."""
    seeds = config.num_seeds if config.num_seeds > 1 else None
    formation = Formation.create(ppo, seeds, jax.devices()[:1])
    like = formation.start(make_network, jax.random.key(config.seed))
    with Checkpoints(run, keep=config.checkpoint.keep) as checkpoints:
        learner, _ = _restore(checkpoints, run, config, like)
    arrays = learner.network if seeds is None else jax.tree.map(lambda leaf: leaf[0], learner.network)
    return ppo.network(arrays)


class _Journal:
    """What is written of a run: by one logger for each seed, and only by the first process."""

    def __init__(
        self, experiment: Experiment, folder: Path, handlers: runs.MakeHandlers, seeds: int | None
    ) -> None:
        self.experiment, self.folder, self.seeds = experiment, folder, seeds
        self.evaluations: list[dict[str, Any]] = []
        self.writes = is_first_process()
        self.loggers: list[ExperimentLogger] = []
        if self.writes:
            folders = [folder] if seeds is None else [folder / f"seed_{seed}" for seed in range(seeds)]
            for each in folders:
                each.mkdir(parents=True, exist_ok=True)
                if each != folder:
                    runs.write_facts(each, {"kind": experiment.kind, **experiment.facts})
                config = experiment.config
                # Sampled episodes are played for the purpose, whole and with their states; see `log`.
                metrics_only = config.logging.model_copy(update={"sampling_enabled": False})
                self.loggers.append(ExperimentLogger(metrics_only, handlers(each, config)))

    def log(self, learner: Learner, report: Report, update: int, rates: Mapping[str, Any]) -> None:
        """The update's metrics, and from time to time a few whole episodes."""
        settings = self.experiment.config.logging
        sampling = settings.sampling_enabled and update % settings.sample_frequency == 0
        for seed, logger in enumerate(self.loggers):
            if settings.batched_logging_enabled and update % settings.log_frequency == 0:
                logger.log_batch_step(batch_data(self._of(report, seed), update, rates))
            if sampling:
                key = jax.random.fold_in(jax.random.key(self.experiment.config.seed), update)
                for episode in self.experiment.watch(self._network(learner, seed), key, update):
                    logger.log_episode_summary(episode)

    def evaluate(self, learner: Learner, update: int, last: bool) -> None:
        """Every process evaluates, so that none waits for the first at the next update."""
        steps = update * self.experiment.ppo.config.steps_per_update
        for seed in range(self.seeds or 1):
            records = self.experiment.evaluate(self._network(learner, seed), update, last)
            for record in records:
                line = {**record, "timestamp": time.time(), "step": update, "environment_steps": steps}
                if self.seeds is not None:
                    line["seed"] = seed
                self.evaluations.append(line)
                if self.writes:
                    folder = self.folder if self.seeds is None else self.folder / f"seed_{seed}"
                    with (
                        reported("an evaluation could not be written"),
                        contextlib.closing(LineFile(folder / runs.EVALUATIONS)) as file,
                    ):
                        file.write_line(as_json(line))

    def describe(self, update: int, seconds: float, status: str) -> None:
        """Renew `run.json`."""
        steps = update * self.experiment.ppo.config.steps_per_update * (self.seeds or 1)
        facts = {"updates": update, "environment_steps": steps, "seconds": seconds, "status": status}
        if self.writes:
            folders = [self.folder]
            folders += [] if self.seeds is None else [self.folder / f"seed_{s}" for s in range(self.seeds)]
            for folder in folders:
                with reported(f"{runs.FACTS} could not be written"):
                    runs.write_facts(folder, facts)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()

    def _network(self, learner: Learner, seed: int) -> Any:
        arrays = local(learner.network)
        if self.seeds is not None:
            arrays = jax.tree.map(lambda leaf: leaf[seed], arrays)
        return self.experiment.ppo.network(arrays)

    def _of(self, report: Report, seed: int) -> Report:
        report = local(report)
        return report if self.seeds is None else jax.tree.map(lambda leaf: leaf[seed], report)


def count_parameters(network: PyTree) -> int:
    """Numbers that a network learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(network) if isinstance(leaf, jax.Array))


def _size(learner: Learner, seeds: int | None) -> dict[str, int]:
    return {"num_parameters": count_parameters(learner.network) // (seeds or 1)}


@jax.jit
def _means(report: Report) -> tuple[jax.Array, jax.Array]:
    done = report.episodes.done
    success = report.episodes.measures.get("success_mask", jnp.zeros_like(done))
    return (
        jnp.mean(report.episodes.returns, where=done),
        jnp.mean(success.astype(jnp.float32), where=done),
    )


def _summary(report: Report) -> tuple[jax.Array, jax.Array]:
    """Mean return and success of the episodes that ended; this also waits for the update."""
    return _means(local(report))
