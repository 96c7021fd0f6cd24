"""`EnvSpec`: settings from the fields of a class or from a config, defaults, and `FixedTasks`."""

import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pydantic import Field, ValidationError

import phalanx
from phalanx.config import Config
from phalanx.core import (
    DefaultNetworkConfig,
    Discrete,
    Environment,
    EnvSpec,
    EpisodeState,
    FixedTasks,
    TaskSource,
    array_field,
    host_field,
)
from phalanx.core.evaluation import EpisodeEvaluationConfig, EvaluationConfig
from phalanx.core.spec import EPISODES, spec_of_class
from phalanx.training import PPOConfig
from tests.helpers.corridor import Corridor
from tests.helpers.short_walk import ShortWalk, WalkNetwork


class Timer(EpisodeState):
    left: jax.Array


class Countdown(Environment):
    """Nothing can be done."""

    start: int
    speed: float = 0.5
    kinds: tuple[str, ...] = ("a",)
    max_episode_steps: int = 4
    table: Any = array_field(default_factory=lambda: jnp.zeros(2))
    names: Any = host_field(default=None)
    observation_space = action_space = Discrete(2)

    def initial_state(self, key: Any) -> Timer:
        return Timer(jnp.float32(self.start))

    def transition(self, state: Timer, action: Any) -> tuple[Any, Any, Any]:
        return Timer(state.left - self.speed), 0.0, False

    def observe(self, state: Timer) -> Any:
        return jnp.int32(0)


SPEC = spec_of_class(Countdown)
PATH = f"{__name__}:Countdown"


def test_settings_are_the_fields_of_the_class() -> None:
    fields = SPEC.settings_fields
    assert list(fields) == ["start", "speed", "kinds", "max_episode_steps"]
    assert fields["start"].is_required() and fields["speed"].default == 0.5
    assert fields["kinds"].annotation == tuple[str, ...]


def test_settings_are_converted_and_hashable() -> None:
    settings = SPEC.validate({"start": 3, "kinds": ["b", "c"], "speed": 1})
    assert dict(settings) == {"start": 3, "speed": 1.0, "kinds": ("b", "c"), "max_episode_steps": 4}
    assert type(settings.speed) is float
    assert settings == SPEC.validate(dict(settings)) and hash(settings) == hash(SPEC.validate(dict(settings)))
    assert pickle.loads(pickle.dumps(settings)) == settings
    environment = SPEC.create(settings)
    assert (environment.start, environment.kinds, environment.max_episode_steps) == (3, ("b", "c"), 4)


@pytest.mark.parametrize(
    ("settings", "location", "message"),
    [
        ({"start": "soon"}, ("start",), "valid integer"),
        ({}, ("start",), "required"),
        ({"start": 1, "sped": 2.0}, ("sped",), "Extra inputs are not permitted"),
    ],
    ids=["type", "missing", "unknown"],
)
def test_invalid_settings_are_named(settings: dict[str, Any], location: tuple[str], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        SPEC.validate(settings)
    assert [error["loc"] for error in caught.value.errors()] == [location]


def test_misspelled_settings_get_a_suggestion() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sped'; did you mean 'speed'"):
        phalanx.make(PATH, start=1, sped=2.0)
    with pytest.raises(ValueError, match=r"env.sped.*did you mean .*env.speed") as caught:
        PPOConfig.load(overrides=["env.start=1", "env.sped=2"], env=PATH)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"env.start must be an integer, got 'soon'"):
        PPOConfig.load(overrides=["env.start=soon"], env=PATH)


def test_arrays_and_host_objects_are_not_settings() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'names'"):
        phalanx.make(PATH, start=1, names=("a",))


def test_unhashable_setting_is_refused_when_the_environment_is_created() -> None:
    class Lists(Countdown):
        walls: Any = None

    with pytest.raises(TypeError, match=r"^Lists\.walls must be hashable, got list: use a tuple"):
        spec_of_class(Lists).create(spec_of_class(Lists).validate({"start": 1, "walls": [1]}))


def test_settings_of_a_run_are_flat_and_round_trip() -> None:
    config = PPOConfig.load(overrides=["env.start=3", "env.kinds=[x,y]"], env=PATH)
    assert config.env.id == PATH
    assert config.model_dump()["env"] == {
        "id": PATH,
        "start": 3,
        "speed": 0.5,
        "kinds": ("x", "y"),
        "max_episode_steps": 4,
    }
    assert PPOConfig.model_validate(config.model_dump(mode="json")) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.env.make() == Countdown(3, kinds=("x", "y"))


class CountdownConfig(Config):
    start: int = Field(default=5, ge=1)
    """First number."""


def make_countdown(config: CountdownConfig, *, names: tuple[str, ...] | None = None) -> Countdown:
    return Countdown(config.start, names=names)


WITH_CONFIG = EnvSpec(make=make_countdown, config=CountdownConfig)
CONFIG_PATH = f"{__name__}:WITH_CONFIG"


def test_settings_of_a_config_and_keyword_only_objects() -> None:
    assert list(WITH_CONFIG.settings_fields) == ["start"]
    environment = phalanx.make(CONFIG_PATH, start=2, names=("one", "two"))
    assert (environment.start, environment.names) == (2, ("one", "two"))
    assert phalanx.make(CONFIG_PATH, CountdownConfig(start=7)).start == 7
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        WITH_CONFIG.validate({"start": 0})
    with pytest.raises(ValueError, match="start must be at least 1, got 0"):
        phalanx.make(CONFIG_PATH, start=0)
    with pytest.raises(TypeError, match="has no config; pass its settings as keyword arguments"):
        phalanx.make(PATH, CountdownConfig())


def test_settings_of_a_function_need_a_config() -> None:
    message = r"make_countdown is a function, so its settings are unknown: set EnvSpec\.config"
    with pytest.raises(TypeError, match=message):
        EnvSpec(make=make_countdown).validate({})


def test_defaults_of_a_spec() -> None:
    spec = EnvSpec(make=Corridor)
    given = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    assert {name for name, value in given.items() if value is None} == {
        "config",
        "network",
        "eval_command",
        "expert",
        "text",
        "task_name",
        "episode_view",
        "grids",
    }
    assert (spec.network_config, spec.evaluation, spec.tasks) == (DefaultNetworkConfig, EPISODES, FixedTasks)
    assert EPISODES.config is EpisodeEvaluationConfig


def test_fixed_tasks_are_always_the_same_environment() -> None:
    environment = Corridor()
    tasks: Any = FixedTasks(environment, 3)
    assert isinstance(tasks, TaskSource)
    assert (tasks.fingerprint, tasks.metadata, tasks.keeps_episodes) == ("", {}, True)
    assert tasks.training(0) is tasks.training(7) is tasks.held_out(EvaluationConfig()) is environment


class ShorterWhenEvaluated(FixedTasks):
    """Evaluates with another step limit."""

    def held_out(self, settings: EvaluationConfig) -> Environment:
        return ShortWalk(max_episode_steps=5)


@pytest.mark.parametrize(("tasks", "split"), [(FixedTasks, "train"), (ShorterWhenEvaluated, "held_out")])
def test_evaluation_says_whether_its_episodes_are_held_out(tasks: Any, split: str) -> None:
    network = WalkNetwork(jax.random.key(0))
    [result] = EPISODES.run(tasks(ShortWalk()), network, EpisodeEvaluationConfig(num_episodes=2), True)
    assert result.as_record()["split"] == split
    assert result.describe()[0].startswith(f"{split}, greedy: ")
