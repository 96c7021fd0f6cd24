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
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Int, PyTree

from phalanx.config import Config
from phalanx.core.environment import Environment, Key
from phalanx.core.evaluation import EvaluationResult
from phalanx.formatting import format_count
from phalanx.registry import ALGORITHMS, import_file, import_object
from phalanx.training.code_identity import identify_code
from phalanx.training.config import RunConfig
from phalanx.training.device_mesh import DeviceMesh

AnyAlgorithm = TypeVar("AnyAlgorithm", bound="Algorithm[Any]")


class TrainState(eqx.Module):
    """State of a training run, as saved in checkpoints. Algorithms add fields in subclasses."""

    params: PyTree
    """Trained parameters. Other runs can start from these parameters (`init_from`)."""
    opt_state: optax.OptState
    """Optimizer state."""
    step: Int[Array, ""]
    """Number of completed updates."""
    sharded_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields whose arrays are distributed over processes along their first axis."""


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
    policy_checkpoint: ClassVar[Literal["newest", "best"]] = "newest"
    """Checkpoint that `load_policy` and `phalanx eval` use by default. In runs without a
    `checkpoint.best_metric`, the newest checkpoint is always used."""
    eval_config: ClassVar[type[Config] | None] = None
    """Class of the settings for `phalanx eval`. By default, `eval_settings_type` returns this class.
    Algorithms whose settings depend on the environment override `eval_settings_type` and ignore this field.
    If `eval_settings_type` returns None, `phalanx eval` does not support the algorithm."""
    supports_multiple_processes: ClassVar[bool] = False
    """Whether several connected processes can train together (`--num-processes`). If False, `train` refuses
    to run in several processes, because each of them would repeat the complete training."""
    headline: ClassVar[tuple[str, ...]] = ("reward_mean", "success_rate")
    """Names of the metrics to show in the terminal during training. `reward_mean` and `success_rate` are
    computed from `UpdateResult.episodes`."""

    def __init__(
        self, config: RunConfig, environment: Environment | None = None, mesh: DeviceMesh | None = None
    ) -> None:
        self.config: Any = config
        self.environment: Any = environment
        self.mesh = DeviceMesh() if mesh is None else mesh
        self.num_updates: int = getattr(config, config.num_updates_setting)

    @classmethod
    def for_evaluation(cls: type[AnyAlgorithm], config: Any) -> AnyAlgorithm:
        """Create an instance that is used only to load and evaluate a trained policy.

        Subclasses can override this method to avoid opening the training data.
        """
        return cls(config)

    @classmethod
    def eval_settings_type(cls, config: RunConfig, env: str | None = None) -> type[Config] | None:
        """Return the class of the settings for `phalanx eval`, or None if the run cannot be evaluated.

        Args:
            config: Config of the run.
            env: Name of the environment to evaluate in, for algorithms that can be evaluated in an
                environment other than the run's own. None means the run's environment.
        """
        return cls.eval_config

    @classmethod
    def inherited_settings(cls, source: RunConfig) -> dict[str, Any] | None:
        """Return the settings that a new run inherits from the run that it starts from (`init_from`).

        Args:
            source: Config of the run whose parameters become the initial parameters of the new run.

        Returns:
            Nested settings, which take precedence over presets. None if no settings are inherited.
        """
        return None

    @classmethod
    def check_num_processes(cls, num_processes: int) -> None:
        """Raise ValueError if the algorithm cannot train with this number of processes."""
        if num_processes > 1 and not cls.supports_multiple_processes:
            raise ValueError(
                f"{cls.name} trains in one process, and each of {num_processes} processes would repeat the "
                "complete training: start it without --coordinator, --num-processes and --process-id"
            )

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.seed

    @classmethod
    def address(cls) -> str:
        """Return a string from which `load_algorithm` can load this class.

        The string is the name of a built-in algorithm, `package.module:Name` or `path/file.py:Name`. Runs
        store it in `run.json`, so that their policies can be loaded later.
        """
        if cls.name in ALGORITHMS and load_algorithm(cls.name) is cls:
            return cls.name
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is None or "." in cls.__module__:
            return f"{cls.__module__}:{cls.__qualname__}"
        return f"{Path(file).resolve()}:{cls.__qualname__}"

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
                `eval_settings_type` returns.
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

    def code_identity(self) -> dict[str, Any]:
        """Return the digests of the user's source files and of the network, for `run.json`.

        A run can be resumed only with the same code.
        """
        return identify_code([type(self), type(self.environment), *self.config.environment_types])

    def data_fingerprint(self) -> str:
        """Return a digest of the training data. A run can be resumed only with the same data."""
        return ""

    def save_host_state(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """Return the state to save with a checkpoint in addition to the `TrainState`.

        An example is the position in the training data.

        Args:
            folder: Run folder, to which large state can be written as files.
            update: Number of completed updates.
            kept: Steps (numbers of completed updates) of the existing checkpoints. Files that this method
                wrote for checkpoints that no longer exist can be removed.

        Returns:
            JSON values, which are passed to `restore_host_state` when the run is resumed.
        """
        return {}

    def restore_host_state(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Restore the state that `save_host_state` returned or wrote to files.

        Args:
            folder: Run folder.
            saved: Value that `save_host_state` returned.
        """

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

    def with_seed(self: AnyAlgorithm, seed: int) -> AnyAlgorithm:
        """Return a copy of the algorithm with the given seed.

        Algorithms with mutable state, such as threads or buffers, override this method to reset that state in
        the copy.
        """
        other = copy.copy(self)
        other.config = self._config_with_seed(seed)
        return other

    def _config_with_seed(self, seed: int) -> Any:
        return self.config.model_copy(update={"seed": seed, "num_seeds": 1})

    def close(self) -> None:
        """Release threads, connections and other resources.

        With several seeds, this method is called on every copy that `with_seed` returned and on the original.
        """

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
        return isinstance(other, Algorithm) and self._compilation_key == other._compilation_key

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._compilation_key)

    def __hash__(self) -> int:
        # Every call to a compiled method looks up its program by this hash, so the hash is cached.
        return self._hash


def load_algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm.

    Args:
        name: Name of a built-in algorithm, such as `ppo`; import path of a class, as `package.module:Name` or
            `path/file.py:Name`; or path of a Python file that defines one subclass of `Algorithm`.
    """
    if name in ALGORITHMS:
        found: Any = import_object(ALGORITHMS[name])
    elif name.endswith(".py"):
        found = _only_algorithm(name)
    elif ":" in name:
        found = import_object(name)
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
    classes = (each for each in vars(module).values() if inspect.isclass(each))
    own = [each for each in classes if issubclass(each, Algorithm) and each.__module__ == module.__name__]
    found = [each for each in own if not inspect.isabstract(each)]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in found) or "none"
        raise ValueError(
            f"{path} must define one subclass of phalanx.training.Algorithm, but defines {names}"
        )
    return found[0]


def jit_method(function: Callable[..., Any] | None = None, *, donate: Sequence[str] = ()) -> Any:
    """Compile a method of an algorithm with `jax.jit`. Can be used as a decorator with or without arguments.

    `self` is a static argument, so equal instances share the compiled program.

    Args:
        function: Method whose arguments are all positional.
        donate: Names of arguments whose memory is reused for the results. The caller must not use these
            arguments afterward.
    """
    if function is None:
        return functools.partial(jit_method, donate=donate)
    names = list(inspect.signature(function).parameters)
    donate_argnums = tuple(names.index(name) for name in donate)
    method: Any = jax.jit(function, static_argnums=0, donate_argnums=donate_argnums)
    method.donate_argnums = donate_argnums  # for `DeviceMesh.map`
    return method
