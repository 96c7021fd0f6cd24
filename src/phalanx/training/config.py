"""Base classes for the settings of training runs, and functions that add the settings of an environment.

`PPOConfig` and other configs of policy algorithms have the sections `env`, `network` and `evaluation`, whose
fields depend on the environment. `config_class` derives a class with these fields, so that an algorithm needs
only one config class for all environments.
"""

import abc
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, create_model, model_validator

from phalanx.config import PRESET_FOLDER, Config, load_config, load_preset, parse_overrides
from phalanx.core.environment import Environment
from phalanx.core.evaluation import EpisodeEvaluationConfig, EvaluationConfig
from phalanx.logging.config import LoggingConfig
from phalanx.registry import environment_class, settings_class
from phalanx.text.env import PromptFormat
from phalanx.text.env_spec import TextEnvConfig, env_config_class, parse_env_spec
from phalanx.training.optimizer import OptimizerConfig

AnyRunConfig = TypeVar("AnyRunConfig", bound="RunConfig")
AnyEnvRunConfig = TypeVar("AnyEnvRunConfig", bound="EnvRunConfig")

OPTIMIZER_ALIASES = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.max_grad_norm",
}
"""Maps short names of settings to their full names in the `optimizer` section."""


class CheckpointConfig(Config):
    """Settings for when to save checkpoints and which checkpoints to keep.

    A checkpoint of the last update is always saved.
    """

    renamed_settings: ClassVar[Mapping[str, str]] = {"best": "best_metric"}

    every: int = Field(default=50, ge=1)
    """Number of updates between two checkpoints."""
    minutes: float | None = Field(default=10.0, gt=0)
    """Maximum time between two checkpoints, in minutes. None means no limit."""
    keep: int = Field(default=2, ge=1)
    """Number of newest checkpoints to keep."""
    best_metric: str | None = None
    """Evaluation metric, such as `success_rate`. The checkpoint with the best value is kept in addition to
    the newest checkpoints. If None, only the newest checkpoints are kept."""
    best_mode: Literal["max", "min"] = "max"
    """Whether higher (`max`) or lower (`min`) values of `best_metric` are better."""


class RunConfig(Config):
    """Base class for the settings of a training run. Algorithms add their own settings in subclasses."""

    num_updates_setting: ClassVar[str] = "num_updates"
    """Name of the setting that determines the number of updates. It is the only setting that can change when
    a run is extended."""

    seed: int = Field(default=0, ge=0)
    """Seed for the initial parameters, the episodes and the order of samples."""
    num_seeds: int = Field(default=1, ge=1)
    """Number of seeds to train with: `seed`, `seed + 1`, ... Each seed is a separate run."""
    num_updates: int = Field(default=100, ge=1)
    """Number of updates to train for."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Settings for evaluations during training."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Settings for checkpoints."""
    logging: LoggingConfig = LoggingConfig()
    """Settings for logging metrics and sampled episodes."""

    @property
    def environment_types(self) -> tuple[Any, ...]:
        """Classes or functions that create the environments named in the config."""
        return ()

    @classmethod
    def load(
        cls: type[AnyRunConfig],
        preset: str | Path | None = None,
        overrides: Sequence[str] = (),
        *,
        env: str | None = None,
        inherited: Mapping[str, Any] | None = None,
    ) -> AnyRunConfig:
        """Create a config from defaults, a preset, inherited settings and overrides.

        These sources are listed in order of increasing precedence.

        Args:
            preset: Name of a preset or path of a YAML file. If None, the preset that is named after the
                environment is used, unless settings are inherited or there is no such preset.
            overrides: Settings as `key=value`.
            env: Name of the environment, equivalent to the override `env.id=...`.
            inherited: Nested settings copied from the run that provides the initial parameters. None if the
                run starts from new parameters.
        """
        if env is not None:
            hint = "; set dataset=PATH" if "dataset" in cls.model_fields else ""
            raise ValueError(f"{cls.__name__} has no setting env.id, so no environment can be chosen{hint}")
        return load_config(cls, preset, overrides, settings=inherited)


class EnvRunConfig(RunConfig):
    """Base class for the settings of algorithms that train in the environment named by `env.id`.

    The fields of some sections depend on the environment. `load` derives a class with these fields.
    """

    aliases: ClassVar[Mapping[str, str]] = OPTIMIZER_ALIASES
    algorithm_config: ClassVar["type[EnvRunConfig] | None"] = None
    """The algorithm's own config class, if this class was derived from it by adding the settings of an
    environment. None if this class is the algorithm's own config class."""

    env: Any
    """Environment and its settings."""

    @classmethod
    def load(
        cls: type[AnyEnvRunConfig],
        preset: str | Path | None = None,
        overrides: Sequence[str] = (),
        *,
        env: str | None = None,
        inherited: Mapping[str, Any] | None = None,
    ) -> AnyEnvRunConfig:
        algorithm_config = cls.algorithm_config or cls
        preset_values = {} if preset is None else load_preset(algorithm_config, preset)
        name = choose_environment(env, [preset_values, inherited or {}, parse_overrides(overrides)])
        has_env_section = isinstance(preset_values.get("env"), Mapping)
        name, composed = algorithm_config._with_env_settings(name, has_env_section)
        if preset is None and inherited is None and name:
            preset = default_preset(algorithm_config, name)
            if preset is not None and env == preset:
                # A preset named after an environment can select a more specific one, such as
                # `lights_out::multi`.
                name = load_preset(algorithm_config, preset).get("env", {}).get("id", name)
                name, composed = algorithm_config._with_env_settings(name, has_env_section)
        config: Any = load_config(composed, preset, overrides, settings=inherited)
        return config.model_copy(update={"env": config.env.model_copy(update={"id": name})})

    @classmethod
    @abc.abstractmethod
    def _with_env_settings(cls, name: str, has_env_section: bool) -> "tuple[str, type[EnvRunConfig]]":
        """Return a config class that also has the settings of an environment.

        Args:
            name: Name of the environment. Empty if none was chosen.
            has_env_section: Whether the preset has an `env` section. If not, an empty `name` is an error for
                algorithms that have no default environment.

        Returns:
            The full name of the environment and the config class.
        """


class EnvConfig(Config):
    """The `env` section of a config. `config_class` adds the settings of the environment named by `id`."""

    id: str = ""
    """Environment: an id such as `arc-v2`, `package.module:Name` or `path/file.py:Name`. Empty if the
    environment was passed to the algorithm as an object."""


class PolicyRunConfig(EnvRunConfig):
    """Base class for the settings of algorithms that train a policy network in an environment."""

    environment_type: ClassVar[type[Environment] | None] = None
    """Class of the environment whose settings this config class includes. Set by `config_class`; None for
    classes that have no settings of a specific environment."""

    env: EnvConfig = EnvConfig()
    """Environment and its settings."""
    network: Config = Config()
    """Settings for the policy network. The available settings depend on the environment."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Settings for Adam, the learning-rate schedule and gradient clipping."""
    evaluation: EpisodeEvaluationConfig = EpisodeEvaluationConfig()
    """Settings for evaluations during training. The available settings depend on the environment."""

    @model_validator(mode="after")
    def _check_optimizer(self) -> "PolicyRunConfig":
        self.optimizer.check_supported("adamw")
        return self

    @classmethod
    def _with_env_settings(cls, name: str, has_env_section: bool) -> tuple[str, type[EnvRunConfig]]:
        if name:
            full_name, environment = environment_class(name)
            return full_name, config_class(cls, environment)
        if not has_env_section:
            raise ValueError("no environment was chosen: set env.id (--env), such as env.id=arc")
        # The preset is the config of a run whose environment was passed as an object.
        return "", cls

    @property
    def environment_types(self) -> tuple[Any, ...]:
        return () if self.environment_type is None else (self.environment_type,)

    @property
    def environment_settings(self) -> Any:
        """Settings in the `env` section, without the id.

        The value is an instance of the environment's `config_type`. If the environment has no `config_type`,
        the value is a mapping of constructor arguments.
        """
        config_type = None if self.environment_type is None else self.environment_type.config_type
        if config_type is None:
            return {name: value for name, value in self.env if name != "id"}
        return config_type(**{name: getattr(self.env, name) for name in config_type.model_fields})

    def make_environment(self) -> Environment:
        """Create the environment that the `env` section describes."""
        if self.environment_type is None:
            raise ValueError(
                "the config names no environment: use PPOConfig.load(overrides=['env.id=arc']), for example, "
                "or pass an environment to the algorithm"
            )
        return self.environment_type.from_config(self.environment_settings)


class TextRunConfig(EnvRunConfig):
    """Base class for the settings of algorithms that train a language model, with or without a text
    environment."""

    env: TextEnvConfig = TextEnvConfig()
    """Text environment. If `env.id` names exactly one environment, and this environment has settings of its
    own (for example a JAX environment or `puzzle_server`), they are also set in this section."""
    prompt_format: PromptFormat = "compact"
    """Format of the prompts. `compact` prompts are meant for small models: they are short and do not explain
    the rules. `full` prompts include the rules. Environments with only one format ignore this setting."""

    @classmethod
    def _with_env_settings(cls, name: str, has_env_section: bool) -> tuple[str, type[EnvRunConfig]]:
        name = name or cls.model_fields["env"].default.id
        return name, text_config_class(cls, env_config_class(name))

    @property
    def environment_types(self) -> tuple[Any, ...]:
        return tuple(part.load() for part in parse_env_spec(self.env.id)) if self.env.id else ()


@functools.cache
def text_config_class(
    algorithm_config: type[TextRunConfig], section: type[TextEnvConfig]
) -> type[TextRunConfig]:
    """Derive a subclass of an algorithm's config class whose `env` section configures a text environment.

    Args:
        algorithm_config: Config class of the algorithm.
        section: Class of the `env` section.
    """
    return _derive_class(algorithm_config, algorithm_config.__name__, {"env": section})


@functools.cache
def config_class(
    algorithm_config: type[PolicyRunConfig], environment: type[Environment]
) -> type[PolicyRunConfig]:
    """Derive a subclass of an algorithm's config class that also has the settings of an environment.

    The sections `env`, `network` and `evaluation` get the fields of the environment's `config_type`,
    `network_config` and `evaluation_config`. If the environment has no `config_type`, the fields of `env` are
    the arguments of the environment's constructor.
    """
    sections = {"env": settings_class(environment, EnvConfig), "evaluation": environment.evaluation_config}
    if environment.network_config is not None:
        sections["network"] = environment.network_config
    name = f"{environment.__name__}{algorithm_config.__name__}"
    composed = _derive_class(algorithm_config, name, sections)
    composed.environment_type = environment
    return composed


def _derive_class(
    algorithm_config: type[AnyEnvRunConfig], name: str, sections: Mapping[str, type[Config]]
) -> type[AnyEnvRunConfig]:
    """Derive a config class in which some sections are replaced.

    Args:
        algorithm_config: Class to derive from.
        name: Name of the new class.
        sections: Class of each replaced section, by name. If a class has required fields, its section is
            required as well.
    """
    fields: dict[str, Any] = {}
    for section, cls in sections.items():
        is_complete = not any(field.is_required() for field in cls.model_fields.values())
        description = algorithm_config.model_fields[section].description
        fields[section] = cls, Field(default=cls() if is_complete else ..., description=description)
    composed = create_model(
        name, __base__=algorithm_config, __module__=__name__, __doc__=algorithm_config.__doc__, **fields
    )
    composed.algorithm_config = algorithm_config
    return composed


def choose_environment(env: str | None, values: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of a run's environment, or an empty string if none is set.

    Args:
        env: Value of `--env`, which takes precedence. None if it was not given.
        values: Settings of the preset, inherited settings and overrides, in this order. The last mapping with
            an `env.id` determines the environment.

    Raises:
        ValueError: If `--env` and an override of `env.id` contradict each other.
    """
    sections = [value.get("env") for value in values]
    ids = [section.get("id") if isinstance(section, Mapping) else None for section in sections]
    if env is not None:
        if ids[-1] not in (None, env):
            raise ValueError(f"--env {env} and env.id={ids[-1]} contradict each other; give one")
        return env
    return next((str(name) for name in reversed(ids) if name), "")


def default_preset(algorithm_config: type[Config], environment: str) -> str | None:
    """Return the name of the algorithm's preset for an environment, or None if there is none.

    A preset is named after its environment, without the version. For example, `arc` is the preset for
    `arc-v2`.
    """
    name = re.sub(r"-v\d+$", "", environment)
    group = algorithm_config.preset_group
    is_name = group is not None and re.fullmatch(r"\w+", name) is not None
    return name if is_name and (PRESET_FOLDER / str(group) / f"{name}.yaml").is_file() else None
