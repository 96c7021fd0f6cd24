"""The base class `Algorithm`, and the types that algorithms and the run loop exchange."""

import abc
import copy
import dataclasses
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Int, PyTree

from phalanx.config import Config
from phalanx.core.environment import Environment, Key
from phalanx.core.evaluation import EvaluationResult
from phalanx.core.vector import has_tracers
from phalanx.formatting import format_count
from phalanx.import_path import import_file, import_object
from phalanx.registry import ALGORITHMS
from phalanx.training.code_identity import identify_code
from phalanx.training.config import RunConfig

AnyAlgorithm = TypeVar("AnyAlgorithm", bound="Algorithm[Any]")


class TrainState(eqx.Module):
    """State of a training run, as saved in checkpoints. Algorithms add fields in subclasses."""

    params: PyTree
    """Trained parameters. Other runs can start from these parameters (`init_from`)."""
    opt_state: optax.OptState
    """Optimizer state."""
    step: Int[Array, ""]
    """Number of completed updates."""


State = TypeVar("State", bound=TrainState)


class DataExhausted(Exception):
    """Raised by `Algorithm.update` if there is no more training data, which ends the run as finished."""


class UpdateResult(NamedTuple):
    """Metrics, episodes and counts of one update."""

    metrics: Mapping[str, Any]
    """Scalar metrics by name, such as losses, gradient norms and learning rates."""
    episodes: Mapping[str, Any] = {}
    """Episode statistics by name: arrays of equal shape, such as `episode_returns` and `success_mask`. The
    names are those that `ExperimentLogger.log_batch_step` expects. If `episode_mask` is present, only the
    entries where `episode_mask` is true are used."""
    counts: Mapping[str, Any] = {}
    """Amount of data that the update processed, for example the number of environment steps, tokens or
    triples. The run adds up the counts of all updates."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a run after an update."""

    update: int
    """Number of completed updates."""
    num_updates: int
    """Total number of updates in the run."""
    seconds: float
    """Total time spent in updates so far, in seconds, summed over seeds. Includes updates before the run was
    resumed."""
    counts: Mapping[str, int]
    """Sum of `UpdateResult.counts` over all updates and seeds."""
    per_second: float
    """Throughput of the last update, in the algorithm's `unit` (such as environment steps) per second."""
    metrics: Mapping[str, float]
    """Latest values of the algorithm's `headline` metrics. Episode metrics are missing until an update has
    episodes to average."""
    num_episodes: int = 0
    """Number of episodes that the episode metrics in `metrics` average, summed over seeds."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Result of `train`."""

    run_dir: Path
    update: int
    """Number of completed updates. With several seeds, the smallest number among the seeds."""
    interrupted: bool
    """True if the run was stopped before its last update."""
    signal: int | None
    """Number of the signal that stopped the run. None if no signal was received."""
    seconds: float
    """Total time spent in updates, in seconds, summed over seeds. Includes updates before the run was
    resumed."""
    counts: Mapping[str, int]
    """Sum of `UpdateResult.counts` over all updates and seeds."""
    evaluations: list[dict[str, Any]]
    """Records of the run's evaluations in order, including those before the run was resumed. With several
    seeds, the `seed` entry of a record is the index of its seed, counted from 0."""
    state: Any = None
    """Final `TrainState`. None if there are several seeds, whose states are in `seeds`."""
    first: Progress | None = None
    """Progress after the first update in this call to `train`. None if there was no update."""
    last: Progress | None = None
    """Progress after the last update in this call to `train`. None if there was no update."""
    seeds: "Sequence[TrainResult]" = ()
    """Results of the individual seeds. Empty if there is only one seed."""

    def __repr__(self) -> str:
        status = "interrupted" if self.interrupted else "finished"
        evaluations = format_count(len(self.evaluations), "evaluation")
        return f"TrainResult({self.run_dir}, {status} at update {self.update}, {evaluations})"

    def _repr_html_(self) -> str:
        from phalanx.logging.report.run_data import load_run

        return load_run(self.run_dir)._repr_html_()


class Algorithm(abc.ABC, Generic[State]):
    """Base class for training algorithms.

    Subclasses implement `init`, `update` and `policy`. `phalanx train FILE` loads the
    algorithm from a Python file, which must define exactly one non-abstract subclass.

    Two instances are equal, and share compiled programs, if they have the same class, environment and
    settings. The seeds and the `evaluation`, `checkpoint` and `logging` sections are not compared.
    """

    name: ClassVar[str]
    """Name of the algorithm on the command line and in `run.json`."""
    config_type: ClassVar[type[RunConfig]]
    unit: ClassVar[str] = "env_steps"
    """Unit of throughput and progress. Must be the name of an entry of `UpdateResult.counts`."""
    headline: ClassVar[tuple[str, ...]] = ("reward_mean", "success_rate")
    """Names of the metrics to show in the terminal during training. `reward_mean` and `success_rate` are
    computed from `UpdateResult.episodes`."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        created = super().__new__(cls)
        created._arguments = args, kwargs  # for `_replace_config`
        return created

    def __init__(self, config: RunConfig, environment: Any = None) -> None:
        self.config: Any = config
        self.environment: Any = environment

    @property
    def num_updates(self) -> int:
        """Number of updates in a run."""
        return int(getattr(self.config, self.config.num_updates_setting))

    @classmethod
    def evaluation_type(cls, config: Any, env: str | None = None) -> type[Config] | None:
        """Return the class of the settings for `phalanx eval`, or None if the run cannot be evaluated.

        Args:
            config: Config of the run.
            env: Name of the environment to evaluate in, for algorithms that can be evaluated in an
                environment other than the run's own. None means the run's environment.
        """
        return None

    @abc.abstractmethod
    def init(self, key: Key, params: PyTree | None = None) -> State:
        """Create the initial state.

        Args:
            key: Key for random initialization.
            params: Initial parameters from another run (warm start). If None, new parameters are created from
                `key`.
        """

    @abc.abstractmethod
    def update(self, state: State) -> tuple[State, UpdateResult]:
        """Run one update.

        The run loop calls this method without `jax.jit`. The method can call several compiled programs, or be
        compiled as a whole with `jit_method`. `state` must not be used afterward, because its memory may be
        reused.

        Returns:
            The new state, and the metrics, episodes and counts of the update.

        Raises:
            DataExhausted: If there is no more training data.
        """

    @abc.abstractmethod
    def policy(self, state: State) -> Any:
        """Return the trained object, such as a policy network, a language model or an embedding."""

    def evaluate(self, state: State, settings: Config, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate the policy.

        The run loop calls this method before the first update, every `evaluation.every` updates and after the
        last update. `phalanx eval` calls it as well.

        Args:
            state: State with the parameters to evaluate.
            settings: The config's `evaluation` section or, in `phalanx eval`, an instance of the class that
                `evaluation_type` returns.
            final: True for the last evaluation of a run and in `phalanx eval`. Such an evaluation may take
                longer than the evaluations during training.

        Returns:
            The results, for example one for greedy and one for sampled actions.
        """
        return []

    def sample_episodes(self, state: State, key: Key, update: int) -> list[dict[str, Any]]:
        """Run a few episodes and return their records for `ExperimentLogger.log_episode_summary`.

        Args:
            state: State with the parameters of the policy.
            key: Key for the episodes and the actions.
            update: Number of completed updates.
        """
        return []

    def metadata(self, state: State) -> dict[str, Any]:
        """Return additional entries for `run.json`.

        This file is written at the start of a run and with every checkpoint.
        """
        return {}

    def fingerprint(self) -> str:
        """Return a digest of the training data. A run can be resumed only with the same data."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save with a checkpoint in addition to the `TrainState`.

        An example is the position in the training data. The values are JSON values and NumPy arrays.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    def export(self, state: State, folder: Path) -> None:
        """Export the result of a run to the run folder, for example as files for other programs.

        The run loop calls this method after the last checkpoint was saved, even if the run was interrupted.
        A run is finished only if this method succeeds. When the run is resumed, it is called again.
        """

    def summarize(self, result: TrainResult) -> list[str]:
        """Return a few lines of text that describe the result of a run."""
        if result.first is None or result.last is None:
            return []
        first, last = result.first, result.last
        return [
            f"{name.replace('_', ' ').capitalize()}: {first.metrics[name]:.3f} at update {first.update}, "
            f"{last.metrics[name]:.3f} at {last.update}"
            for name in self.headline
            if name in first.metrics
        ]

    def close(self) -> None:
        """Release threads, connections and other resources."""

    def _replace_config(self: AnyAlgorithm, config: RunConfig) -> AnyAlgorithm:
        """Create an algorithm with another config and otherwise the same arguments."""
        args, kwargs = self._arguments
        return type(self)(config, *args[1:], **{name: kwargs[name] for name in kwargs if name != "config"})

    def _code(self) -> dict[str, Any]:
        """Return the digests of the user's source files and of the network, for `run.json`."""
        return identify_code([type(self), type(self.environment), *self.config.environment_types])

    @property
    def _traced_environment(self) -> Environment | None:
        """The environment as an argument of compiled programs. None if it runs on the host."""
        return self.environment if isinstance(self.environment, Environment) else None

    @property
    def _program_key(self) -> tuple[Any, ...]:
        ignored = {"seed", "num_seeds", "evaluation", "checkpoint", "logging"}
        settings = tuple(value for name, value in self.config if name not in ignored)
        traced = self._traced_environment
        return type(self), self.environment if traced is None else jax.tree.structure(traced), settings

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Algorithm) and self._program_key == other._program_key)

    def __hash__(self) -> int:
        return self._hash

    # Every call to a compiled method looks up its program by this hash.
    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._program_key)


def algorithm_address(cls: type[Algorithm]) -> str:
    """Return a string from which `load_algorithm` can load a class.

    The string is the name of a built-in algorithm, `package.module:Name` or `path/file.py:Name`. Runs store
    it in `run.json`, so that their policies can be loaded later.
    """
    if cls.name in ALGORITHMS and load_algorithm(cls.name) is cls:
        return cls.name
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or "." in cls.__module__:
        return f"{cls.__module__}:{cls.__qualname__}"
    return f"{Path(file).resolve()}:{cls.__qualname__}"


def load_algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm.

    Args:
        name: Name of a built-in algorithm, such as `ppo`; import path of a class, as `package.module:Name` or
            `path/file.py:Name`; or path of a Python file that defines one subclass of `Algorithm`.
    """
    if name.endswith(".py"):
        found = _only_algorithm(name)
    elif name in ALGORITHMS or ":" in name:
        found = import_object(ALGORITHMS.get(name, name))
    else:
        hint = f"choose from {', '.join(ALGORITHMS)}, or name a file"
        for near in difflib.get_close_matches(name, ALGORITHMS, 1):
            hint = f"did you mean {near!r}?"
        raise ValueError(f"unknown algorithm {name!r}; {hint}")
    if not inspect.isclass(found) or not issubclass(found, Algorithm):
        raise ValueError(f"{name!r} is not a subclass of phalanx.training.Algorithm")
    return found


def _only_algorithm(path: str) -> Any:
    module = import_file(path)
    own = [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]
    classes = [each for each in own if inspect.isclass(each) and issubclass(each, Algorithm)]
    found = [each for each in classes if not inspect.isabstract(each)]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in found) or "none"
        raise ValueError(f"{path} must define one subclass of phalanx.training.Algorithm, not {names}")
    return found[0]


def jit_method(
    function: Callable[..., Any] | None = None, *, donate: Sequence[str] = (), optimize: bool = True
) -> Any:
    """Compile a method of an algorithm with `jax.jit`. Can be used as a decorator with or without arguments.

    `self` is a static argument, so equal instances share the compiled program. The arrays of
    `self.environment`, such as its tasks, are traced: an instance whose environment has other tasks of the
    same shapes shares the program as well.

    Args:
        function: Method whose arguments are all positional.
        donate: Names of arguments whose memory is reused for the results. The caller must not use these
            arguments afterward.
        optimize: Whether XLA optimizes the program. A program that runs once, such as an initialization, is
            compiled in half the time without it.
    """
    if function is None:
        return functools.partial(jit_method, donate=donate, optimize=optimize)
    names = list(inspect.signature(function).parameters)
    # The environment becomes the argument after `self`.
    donate_argnums = tuple(names.index(name) + 1 for name in donate)

    def traced(algorithm: Algorithm, environment: Environment | None, *args: Any) -> Any:
        if environment is not None:
            algorithm = copy.copy(algorithm)
            algorithm.environment = environment
        return function(algorithm, *args)

    options = None if optimize else {"xla_backend_optimization_level": 0}
    compiled = jax.jit(traced, static_argnums=0, donate_argnums=donate_argnums, compiler_options=options)

    @functools.wraps(function)
    def method(self: Algorithm, *args: Any) -> Any:
        # Compiler options are only allowed in the outermost program.
        call = traced if options and has_tracers(args) else compiled
        return call(self, self._traced_environment, *args)

    return method
