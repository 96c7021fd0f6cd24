"""The example of an algorithm in one file: trained, interrupted and resumed by the command's own loop."""

import json
import os
import signal
from pathlib import Path

from typer.testing import CliRunner

from phalanx.cli.train import app
from phalanx.logging import read_records
from phalanx.training.algorithm import Progress, load_algorithm
from phalanx.training.run import train
from tests.helpers.example_runs import EXAMPLES

FILE = EXAMPLES / "custom/algorithm.py"
CONFIG = EXAMPLES / "custom/reinforce.yaml"
SMALL = (
    "num_updates=20",
    "num_envs=64",
    "network.num_layers=1",
    "logging.log_frequency=1",
    "evaluation.every=0",
)


def phalanx(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(FILE), *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def metrics_of(run: Path) -> list[dict[str, float]]:
    """What was logged at each update, but for what the clock decides."""
    timed = ("env_steps_per_second", "seconds")
    lines = [line["metrics"] for line in read_records(run / "batch_metrics.jsonl")]
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


def interrupt(progress: Progress) -> None:
    if progress.update == 5:
        os.kill(os.getpid(), signal.SIGTERM)


def test_it_learns_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    said = phalanx(*SMALL, "--config", CONFIG, "--out", tmp_path / "whole")
    assert "Finished after 20 updates" in said
    whole = metrics_of(tmp_path / "whole")
    assert whole[-1]["reward_mean"] > whole[0]["reward_mean"] + 1
    facts = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert (facts["algorithm"], facts["status"], facts["updates"]) == ("reinforce", "finished", 20)
    assert (tmp_path / "whole" / "report.html").is_file()

    reinforce = load_algorithm(str(FILE))
    first = train(reinforce(reinforce.config_type.load(CONFIG, SMALL)), tmp_path / "half", show=interrupt)
    assert (first.update, first.signal) == (5, signal.SIGTERM)
    phalanx("--out", tmp_path / "half", "--resume")
    assert metrics_of(tmp_path / "half") == whole


def test_the_file_is_shorter_than_160_lines() -> None:
    assert len(FILE.read_text().splitlines()) < 160
