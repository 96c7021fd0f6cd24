"""The protocol between training algorithms and the run loop."""

import abc
import copy
import dataclasses
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Int, PyTree

from phalanx.config import Config
from phalanx.core.environment import Environment, Key
from phalanx.core.evaluation import EvaluationConfig, EvaluationResult
from phalanx.formatting import format_count
from phalanx.registry import ALGORITHMS, import_file, import_object
from phalanx.training.config import RunConfig
from phalanx.training.distributed import DeviceMesh

AnyAlgorithm = TypeVar("AnyAlgorithm", bound="Algorithm[Any]")


class TrainState(eqx.Module):
    """Everything that changes during training and is stored in checkpoints."""

    params: PyTree
    """Trained arrays. Another run can start from them."""
    opt_state: optax.OptState
    step: Int[Array, ""]
    """Number of completed updates."""
    sharded_fields: ClassVar[tuple[str, ...]] = ()
    """Fields whose arrays are distributed over processes along their first axis."""


State = TypeVar("State", bound=TrainState)


class UpdateResult(NamedTuple):
    """Metrics, episodes and counts of one update."""

    metrics: Mapping[str, Any]
    """Scalars such as losses, norms and rates."""
    episodes: Mapping[str, Any] = {}
    """Arrays of one shape with the names of `ExperimentLogger.log_batch_step`: `episode_returns`,
    `episode_lengths`, `success_mask`, ... If `episode_mask` is present, only its true entries count."""
    counts: Mapping[str, Any] = {}
    """Amount of data that the update processed: environment steps, tokens, triples. The run sums them."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a run after an update."""

    update: int
    """Number of completed updates."""
    num_updates: int
    seconds: float
    """Time spent in updates."""
    counts: Mapping[str, int]
    """Totals of `UpdateResult.counts`, summed over seeds."""
    per_second: float
    """Number of the algorithm's `unit` per second in the last update."""
    metrics: Mapping[str, float]
    """Latest values of the algorithm's `headline` metrics."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Result of `train`."""

    run_dir: Path
    update: int
    """Number of completed updates."""
    interrupted: bool
    """True if the run was stopped before its last update."""
    signal: int | None
    """The signal that stopped the run."""
    seconds: float
    """Time spent in updates, including those before a resume."""
    counts: Mapping[str, int]
    evaluations: list[dict[str, Any]]
    """Evaluation records of this call."""
    first: Progress | None
    """Progress after the first update of this call; None if there was no update."""
    last: Progress | None
    state: Any = dataclasses.field(repr=False)
    """Final `TrainState`; None if there are several seeds."""
    seeds: "Sequence[TrainResult]" = dataclasses.field(default=(), repr=False)
    """Results of the individual seeds, if there are several."""

    def __repr__(self) -> str:
        status = "interrupted" if self.interrupted else "finished"
        evaluations = format_count(len(self.evaluations), "evaluation")
        return f"TrainResult({self.run_dir}, {status} at update {self.update}, {evaluations})"

    def _repr_html_(self) -> str:
        from phalanx.logging.report.run_data import read_run

        return read_run(self.run_dir)._repr_html_()


class Algorithm(abc.ABC, Generic[State]):
    """Base class for training algorithms.

    Subclasses implement `init`, `update` and `policy`. `phalanx train FILE` trains the one algorithm that a
    file defines.

    Instances are equal, and share compiled programs, if they have the same class, environment and config
    apart from the seed and the sections `evaluation`, `checkpoint` and `logging`.
    """

    name: ClassVar[str]
    """Name on the command line and in `run.json`."""
    config_type: ClassVar[type[RunConfig]]
    unit: ClassVar[str] = "env_steps"
    """The count that measures speed and progress."""
    evaluation_config: ClassVar[type[EvaluationConfig]] = EvaluationConfig
    """Class of the settings of evaluations during training, for algorithms without an environment."""
    policy_checkpoint: ClassVar[Literal["newest", "best"]] = "newest"
    """Checkpoint that `load_policy` and `phalanx eval` use unless another one is named. `best` applies to
    runs with `checkpoint.best_metric`."""
    eval_config: ClassVar[type[Config] | None] = None
    """Class of the settings of `phalanx eval`, for algorithms without an environment. None if the algorithm
    cannot be evaluated after training."""
    headline: ClassVar[tuple[str, ...]] = ("reward_mean", "success_rate")
    """Metrics to show during training. `reward_mean` and `success_rate` are computed from the episodes."""

    def __init__(
        self, config: RunConfig, environment: Environment | None = None, mesh: DeviceMesh | None = None
    ) -> None:
        self.config: Any = config
        self.environment: Any = environment
        self.mesh = DeviceMesh() if mesh is None else mesh
        self.num_updates = config.num_updates

    @classmethod
    def for_evaluation(cls: type[AnyAlgorithm], config: Any) -> AnyAlgorithm:
        """Create the algorithm to load and evaluate a policy. Training data need not be opened."""
        return cls(config)

    @classmethod
    def eval_settings_type(cls, config: RunConfig, env: str | None = None) -> type[Config] | None:
        """Return the class of the settings of `phalanx eval` for a run; None if it cannot be evaluated.

        Args:
            config: Config of the run.
            env: Environment to evaluate in, for algorithms that can be evaluated in another one.
        """
        return cls.eval_config

    @classmethod
    def inherited_settings(cls, source: RunConfig) -> dict[str, Any] | None:
        """Return settings to take over from a run whose parameters are the initial ones of a new run.

        Args:
            source: Config of that run.

        Returns:
            Nested settings that take precedence over presets; None to use the preset as usual.
        """
        return None

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.seed

    @classmethod
    def address(cls) -> str:
        """Return the name of a built-in algorithm, or `package.module:Name` or `path/file.py:Name`.

        `load_algorithm` accepts it. A run stores it, so that its policy can be loaded.
        """
        if cls.name in ALGORITHMS and load_algorithm(cls.name) is cls:
            return cls.name
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is None or "." in cls.__module__:
            return f"{cls.__module__}:{cls.__qualname__}"
        return f"{Path(file).resolve()}:{cls.__qualname__}"

    @abc.abstractmethod
    def init(self, key: Key, params: PyTree | None = None) -> State:
        """Create the initial state, from the parameters of another run (warm start) if `params` is given."""

    @abc.abstractmethod
    def update(self, state: State) -> tuple[State, UpdateResult]:
        """Run one update on the host, which calls compiled programs.

        `state` is consumed and must not be used afterward. Raises `StopIteration` when the data ends.
        """

    @abc.abstractmethod
    def policy(self, state: State) -> Any:
        """Return the trained object: a network, a language model, an embedding."""

    def evaluate(self, state: State, settings: Config, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate the policy.

        Called before the first update, every `evaluation.every` updates and after the last one, and by
        `phalanx eval`.

        Args:
            state: The state.
            settings: Section `evaluation` of the config, or the settings of `phalanx eval`, of the class
                `eval_config`.
            final: Whether this is the last evaluation of a run, which may take longer.
        """
        return []

    def sample_episodes(self, state: State, key: Key, update: int) -> list[dict[str, Any]]:
        """Record a few episodes in the format of `ExperimentLogger.log_episode_summary`."""
        return []

    def metadata(self, state: State) -> dict[str, Any]:
        """Return entries for `run.json`, which is written at the start and with every checkpoint."""
        return {}

    def data_fingerprint(self) -> str:
        """Return a digest of the training data. A run resumes only with the same data."""
        return ""

    def save_host_state(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """Return state outside the `TrainState` that a checkpoint needs, as JSON values.

        Args:
            folder: Run folder, for files with larger state.
            update: Number of completed updates.
            kept: Updates of the existing checkpoints; files of other updates can be removed.
        """
        return {}

    def restore_host_state(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Restore the state that `save_host_state` returned."""

    def export(self, state: State, folder: Path) -> None:
        """Write files for other programs to the run folder at the end of a run."""

    def summarize(self, result: TrainResult) -> list[str]:
        """Describe the result of a run in a few lines of text."""
        if result.first is None or result.last is None:
            return []
        known = [name for name in self.headline if name in result.first.metrics]
        return [
            f"{name.replace('_', ' ').capitalize()}: {result.first.metrics[name]:.3f} at update "
            f"{result.first.update}, {result.last.metrics[name]:.3f} at {result.last.update}"
            for name in known
        ]

    def with_seed(self: AnyAlgorithm, seed: int) -> AnyAlgorithm:
        """Return the algorithm for one of several seeds. Algorithms with state on the host override this."""
        other = copy.copy(self)
        other.config = self.config.model_copy(update={"seed": seed, "num_seeds": 1})
        return other

    def close(self) -> None:
        """Release threads, connections and other resources."""

    @functools.cached_property
    def _cached_compilation_key(self) -> tuple[int, tuple[Any, ...]]:
        # Every call of a compiled method looks its program up.
        return hash(self._compilation_key), self._compilation_key

    @property
    def _compilation_key(self) -> tuple[Any, ...]:
        ignored = {"seed", "num_seeds", "evaluation", "checkpoint", "logging"}
        settings = tuple(
            getattr(self.config, name) for name in type(self.config).model_fields if name not in ignored
        )
        return type(self), self.environment, settings

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Algorithm) and self._cached_compilation_key == other._cached_compilation_key

    def __hash__(self) -> int:
        return self._cached_compilation_key[0]


def load_algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm.

    Args:
        name: Name of a built-in algorithm such as `ppo`, `package.module:Name`, `path/file.py:Name`, or a
            Python file that defines one subclass of `Algorithm`.
    """
    if name in ALGORITHMS:
        found: Any = import_object(ALGORITHMS[name])
    elif name.endswith(".py"):
        found = _only_algorithm(name)
    elif ":" in name:
        found = import_object(name)
    else:
        near = difflib.get_close_matches(name, ALGORITHMS, 1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(ALGORITHMS)}, or name a file"
        )
        raise ValueError(f"unknown algorithm {name!r}; {hint}")
    if not inspect.isclass(found) or not issubclass(found, Algorithm):
        raise ValueError(f"{name!r} is not a subclass of phalanx.training.Algorithm")
    return found


def _only_algorithm(path: str) -> Any:
    module = import_file(path)
    found = [
        each
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, Algorithm)
        and not inspect.isabstract(each)
        and each.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in found) or "none"
        raise ValueError(
            f"{path} must define one subclass of phalanx.training.Algorithm, but defines {names}"
        )
    return found[0]


class BoundJitMethod(NamedTuple):
    """A `jit_method` of an instance. Equal instances share the compiled program."""

    method: "_JitMethod"
    instance: Any

    def __call__(self, *args: Any) -> Any:
        """Run the program, compiled for the device of its arguments."""
        return self.method.jitted(self.instance, *args)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions of the arguments whose memory is reused for the results."""
        return self.method.donate_argnums

    def traced(self, *args: Any) -> Any:
        """Call the function without compiling it, inside another compiled program."""
        return self.method.function(self.instance, *args)


class _JitMethod:
    def __init__(self, function: Callable[..., Any], donate: Sequence[str]) -> None:
        names = list(inspect.signature(function).parameters)[1:]
        self.function = function
        self.donate_argnums = tuple(names.index(name) for name in donate)
        argnums = tuple(1 + number for number in self.donate_argnums)
        self.jitted = jax.jit(function, static_argnums=0, donate_argnums=argnums)
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundJitMethod(self, instance)


def jit_method(function: Callable[..., Any] | None = None, *, donate: Sequence[str] = ()) -> Any:
    """Compile a method of an algorithm. `self` is static, so equal instances share the compiled program.

    Args:
        function: Method with positional arguments.
        donate: Names of arguments that are consumed: their memory is reused for the results.
    """
    if function is None:
        return functools.partial(jit_method, donate=donate)
    return _JitMethod(function, donate)
