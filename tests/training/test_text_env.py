"""The section `env` of SFT and GRPO."""

import itertools

import pytest

from phalanx.training import SFTConfig, open_data
from phalanx.training.sft import trained_env
from phalanx.training.text_env import TrainingEnvConfig


def test_specs_are_resolved_and_mistakes_are_explained() -> None:
    assert TrainingEnvConfig(id="sudoku::multi").make().tasks == ("sudoku:easy:multi",)
    assert TrainingEnvConfig(id="sudoku", difficulty="hard").make().tasks == ("sudoku:hard:single",)
    with pytest.raises(ValueError, match="did you mean 'sudoku'"):
        TrainingEnvConfig(id="sudoka").make()
    with pytest.raises(ValueError, match=r"'sudoku' takes no env\.overrides"):
        TrainingEnvConfig(id="sudoku", overrides=("x=1",)).make()
    with pytest.raises(ValueError, match=r"env\.id=proofs takes no env\.overrides"):
        TrainingEnvConfig(id="proofs", overrides=("x=1",)).make()
    with pytest.raises(ValueError, match="address must be HOST:PORT"):
        TrainingEnvConfig(id="puzzle_server", address="localhost").make()
    with pytest.raises(ValueError, match="name one or more different games"):
        TrainingEnvConfig(id="puzzle_server", games=("lights", "lights:easy")).make()
    with pytest.raises(ValueError, match="unknown text environment 'sudoka'; did you mean 'sudoku'"):
        open_data(SFTConfig.load(None, ("env.id=sudoka",)))


def test_environment_with_one_episode_has_no_validation_split() -> None:
    overrides = ("dataset.families=[recolor]", "dataset.num_tasks=1")
    env = TrainingEnvConfig(id="arc-v2", overrides=overrides).make()
    with pytest.raises(ValueError, match="of arc-v2 are in the validation split"):
        next(env.seeds("arc-v2", "validation"))


def test_episodes_are_reproducible_and_in_one_split() -> None:
    env = TrainingEnvConfig(id="proofs").make()
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


def test_unknown_kinds_in_a_mixture_are_rejected() -> None:
    with pytest.raises(ValueError, match="'sudoka', which is not a kind of puzzle"):
        open_data(SFTConfig.load(None, ("env.id=sudoku", "data.mixture={sudoka: 2}")))
    with pytest.raises(ValueError, match="must be at least 1"):
        SFTConfig.load(None, ("data.mixture={hitori: 0}",))
