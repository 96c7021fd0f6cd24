"""Presets: every file loads, belongs to a class, and contains only differences from the defaults."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.config import PRESET_FOLDER
from phalanx.training import load_algorithm
from phalanx.training.config import default_preset

PRESETS = sorted(path for path in PRESET_FOLDER.glob("*/*.yaml") if path.parent.name != "arc")


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_preset_loads_by_name_and_has_a_hydra_header(path: Path) -> None:
    config_type = load_algorithm(path.parent.name).config_type
    config: Any = config_type.load(path.stem)
    assert config == config_type.load(path), "a preset's name and its path give the same config"
    header, description = path.read_text(encoding="utf-8").splitlines()[:2]
    assert header == f"# @package {path.parent.name}"
    assert re.match(r"# [A-Z]|# \w+: ", description) or description.startswith("# ")
    env = yaml.safe_load(path.read_text(encoding="utf-8")).get("env", {})
    if "id" in env:
        assert config.env.id == env["id"]


@pytest.mark.parametrize(
    ("algorithm", "env", "preset"),
    [
        ("ppo", "arc-v2", "arc"),
        ("ppo", "proofs-v1", "proofs"),
        ("bc", "arc-v2", "arc"),
        ("bc", "proofs-v1", None),
        ("grpo", "puzzles", "puzzles"),
        ("sft", "sudoku,sokoban", None),
        ("ppo", "mazes.py:Maze", None),
    ],
)
def test_default_preset_has_the_name_of_the_environment(algorithm: str, env: str, preset: str | None) -> None:
    assert default_preset(load_algorithm(algorithm).config_type, env) == preset
