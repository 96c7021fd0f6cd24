"""What Gymnasium makes of `phalanx/Arc-v0` and `phalanx/Proof-v0`: a config, tasks or data, an environment.

The environments' classes are in `gymnasium`.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phalanx.adapters.gymnasium import PhalanxEnv, PhalanxVectorEnv
from phalanx.adapters.gymnasium_rendering import Renderers, renderers_of
from phalanx.arc.config import ArcConfig
from phalanx.arc.environment import ArcEnvironment, Tasks
from phalanx.core.config import AnyConfig, in_words, load_config
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.knowledge.data import DataHandler
from phalanx.proofs.knowledge.vocabulary import IndexManager
from phalanx.proofs.search.environment import ProofEnv


def arc_env(
    config: Any = None,
    tasks: Tasks | None = None,
    *,
    observation: str = "dict",
    render_mode: str | None = None,
    **settings: Any,
) -> PhalanxEnv:
    """`gymnasium.make("phalanx/Arc-v0", ...)`; see `arc_environment`."""
    environment = arc_environment(config, tasks, **settings)
    return PhalanxEnv(environment, observation=observation, render_mode=render_mode)


def arc_vector_env(
    num_envs: Any,
    config: Any = None,
    tasks: Tasks | None = None,
    *,
    autoreset_mode: Any = "NextStep",
    observation: str = "dict",
    render_mode: str | None = None,
    **settings: Any,
) -> PhalanxVectorEnv:
    """`gymnasium.make_vec("phalanx/Arc-v0", ...)`; see `arc_environment`."""
    return PhalanxVectorEnv(
        arc_environment(config, tasks, **settings),
        num_envs,
        autoreset_mode=autoreset_mode,
        observation=observation,
        render_mode=render_mode,
    )


def arc_environment(
    config: Any = None,
    tasks: Tasks | None = None,
    *,
    max_episode_steps: int | None = None,
    **settings: Any,
) -> ArcEnvironment:
    """The environment of an `ArcConfig`, or of a preset's name or file, over some tasks or the config's own.

    `settings` change parts of the config: `dataset={"families": ("recolor",)}`, `engine="xla"`.
    """
    changed = _changed(_config(ArcConfig, config), settings)
    if max_episode_steps is not None:
        changed = _changed(changed, {"environment": {"max_episode_steps": max_episode_steps}})
    return ArcEnvironment.create(changed, tasks)


def proof_env(
    config: Any = None,
    data: DataHandler | str | Path | None = None,
    *,
    split: str = "train",
    observation: str = "dict",
    render_mode: str | None = None,
    **settings: Any,
) -> PhalanxEnv:
    """`gymnasium.make("phalanx/Proof-v0", ...)`; see `proof_environment`."""
    environment, renderers = proof_environment(config, data, split=split, **settings)
    return PhalanxEnv(environment, observation=observation, render_mode=render_mode, renderers=renderers)


def proof_vector_env(
    num_envs: Any,
    config: Any = None,
    data: DataHandler | str | Path | None = None,
    *,
    split: str = "train",
    autoreset_mode: Any = "NextStep",
    observation: str = "dict",
    render_mode: str | None = None,
    **settings: Any,
) -> PhalanxVectorEnv:
    """`gymnasium.make_vec("phalanx/Proof-v0", ...)`; see `proof_environment`."""
    environment, renderers = proof_environment(config, data, split=split, **settings)
    return PhalanxVectorEnv(
        environment,
        num_envs,
        autoreset_mode=autoreset_mode,
        observation=observation,
        render_mode=render_mode,
        renderers=renderers,
    )


def proof_environment(
    config: Any = None,
    data: DataHandler | str | Path | None = None,
    *,
    split: str = "train",
    max_episode_steps: int | None = None,
    **settings: Any,
) -> tuple[ProofEnv, Renderers]:
    """The environment over the queries of a handler, a folder or the generated families; and its pictures.

    `settings` change fields of the `ProofConfig`, or of the one in a file: `padding_states=32`,
    `queries={"negative_ratio": 0}`. `max_episode_steps` is the config's `max_depth`.
    """
    changed = _changed(_config(ProofConfig, config), settings)
    if max_episode_steps is not None:
        changed = _changed(changed, {"max_depth": max_episode_steps})
    if data is None:
        data = _generated_data()
    elif not isinstance(data, DataHandler):
        data = DataHandler(path=data)
    index_manager = IndexManager(data, changed.padding_atoms)
    environment = ProofEnv.from_data(changed, data, split, index_manager)
    return environment, renderers_of(environment, index_manager)


def _config(cls: type[AnyConfig], config: Any) -> AnyConfig:
    if config is None or isinstance(config, str):
        return load_config(cls, config)
    if not isinstance(config, cls):
        given = type(config).__name__
        raise TypeError(f"config must be of {cls.__name__}, a preset's name or a file's, got {given}")
    return config


def _changed(config: AnyConfig, settings: Mapping[str, Any]) -> AnyConfig:
    """The config with some settings changed; of a section that is given as a mapping, only what it names."""
    values = config.model_dump()
    for name, value in settings.items():
        if name not in values:
            there = ", ".join(values)
            raise TypeError(f"{type(config).__name__} has no setting {name!r}; it has {there}")
        both = isinstance(value, Mapping) and isinstance(values[name], Mapping)
        values[name] = {**values[name], **value} if both else value
    try:
        return type(config).model_validate(values)
    except ValidationError as error:
        raise ValueError(in_words(error, type(config))) from error


@functools.cache
def _generated_data() -> DataHandler:
    return DataHandler()
