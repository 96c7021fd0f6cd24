"""Base classes for the settings of training runs, and the `env` section, whose settings depend on its id."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from phalanx import registry
from phalanx.config import PRESET_FOLDER, Config, Section, load_config, load_preset, parse_overrides
from phalanx.core.environment import Environment
from phalanx.core.evaluation import EpisodeEvaluationConfig, EvaluationConfig
from phalanx.core.spec import EnvSpec
from phalanx.import_path import absolute_address
from phalanx.logging.config import LoggingConfig
from phalanx.text.env import PromptFormat
from phalanx.text.names import TextEnvConfig, parse_env_name
from phalanx.training.optimizer import OptimizerConfig

AnyConfig = TypeVar("AnyConfig", bound=Config)
AnyRunConfig = TypeVar("AnyRunConfig", bound="RunConfig")

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

    @classmethod
    def inherit(cls, source: "RunConfig") -> dict[str, Any] | None:
        """Return the settings that a new run inherits from the run that it starts from (`init_from`).

        Args:
            source: Config of the run whose parameters become the initial parameters of the new run.

        Returns:
            Nested settings, which take precedence over presets. None if no settings are inherited.
        """
        return None


class EnvRunConfig(RunConfig):
    """Base class for the settings of algorithms that train in the environment named by `env.id`."""

    aliases: ClassVar[Mapping[str, str]] = OPTIMIZER_ALIASES

    env: Any
    """Environment and its settings."""

    @classmethod
    def load(
        cls: type[AnyRunConfig],
        preset: str | Path | None = None,
        overrides: Sequence[str] = (),
        *,
        env: str | None = None,
        inherited: Mapping[str, Any] | None = None,
    ) -> AnyRunConfig:
        values = {} if preset is None else load_preset(cls, preset)
        name = choose_environment(env, [values, inherited or {}, parse_overrides(overrides)])
        settings = dict(inherited or {})
        if preset is None and inherited is None and name:
            preset = default_preset(cls, name)
            # A preset that is named after an environment can select a more specific one, such as
            # `lights_out::multi`.
            if preset is not None and preset == env and load_preset(cls, preset).get("env", {}).get("id"):
                name = ""
        if name:
            settings["env"] = {**settings.get("env", {}), "id": name}
        return load_config(cls, preset, overrides, settings=settings)


_OBJECT_SPEC = EnvSpec(make=Environment)
"""Spec of environments that are passed to an algorithm as objects."""


class EnvConfig(Config):
    """The `env` section of a config: the name of an environment, and the environment's own settings.

    In YAML and on the command line, all of them are direct entries of the section.
    """

    id: str = ""
    """Environment: an id such as `arc-v2`, `package.module:Name` or `path/file.py:Name`. Empty if the
    environment was passed to the algorithm as an object."""
    settings: SerializeAsAny[Config] = Config()
    """Settings of the environment, an instance of the config class of its `EnvSpec`."""

    @model_validator(mode="before")
    @classmethod
    def _validate_settings(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or isinstance(values.get("settings"), Config):
            return values
        own = {key: value for key, value in values.items() if key != "id"}
        if not values.get("id"):
            if own:
                raise ValueError(f"the setting {next(iter(own))} requires an environment: set env.id")
            return values
        name, spec = registry.find(str(values["id"]))
        return {"id": name, "settings": spec.validate(own)}

    @model_serializer(mode="plain")
    def _flatten(self, info: Any) -> dict[str, Any]:
        return {"id": self.id, **self.settings.model_dump(mode=info.mode)}

    @property
    def spec(self) -> EnvSpec:
        """The environment's spec. If the environment was passed as an object, the defaults of `EnvSpec`."""
        return registry.find(self.id)[1] if self.id else _OBJECT_SPEC

    def make(self) -> Environment:
        """Create the environment."""
        if not self.id:
            raise ValueError(
                "the config names no environment: use PPOConfig.load(overrides=['env.id=arc']), for example, "
                "or pass an environment to the algorithm"
            )
        return self.spec.create(self.settings)


class PolicyRunConfig(EnvRunConfig):
    """Base class for the settings of algorithms that train a policy network in an environment."""

    env: EnvConfig = EnvConfig()
    """Environment and its settings."""
    network_path: str = ""
    """Function or class that creates the policy network from a key, as `package.module:Name` or
    `path/file.py:Name`. If empty, the environment's own network is used, with the settings in `network`."""
    network: SerializeAsAny[Config] = Config()
    """Settings for the policy network. The available settings depend on the environment."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Settings for Adam, the learning-rate schedule and gradient clipping."""
    evaluation: SerializeAsAny[EvaluationConfig] = EpisodeEvaluationConfig()
    """Settings for evaluations during training. The available settings depend on the environment."""

    @classmethod
    def load(
        cls: type[AnyRunConfig],
        preset: str | Path | None = None,
        overrides: Sequence[str] = (),
        *,
        env: str | None = None,
        inherited: Mapping[str, Any] | None = None,
    ) -> AnyRunConfig:
        config: Any = super().load(preset, overrides, env=env, inherited=inherited)
        # The config of a run whose environment was passed as an object has no id.
        if preset is None and not config.env.id:
            raise ValueError("no environment was chosen: set env.id (--env), such as env.id=arc")
        return config

    @property
    def environment_types(self) -> tuple[Any, ...]:
        return (self.env.spec.make,) if self.env.id else ()

    @classmethod
    def section_types(cls, values: Mapping[str, Any]) -> dict[str, Section]:
        env = values.get("env")
        name = env.get("id") if isinstance(env, Mapping) else None
        spec = registry.find(str(name))[1] if name else _OBJECT_SPEC
        fields = {"id": EnvConfig.model_fields["id"], **(spec.settings_fields if name else {})}
        return {"env": fields, "network": spec.network_config, "evaluation": spec.evaluation.config}

    @field_validator("network_path")
    @classmethod
    def _make_absolute(cls, value: str) -> str:
        return absolute_address(value) if value else value

    @model_validator(mode="before")
    @classmethod
    def _validate_sections(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        env: EnvConfig = _validate_section("env", EnvConfig, values.get("env", EnvConfig()))
        spec = env.spec
        sections: dict[str, Config] = {"env": env}
        for name, expected in (("network", spec.network_config), ("evaluation", spec.evaluation.config)):
            value = values.get(name, {})
            if isinstance(value, Config) and not isinstance(value, expected):
                # Settings that all environments share, such as those of an algorithm's default.
                value = {field: getattr(value, field) for field in value.model_fields_set}
            sections[name] = _validate_section(name, expected, value)
        return {**values, **sections}

    @model_validator(mode="after")
    def _check_optimizer(self) -> "PolicyRunConfig":
        self.optimizer.check_supported("adamw")
        return self


def _validate_section(name: str, cls: type[AnyConfig], value: Any) -> AnyConfig:
    """Validate a section of a config. The locations in errors start with the name of the section."""
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        details: list[Any] = [{**detail, "loc": (name, *detail["loc"])} for detail in error.errors()]
        raise ValidationError.from_exception_data(cls.__name__, details) from None


class TextEvaluationConfig(EvaluationConfig):
    """Settings for evaluations of a language model during training."""

    num_episodes: int = Field(default=20, ge=0)
    """Number of evaluation episodes per task. 0 disables these evaluations."""


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
    def section_types(cls, values: Mapping[str, Any]) -> dict[str, Section]:
        env = values.get("env")
        name = env.get("id") if isinstance(env, Mapping) else None
        return {"env": TextEnvConfig.fields_for(str(name or cls.model_fields["env"].default.id))}

    @property
    def trained_env(self) -> TextEnvConfig | None:
        """Environment that the model is trained in. None if it is trained on data."""
        return self.env

    @property
    def environment_types(self) -> tuple[Any, ...]:
        return tuple(part.load() for part in parse_env_name(self.env.id)) if self.env.id else ()


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
