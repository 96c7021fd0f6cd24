"""Run folders of other versions, and run folders that name code of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx import load_policy
from phalanx.config import save_config
from phalanx.training import GRPOConfig, PPOConfig
from phalanx.training.run_dir import FORMAT, load_run_config
from phalanx.training.trained_policy import load_algorithm_and_config
from tests.helpers.cli import phalanx as phalanx
from tests.helpers.descent import Descent, DescentConfig

DESCENT = Path(__file__).parents[1] / "helpers" / "descent.py"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    from phalanx.training import train

    return train(Descent(DescentConfig(num_updates=2)), tmp_path / "run").run_dir


@pytest.mark.parametrize("version", [2, None])
def test_a_run_in_another_format_is_refused_in_one_line(
    version: int | None, run: Path, phalanx: Callable[..., Any]
) -> None:
    metadata = json.loads((run / "run.json").read_text())
    assert metadata["format"] == FORMAT == 3
    (run / "run.json").write_text(json.dumps({**metadata, "format": version}))
    message = (
        f"phalanx: {run} was written by another version of Phalanx (format {version}, but this version reads "
        "format 3): start a new run, or use the version that wrote it\n"
    )
    commands = (
        ("eval", run),
        ("render", run),
        ("train", DESCENT, "--out", run, "--resume"),
        ("train", DESCENT, "--out", run, "--extend", 4),
        ("train", DESCENT, "--init-from", run),
    )
    for command in commands:
        done = phalanx(*command)
        assert (done.code, done.err) == (2, message), command
    with pytest.raises(ValueError, match="was written by another version of Phalanx"):
        load_policy(run)


CODE = """
import pathlib
pathlib.Path(__file__).with_name("executed").touch()
"""


def write_run(folder: Path, metadata: dict[str, Any], settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"format": FORMAT, **metadata}))
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))


@pytest.mark.parametrize(
    ("metadata", "settings"),
    [
        ({"algorithm": "own", "entry_point": "{code}:Own"}, {}),
        ({"algorithm": "ppo"}, {"env": {"id": "{code}:Maze"}}),
        (
            {"algorithm": "ppo"},
            {"env": {"id": "tests.training.test_config:Line"}, "network_path": "{code}:Net"},
        ),
        ({"algorithm": "grpo"}, {"env": {"id": "{code}:Maze"}}),
        ({"algorithm": "grpo"}, {"env": {"id": "sudoku, {code}:Maze"}}),
    ],
    ids=["algorithm", "environment", "network", "text environment", "second text environment"],
)
@pytest.mark.parametrize("seed", ["", "seed_0"])
def test_code_in_a_run_folder_is_refused_and_not_run(
    metadata: dict[str, Any], settings: dict[str, Any], seed: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    code = run / "code.py"
    code.write_text(CODE)
    metadata, settings = json.loads(json.dumps([metadata, settings]).replace("{code}", str(code)))
    write_run(run, metadata, settings)
    write_run(run / seed, metadata, settings)
    with pytest.raises(ValueError, match="in its own folder, and code in run folders is not run") as error:
        load_algorithm_and_config(run / seed)
    assert "\n" not in str(error.value)
    assert not (run / "executed").exists()


def test_code_at_a_relative_path_in_a_run_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", {"algorithm": "ppo"}, {"env": {"id": "../linked/code.py:Maze"}})
    (tmp_path / "run" / "code.py").write_text(CODE)
    (tmp_path / "linked").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(ValueError, match="code in run folders is not run"):
        load_run_config(Path(), PPOConfig)
    assert not (tmp_path / "run" / "executed").exists()


def test_code_beside_run_folders_is_run(tmp_path: Path) -> None:
    (tmp_path / "mazes.py").write_text("from tests.training.test_config import Line as Maze\n")
    config = PPOConfig.load(env=f"{tmp_path}/mazes.py:Maze")
    for name in ("run", "seed_0"):
        write_run(tmp_path / name, {"algorithm": "ppo"}, {})
        save_config(config, tmp_path / name / "config.yaml")
        assert load_run_config(tmp_path / name, PPOConfig) == config
    config = GRPOConfig.load(env="sudoku")
    write_run(tmp_path / "text", {"algorithm": "grpo"}, config.model_dump(mode="json"))
    assert load_run_config(tmp_path / "text", GRPOConfig) == config
