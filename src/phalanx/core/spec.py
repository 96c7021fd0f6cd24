"""`EnvSpec`, which describes how an environment is made, trained and evaluated, and `TaskSource`."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, Protocol, get_type_hints, runtime_checkable

import jax
from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from phalanx.config import Config
from phalanx.core.environment import Environment, Key
from phalanx.core.evaluation import (
    EpisodeEvaluationConfig,
    EvaluationConfig,
    EvaluationEpisodes,
    EvaluationResult,
    evaluate_episodes,
    sampled_episodes,
)
from phalanx.core.expert import Expert
from phalanx.core.policy_from_spaces import DefaultNetworkConfig
from phalanx.core.text import TextInterface
from phalanx.nn.policy_network import PolicyNetwork


@runtime_checkable
class TaskSource(Protocol):
    """Source of the environments of a run: fresh tasks, curricula and held-out tasks."""

    @property
    def fingerprint(self) -> str:
        """Digest of the data of the environment, such as its tasks, or "" if it has none."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Information about the data as JSON values, for `run.json`."""

    @property
    def keeps_episodes(self) -> bool:
        """True if running episodes can continue when `training` returns another environment. If False, they
        are restarted."""

    def training(self, update: int) -> Environment:
        """Return the environment for an update, counted from 0.

        Environments of different updates differ only in the values of their arrays, so that compiled programs
        are shared. If nothing has changed, the same object is returned.
        """

    def held_out(self, settings: EvaluationConfig) -> Environment:
        """Return the environment for evaluations, for example one with held-out tasks."""


@dataclasses.dataclass(frozen=True)
class FixedTasks:
    """Task source for environments without tasks: every update and evaluation uses the same environment."""

    environment: Environment
    seed: int = 0
    fingerprint = ""
    keeps_episodes = True

    @property
    def metadata(self) -> dict[str, Any]:
        return {}

    def training(self, update: int) -> Environment:
        return self.environment

    def held_out(self, settings: EvaluationConfig) -> Environment:
        return self.environment


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A way to evaluate a policy, with the class of its settings."""

    config: type[Config]
    run: Callable[[Any, PolicyNetwork, Any, bool], Sequence[EvaluationResult]]
    """Function `run(tasks, network, settings, final)`, where `tasks` is the run's `TaskSource`. `final` is
    True for the last evaluation of a run and in `phalanx eval`; such an evaluation may take longer."""
    episodes: Callable[[Any, Any], EvaluationEpisodes] | None = None
    """Function `episodes(tasks, settings)` that returns the episodes that `run` evaluates with greedy
    actions. The report shows some of them. If None, it shows other episodes of the held-out environment."""


def _evaluate_episodes(
    tasks: TaskSource, network: PolicyNetwork, settings: EpisodeEvaluationConfig, final: bool
) -> Sequence[EvaluationResult]:
    environment = tasks.held_out(settings)
    split = "train" if environment is tasks.training(0) else "held_out"
    return evaluate_episodes(environment, network, settings, split)


EPISODES = Evaluation(
    EpisodeEvaluationConfig,
    _evaluate_episodes,
    lambda tasks, settings: sampled_episodes(tasks.held_out(settings), settings),
)
"""Mean return, length and success rate of greedy episodes."""


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """How an environment is made, trained and evaluated. Only `make` is required."""

    make: Callable[..., Environment]
    """Class or function that creates the environment: `make(config)`, or `make(**settings)` if there is no
    `config`. Further keyword-only parameters are objects that can be passed from Python."""
    config: type[Config] | None = None
    """Class of the environment's settings. If None, the fields of the environment's class are its
    settings."""
    network: Callable[[Any, Any, Key], PolicyNetwork] | None = None
    """Function `network(env_settings, network_settings, key)` that creates the policy network. If None, the
    network is created from the environment's spaces."""
    network_config: type[Config] = DefaultNetworkConfig
    """Class of the network's settings."""
    evaluation: Evaluation = EPISODES
    """Evaluation during training."""
    eval_command: Evaluation | None = None
    """Evaluation in `phalanx eval`. If None, it is the same as during training."""
    tasks: Callable[[Any, int], TaskSource] = FixedTasks
    """Function `tasks(environment, seed)` that creates the source of fresh and held-out tasks."""
    expert: Callable[[Any], Expert] | None = None
    """Function that creates the expert that behavior cloning imitates in an environment."""
    text: Callable[[Any], TextInterface] | None = None
    """Function that creates the text interface of an environment."""
    task_name: Callable[[Any, Any], str] | None = None
    """Function `task_name(environment, state)` that returns the name of a state's task."""
    episode_view: Callable[[Any, Sequence[dict[str, Any]]], list[dict[str, Any]]] | None = None
    """Function `episode_view(environment, records)` that prepares the records of `record_episodes` for the
    episode viewer. If None, their states are drawn with `render`."""
    grids: Callable[[Any, Any], dict[str, Any]] | None = None
    """Function `grids(environment, state)` that returns the colored grids in a state by title, for the
    policy's episodes in the report. Cells are colors from 0 to 9. If None, the report shows images."""

    @functools.cached_property
    def settings_fields(self) -> Mapping[str, FieldInfo]:
        """Type, default and description of each setting by name."""
        if self.config is not None:
            return self.config.model_fields
        if not dataclasses.is_dataclass(self.make):
            raise TypeError(
                f"{getattr(self.make, '__name__', self.make)} is a function, so its settings are unknown: "
                "set EnvSpec.config"
            )
        hints, docstrings = get_type_hints(self.make), _field_docstrings(self.make)
        fields = {}
        for field in dataclasses.fields(self.make):
            if field.init and not field.metadata.get("kind"):
                default = ... if field.default is dataclasses.MISSING else field.default
                fields[field.name] = FieldInfo.from_annotated_attribute(hints[field.name], default)
                fields[field.name].description = docstrings.get(field.name)
        return fields

    def validate(self, values: Mapping[str, Any]) -> Config:
        """Return validated settings: an instance of `config`, or a config with one field per setting.

        Raises:
            ValidationError: If a setting is unknown or invalid.
        """
        if self.config is not None:
            return self.config.model_validate(dict(values))
        defaults = {
            name: field.default for name, field in self.settings_fields.items() if not field.is_required()
        }
        return _Arguments(**{**defaults, **self._validator.validate_python(dict(values))})

    @functools.cached_property
    def _validator(self) -> Any:
        types: dict[str, Any] = {
            name: field.annotation if field.is_required() else NotRequired[field.annotation]
            for name, field in self.settings_fields.items()
        }
        settings = TypedDict("settings", types)  # type: ignore[misc]
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        settings.__pydantic_config__ = config  # type: ignore[attr-defined]
        return TypeAdapter(settings)

    def create(self, settings: Config, **objects: Any) -> Environment:
        """Create the environment from validated settings.

        Args:
            settings: Result of `validate`.
            objects: Existing objects, such as tasks, that `make` accepts as keyword-only arguments.
        """
        arguments = (settings,) if self.config else ()
        environment = self.make(*arguments, **({} if self.config else dict(settings)), **objects)
        hash(jax.tree.structure(environment))  # raises an error with a reason if a setting is not hashable
        return environment


@functools.cache
def spec_of_class(cls: type[Environment]) -> EnvSpec:
    """Return the spec of an environment that consists of its class."""
    return EnvSpec(make=cls)


def _field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and its base classes, if their source is known."""
    found = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, Environment) or base is Environment:
            continue
        try:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # there is no source file, as for a class from `exec`
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, text in itertools.pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(docstring))
                ):
                    found[name] = inspect.cleandoc(docstring)
    return found


class _Arguments(Config):
    """Settings of an environment without a config class: the fields of the environment's class."""

    model_config = ConfigDict(extra="allow")
