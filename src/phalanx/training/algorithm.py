"""What a run asks of an algorithm: a learner to begin with, updates, what was learned, what is measured.

The run itself, which is the same for every algorithm, is in `run`.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
from jaxtyping import PyTree
from pydantic import Field

from phalanx.config import PRESET_FOLDER, Config, load_config
from phalanx.core.environment import Key
from phalanx.formatting import format_count
from phalanx.logging.config import LoggingConfig

Learner = TypeVar("Learner")
AnyConfig = TypeVar("AnyConfig", bound="RunConfig")


class EvaluationConfig(Config):
    """When a policy is measured."""

    every: int = Field(default=20, ge=0)
    """Updates between evaluations; 0 for none but the first and the last."""


class CheckpointConfig(Config):
    """When the whole state of a training is saved; the last update always is."""

    every: int = Field(default=50, ge=1)
    """Updates between checkpoints."""
    minutes: float | None = Field(default=10.0, gt=0)
    """Minutes after which one is saved in any case; none for no such limit."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest are kept."""
    best: str | None = None
    """A number of the evaluations, as `success_rate`: the best by it is kept beside the newest, in `best`."""
    best_mode: Literal["max", "min"] = "max"
    """Whether more of it is better, or less."""


class RunConfig(Config):
    """What the config of every training has; each algorithm adds its own settings."""

    evaluation: EvaluationConfig = EvaluationConfig()
    """When it is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When it is saved."""
    logging: LoggingConfig = LoggingConfig(batched_logging_enabled=True)
    """What is written of it."""

    @classmethod
    def load(
        cls: type[AnyConfig], preset: str | Path | None = None, overrides: Sequence[str] = ()
    ) -> AnyConfig:
        """A config: the preset (`default` unless another is named, where there is one), then overrides."""
        if (
            preset is None
            and cls.preset_group
            and (PRESET_FOLDER / cls.preset_group / "default.yaml").is_file()
        ):
            preset = "default"
        return load_config(cls, preset, overrides)


class UpdateResult(NamedTuple):
    """What an update has to say; with several seeds every array has a leading axis of them."""

    metrics: Mapping[str, Any]
    """Single numbers: losses, norms, rates."""
    episodes: Mapping[str, Any] = {}
    """Arrays of one shape, by the names that `log_batch_step` has for them: `episode_returns`,
    `episode_lengths`, `success_mask`, ..., and `episode_mask` for the places where an episode ended."""
    counts: Mapping[str, Any] = {}
    """What the update went through: environment steps, tokens, triples. The run adds them up."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a training stands, for whoever shows it."""

    update: int
    """Updates made."""
    num_updates: int
    seconds: float
    """Spent in updates."""
    counts: Mapping[str, int]
    """What they went through, all seeds together."""
    per_second: float
    """Of the algorithm's `unit`, in this update."""
    metrics: Mapping[str, float]
    """The algorithm's `headline`, as far as it is known."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """How a training ended."""

    run: Path
    update: int
    interrupted: bool
    """Whether updates are left to make."""
    signal: int | None
    """The signal that asked for a stop."""
    seconds: float
    counts: Mapping[str, int]
    evaluations: list[dict[str, Any]]
    """All that were made by this call."""
    first: Progress | None
    """After the first update of this call, and after the last; None where there was none."""
    last: Progress | None
    learner: Any = dataclasses.field(repr=False)

    def __repr__(self) -> str:
        ended = "interrupted" if self.interrupted else "finished"
        told = format_count(len(self.evaluations), "evaluation")
        return f"Outcome({self.run}, {ended} at update {self.update}, {told})"

    def _repr_html_(self) -> str:
        from phalanx.logging.report.run_data import read_run

        return read_run(self.run)._repr_html_()


def _is_array(leaf: Any) -> bool:
    """Or the shape of one."""
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


Start = Callable[[Key], Any]
Update = Callable[[Any], tuple[Any, UpdateResult]]


class Algorithm(abc.ABC, Generic[Learner]):
    """One way to learn something, from its first update to its last.

    A learner is a pytree of arrays with all that changes: what is saved, and from which a run goes on to the
    same numbers. A file with one such class can be trained by `phalanx train custom FILE`, which makes it of
    its config alone; `examples/reinforce.py` is one.
    """

    kind: ClassVar[str]
    """Names the runs: `arc`, `lm`, ..."""
    config_type: ClassVar[type[RunConfig]]
    unit: ClassVar[str] = "environment_steps"
    """Which of a report's counts tells how far a training is."""
    length: ClassVar[str] = "num_updates"
    """The setting that says how many updates there are, by its dotted name."""
    headline: ClassVar[tuple[str, ...]] = ("reward_mean", "success_rate")
    """The metrics that are shown while it trains; `reward_mean` and `success_rate` are of the episodes."""

    def __init__(self, config: RunConfig, *, num_updates: int, seed: int = 0, num_seeds: int = 1) -> None:
        self.config: Any = config
        self.num_updates, self.seed, self.num_seeds = num_updates, seed, num_seeds

    @abc.abstractmethod
    def start(self, key: Key) -> Learner:
        """Before the first update."""

    @abc.abstractmethod
    def update(self, learner: Learner) -> tuple[Learner, UpdateResult]:
        """One update; `StopIteration` where there is nothing left to learn from."""

    @abc.abstractmethod
    def policy(self, learner: Learner) -> Any:
        """What was learned: a network, a language model, an embedding."""

    def weights(self, learner: Learner) -> PyTree:
        """The arrays that another run can begin with; those of the policy, unless you say.

        They must be arrays of the learner itself, and not made of them: a checkpoint names them.
        """
        return eqx.filter(self.policy(learner), _is_array)

    def with_weights(self, learner: Learner, weights: PyTree) -> Learner:
        """A learner before its first update that begins with weights of another run, like its own."""
        own = zip(jax.tree.leaves(self.weights(learner)), jax.tree.leaves(weights), strict=True)
        taken = {id(before): now for before, now in own}
        return jax.tree.map(lambda leaf: taken.get(id(leaf), leaf), learner)

    def compile(self) -> tuple[Start, Update]:
        """`start` and `update` as a run calls them: compiled, and over a leading axis where seeds are many.

        The memory of the learner that an update is given is taken over. An algorithm that is not one pure
        function overrides this.
        """
        start: Start = self.start
        update: Update = self.update
        if self.num_seeds > 1:
            count, one = self.num_seeds, start
            start, update = (lambda key: jax.vmap(one)(jax.random.split(key, count))), jax.vmap(update)
        return jax.jit(start), jax.jit(update, donate_argnums=0)

    def whole(self, learner: Learner) -> Learner:
        """What a checkpoint holds of a learner that several processes share; all of them ask together."""
        return learner

    def share(self, whole: Learner) -> Learner:
        """This process's part of what a checkpoint holds."""
        return whole

    def evaluate(self, learner: Learner, update: int, last: bool) -> list[dict[str, Any]]:
        """Records for `evaluations.jsonl`, each with its `split` and `mode`.

        Asked for before the first update, every `evaluation.every` updates and after the last one.
        """
        return []

    def sample_episodes(self, learner: Learner, key: Key, update: int) -> list[dict[str, Any]]:
        """A few whole episodes, as `ExperimentLogger.log_episode_summary` takes them."""
        return []

    def facts(self, learner: Learner) -> dict[str, Any]:
        """What `run.json` is to say, written at the start and with every checkpoint."""
        return {}

    def data_fingerprint(self) -> str:
        """Of what is learned from; a checkpoint carries it, and goes on only with the same."""
        return ""

    def save(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """What a checkpoint needs besides the learner, as plain values; what is large goes into a file.

        `kept` are the updates of the checkpoints that there are: files for earlier ones can go.
        """
        return {}

    def restore(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Go on from where `save` was called."""

    def finish(self, learner: Learner, folder: Path) -> None:
        """Write what others read of a run that ends, besides its checkpoint."""

    def describe(self, outcome: TrainResult) -> list[str]:
        """What it came to, in sentences."""
        if outcome.first is None or outcome.last is None:
            return []
        known = [name for name in self.headline if name in outcome.first.metrics]
        return [
            f"{name.replace('_', ' ').capitalize()}: {outcome.first.metrics[name]:.3f} at update "
            f"{outcome.first.update}, {outcome.last.metrics[name]:.3f} at {outcome.last.update}"
            for name in known
        ]
