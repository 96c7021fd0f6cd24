"""The `env` section of the SFT and GRPO configs."""

import itertools
from typing import Any

import pytest

from phalanx.text.env import TextVectorEnvironment
from phalanx.text.env_spec import TextEnvConfig, env_config_class
from phalanx.training import GRPOConfig, SFTConfig, open_data
from phalanx.training.sft import trained_env


def make(spec: str, **settings: Any) -> TextVectorEnvironment:
    return env_config_class(spec)(id=spec, **settings).make()


def test_specs_are_resolved_and_invalid_specs_raise_error() -> None:
    assert make("sudoku::multi").tasks == ("sudoku:easy:multi",)
    assert make("sudoku", difficulty="hard").tasks == ("sudoku:hard:single",)
    with pytest.raises(ValueError, match="did you mean 'sudoku'"):
        make("sudoka")
    with pytest.raises(ValueError, match="overrides was removed; set the environment's own settings"):
        make("sudoku", overrides=("x=1",))
    with pytest.raises(ValueError, match="address must be HOST:PORT"):
        make("puzzle_server", address="localhost")
    with pytest.raises(ValueError, match="name one or more different games"):
        make("puzzle_server", address="localhost:1", games=("lights", "lights:easy"))
    with pytest.raises(ValueError, match="unknown text environment 'sudoka'; did you mean 'sudoku'"):
        open_data(SFTConfig.load(None, ("env.id=sudoka",)))


def test_environment_with_one_episode_has_no_validation_split() -> None:
    env = make("arc-v2", dataset={"families": ("recolor",), "num_generated_tasks": 1})
    with pytest.raises(ValueError, match="of arc-v2 are in the validation split"):
        next(env.seeds("arc-v2", "validation"))


def test_env_section_includes_settings_of_jax_environments_and_servers() -> None:
    assert {"dataset", "episode", "action"} <= env_config_class("arc").model_fields.keys()
    assert {"max_actions", "queries"} <= env_config_class("proofs-v1").model_fields.keys()
    assert {"address", "games"} <= env_config_class("puzzle_server").model_fields.keys()
    assert env_config_class("sudoku,sokoban") is env_config_class("") is TextEnvConfig
    config = SFTConfig.load(env="arc")
    assert (config.env.id, config.env.dataset.max_grid_height, config.env.episode.require_submit) == (
        "arc",
        4,
        True,
    )
    assert SFTConfig.load(overrides=["env.id=proofs"]).env.max_actions == 32
    assert GRPOConfig.load(env="lights_out").env.id == "lights_out::multi"


def test_episodes_are_reproducible_and_in_one_split() -> None:
    env = make("proofs")
    prompts = {}
    for split in ("train", "validation", "test"):
        seeds = list(itertools.islice(env.seeds("proofs", split), 6))
        prompts[split] = env.reset(seeds)
        assert env.reset(seeds) == prompts[split]
    assert not set(prompts["train"]) & {*prompts["validation"], *prompts["test"]}
    assert all("Choices:\n0: " in prompt for prompt in prompts["validation"])


def test_model_trained_on_a_file_has_no_text_environment() -> None:
    assert trained_env(SFTConfig.load(None, ["env.id=arc"])) is not None
    assert trained_env(SFTConfig.load(None, ["data.samples=samples.jsonl"])) is None


def test_unknown_kinds_in_the_puzzle_weights_are_rejected() -> None:
    with pytest.raises(ValueError, match="'sudoka', which is not a kind of puzzle"):
        open_data(SFTConfig.load(None, ("env.id=sudoku", "data.puzzle_weights={sudoka: 2}")))
    with pytest.raises(ValueError, match="must be at least 1"):
        SFTConfig.load(None, ("data.puzzle_weights={hitori: 0}",))
