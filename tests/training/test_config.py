"""Configs of training runs: pickling, YAML, and errors in the sections that depend on the environment."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from phalanx.arc.config import ArcConfig
from phalanx.config import list_presets, list_settings, load_config, save_config
from phalanx.core import Box, Discrete, Environment, EnvSpec, EpisodeState
from phalanx.proofs.config import ProofConfig
from phalanx.puzzles.server_client.env import PuzzleServerEnvConfig
from phalanx.registry import ALGORITHMS
from phalanx.training import BCConfig, GRPOConfig, KGEConfig, PPOConfig, SFTConfig
from phalanx.training.algorithm import load_algorithm
from phalanx.training.config import RunConfig


class Line(Environment):
    """Step along a line until its end."""

    size: int = 4
    """Number of cells."""
    start: tuple[int, ...] = (0,)
    slippery: bool = False
    max_episode_steps: int = 20

    @property
    def observation_space(self) -> Box:
        return Box(0, self.size - 1, (1,), jnp.int32)

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial_state(self, key: Any) -> "LineState":
        return LineState(jnp.zeros(1, jnp.int32))

    def transition(self, state: "LineState", action: Array) -> Any:
        position = state.position + action
        return LineState(position), jnp.float32(0), position[0] == self.size - 1

    def observe(self, state: "LineState") -> Array:
        return state.position


class LineState(EpisodeState):
    position: Array


LINE = f"{__name__}:Line"
SPEC = EnvSpec(make=Line)

CONFIGS: dict[str, Callable[[], RunConfig]] = {
    "ppo arc": lambda: PPOConfig.load("arc", ["env.dataset.families=[recolor]", "network.hidden_dim=8"]),
    "ppo proofs": lambda: PPOConfig.load("proofs", ["env.reward.type=2", "evaluation.max_positives=6"]),
    "ppo class": lambda: PPOConfig.load(env=LINE, overrides=["env.size=7", "env.start=[1, 2]"]),
    "ppo without environment": PPOConfig,
    "bc arc": lambda: BCConfig.load("arc_agi_1", ["lr=1e-3"]),
    "bc proofs": lambda: BCConfig.load(env="proofs"),
    "bc spec": lambda: BCConfig.load(env=f"{__name__}:SPEC", overrides=["env.slippery=true"]),
    "sft puzzles": lambda: SFTConfig.load("puzzles", ["env.difficulty=hard"]),
    "sft arc": lambda: SFTConfig.load("arc", ["env.dataset.max_grid_height=5"]),
    "grpo server": lambda: GRPOConfig.load(env="puzzle_server", overrides=["env.num_connections=3"]),
    "grpo proofs": lambda: GRPOConfig.load("proofs"),
    "kge": lambda: KGEConfig.load("umls"),
    "heuristic": lambda: load_algorithm("heuristic").config_type.load(),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_survive_pickling_copying_and_yaml(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    save_config(config, tmp_path / "config.yaml")
    loaded = load_config(type(config), tmp_path / "config.yaml")
    assert type(config).load(tmp_path / "config.yaml") == config
    for again in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), loaded):
        assert again == config
        assert hash(again) == hash(config)
        assert type(again) is type(config)
    assert load_config(type(config), config) == config
    assert load_config(type(config), config, ["seed=7"]) == config.model_copy(update={"seed": 7}) != config


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_survives_pickling_and_yaml(algorithm: str, tmp_path: Path) -> None:
    cls = load_algorithm(algorithm).config_type
    for preset in list_presets(cls.preset_group) if cls.preset_group else ():
        config = cls.load(preset)
        save_config(config, tmp_path / "config.yaml")
        assert cls.load(tmp_path / "config.yaml") == config
        assert pickle.loads(pickle.dumps(config)) == config


def test_sections_have_the_classes_of_the_environment() -> None:
    arc = PPOConfig.load("arc", ["env.dataset.max_grid_height=5"])
    assert (arc.env.id, type(arc.env.settings)) == ("arc-v2", ArcConfig)
    assert arc.env.settings.dataset.max_grid_height == 5
    proofs = PPOConfig.load(env="proofs", overrides=["evaluation.max_positives=6"])
    assert type(proofs.env.settings) is ProofConfig
    assert proofs.evaluation.max_positives == 6
    server = GRPOConfig.load(env="puzzle_server", overrides=["env.num_connections=3"])
    assert isinstance(server.env.settings, PuzzleServerEnvConfig)
    assert server.env.settings.num_connections == 3
    line = PPOConfig.load(env=LINE, overrides=["env.size=7"])
    assert dict(line.env.settings) == {"size": 7, "start": (0,), "slippery": False, "max_episode_steps": 20}
    assert line.env.make() == Line(size=7)


def test_yaml_of_the_env_section_is_flat() -> None:
    values = PPOConfig.load(env=LINE, overrides=["env.size=7"]).model_dump(mode="json")["env"]
    assert values == {"id": LINE, "size": 7, "start": [0], "slippery": False, "max_episode_steps": 20}


def test_a_config_is_static_under_jit() -> None:
    config = PPOConfig.load(env=LINE)
    assert jax.tree.leaves(config) == []
    assert jax.jit(lambda config, x: x * config.env.settings.size)(config, 2) == 8


@pytest.mark.parametrize(
    ("env", "override", "message"),
    [
        (
            "arc",
            "env.dataset.familys=[a]",
            "unknown key 'env.dataset.familys'; did you mean 'env.dataset.families'?",
        ),
        ("arc", "network.knd=conv", "unknown key 'network.knd'; did you mean 'network.kind'?"),
        ("arc", "evaluation.evry=3", "unknown key 'evaluation.evry'; did you mean 'evaluation.every'?"),
        ("arc", "families=[a]", "unknown key 'families'; did you mean 'env.dataset.families'?"),
        ("arc", "optimizer.learning_rat=1", "did you mean 'optimizer.learning_rate'?"),
        ("arc", "env.settings={}", "unknown key 'env.settings'; valid here: id, episode"),
        ("proofs", "env.reward.typ=1", "unknown key 'env.reward.typ'; did you mean 'env.reward.type'?"),
        ("proofs", "evaluation.max_positive=1", "did you mean 'evaluation.max_positives'?"),
        (LINE, "env.siz=3", "unknown key 'env.siz'; did you mean 'env.size'?"),
        (LINE, "size=3", "unknown key 'size'; did you mean 'env.size'?"),
        (LINE, "env.zebra=3", "valid here: id, size, start, slippery, max_episode_steps"),
        (LINE, "env.size.x=3", "'env.size' is a setting, not a section"),
        (LINE, "network.hiden_dim=3", "unknown key 'network.hiden_dim'; did you mean 'network.hidden_dim'?"),
        (LINE, "evaluation.num_episode=3", "did you mean 'evaluation.num_episodes'?"),
    ],
)
def test_an_unknown_setting_gives_one_line_with_its_section(env: str, override: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        PPOConfig.load(env=env, overrides=[override])
    assert str(error.value).startswith(f"override {override!r}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("env", "override", "message"),
    [
        (
            "arc",
            "env.dataset.max_grid_height=40",
            "env.dataset.max_grid_height must be between 1 and 30, got 40",
        ),
        (
            "arc",
            "env.backend=natve",
            "env.backend must be 'auto', 'native' or 'xla', got 'natve'; did you mean",
        ),
        ("arc", "network.num_layers=few", "network.num_layers must be an integer, got"),
        ("proofs", "env.max_actions=1", "env.max_actions must be between 2 and 4096, got 1"),
        (LINE, "env.size=many", "env.size must be an integer, got 'many'"),
        (LINE, "env.size=2.5", "env.size must be an integer, got 2.5"),
        (LINE, "env.start=[1, x]", "env.start[1] must be an integer, got 'x'"),
        (LINE, "env.slippery=perhaps", "env.slippery must be true or false, got 'perhaps'"),
        (LINE, "network.hidden_dim=0", "network.hidden_dim must be at least 1, got 0"),
        (LINE, "evaluation.num_episodes=-1", "evaluation.num_episodes must be at least"),
        (LINE, "evaluation.every=x", "evaluation.every must be an integer, got 'x'"),
        (LINE, "env=7", "env must be settings as `key: value`, got 7"),
        (LINE, "network=7", "network must be settings as `key: value`, got 7"),
    ],
)
def test_an_invalid_value_gives_one_line_with_its_section(env: str, override: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        PPOConfig.load(env=env, overrides=[override])
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.num_connection=3", "unknown key 'env.num_connection'; did you mean 'env.num_connections'?"),
        ("env.num_connections=x", "env.num_connections must be an integer, got 'x'"),
        ("env.turns=both", "env.turns must be 'single' or 'multi', got 'both'"),
    ],
)
def test_settings_of_text_environments_are_checked_in_their_section(override: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        GRPOConfig.load(env="puzzle_server", overrides=[override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_of_a_class_are_listed_with_their_descriptions() -> None:
    sections = PPOConfig.section_types({"env": {"id": LINE}})
    listed = {setting.name: setting for setting in list_settings(PPOConfig, sections=sections)}
    assert listed["env.size"] == ("env.size", "int", 4, "Number of cells.")
    assert listed["env.start"][1:3] == ("tuple[int, ...]", (0,))
    assert "network.hidden_dim" in listed and "evaluation.num_episodes" in listed
