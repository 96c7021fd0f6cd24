"""The `env` section of the SFT and GRPO configs."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from phalanx.puzzles import PuzzleEnvironment
from phalanx.text.env import TextVectorEnvironment
from phalanx.text.names import TextEnvConfig
from phalanx.training import GRPOConfig, SFTConfig, open_data


def make(name: str, **settings: Any) -> TextVectorEnvironment:
    return TextEnvConfig.model_validate({"id": name, **settings}).make()


def test_names_are_resolved_and_invalid_names_raise_error() -> None:
    assert make("sudoku::multi").tasks == ("sudoku:easy:multi",)
    assert make("sudoku", difficulty="hard").tasks == ("sudoku:hard:single",)
    with pytest.raises(ValueError, match="did you mean 'sudoku'"):
        make("sudoka")
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
    common = {"id", "difficulty", "turns"}
    assert {"dataset", "episode", "action"} | common <= set(TextEnvConfig.fields_for("arc"))
    assert {"max_actions", "queries"} | common <= set(TextEnvConfig.fields_for("proofs-v1"))
    assert {"address", "games"} | common <= set(TextEnvConfig.fields_for("puzzle_server"))
    assert set(TextEnvConfig.fields_for("sudoku,sokoban")) == set(TextEnvConfig.fields_for("")) == common
    env: Any = SFTConfig.load(env="arc").env
    assert (env.id, env.settings.dataset.max_grid_height, env.settings.episode.require_submit) == (
        "arc",
        4,
        True,
    )
    assert env.model_dump()["dataset"]["max_grid_height"] == 4
    proofs: Any = SFTConfig.load(overrides=["env.id=proofs"]).env
    assert proofs.settings.max_actions == 32
    assert GRPOConfig.load(env="lights_out").env.id == "lights_out::multi"


def test_setting_of_the_environment_takes_precedence_over_a_common_one() -> None:
    config = SFTConfig.load(overrides=["env.id=puzzle_server", "env.address=a:1", "env.difficulty=hard"])
    assert config.env.make().tasks == ("lights:hard",)
    assert config.env.model_dump()["difficulty"] == "hard"
    assert SFTConfig.model_validate(config.model_dump()) == config


def test_own_environment_needs_no_setting_of_puzzles(tmp_path: Path) -> None:
    file = tmp_path / "fixed.py"
    file.write_text(
        "from phalanx.puzzles import PuzzleEnvironment\n\n"
        "class Fixed(PuzzleEnvironment):\n"
        "    def __init__(self, difficulty='easy'):\n"
        "        super().__init__('sudoku', difficulty)\n"
    )
    assert make(f"{file}:Fixed").reset([1]) == [PuzzleEnvironment("sudoku").reset(1)]
    hard = make(f"{file}:Fixed", difficulty="hard")
    assert hard.reset([1]) == [PuzzleEnvironment("sudoku", "hard").reset(1)]
    with pytest.raises(ValueError, match=r"fixed.py:Fixed has no setting 'turns'"):
        make(f"{file}:Fixed", turns="multi")


def test_game_in_the_name_of_a_puzzle_server_is_rejected_in_a_config() -> None:
    with pytest.raises(ValueError, match="use id=puzzle_server instead of id=puzzle_server:lights, with the"):
        make("puzzle_server:lights")


def test_errors_name_the_setting_and_its_section() -> None:
    for override, message in (
        ("env.dataset.max_grid_height=99", "env.dataset.max_grid_height must be between 1 and 30, got 99"),
        ("env.dataset.max_grid_hight=9", "did you mean 'env.dataset.max_grid_height'"),
        ("env.turns=both", "env.turns must be 'single' or 'multi', got 'both'"),
    ):
        with pytest.raises(ValueError, match=message):
            SFTConfig.load(overrides=["env.id=arc", override])


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
    assert SFTConfig.load(None, ["env.id=arc"]).trained_env is not None
    assert SFTConfig.load(None, ["data.samples=samples.jsonl"]).trained_env is None


def test_unknown_kinds_in_the_puzzle_weights_are_rejected() -> None:
    with pytest.raises(ValueError, match="'sudoka', which is not a kind of puzzle"):
        open_data(SFTConfig.load(None, ("env.id=sudoku", "data.puzzle_weights={sudoka: 2}")))
    with pytest.raises(ValueError, match="must be at least 1"):
        SFTConfig.load(None, ("data.puzzle_weights={hitori: 0}",))
