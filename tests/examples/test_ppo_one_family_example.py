"""The example of PPO on one family trains, measures and writes a run."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers.example_runs import run_example


def test_it_trains_and_writes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    # The notebook's sizes, so that what one of the two has compiled serves the other.
    small = (
        "network.kind=conv",
        "network.hidden_dim=8",
        "network.num_layers=1",
        "env.dataset.num_generated_tasks=64",
    )
    sizes = ("--updates", 2, "--num-envs", 32, "--out", run)
    run_example("arc/ppo_one_family.py", *sizes, *small, "evaluation.num_generated_tasks=8")
    told = capsys.readouterr().out
    assert re.search(r"^update +1 .*%  return -?\d", told, re.MULTILINE)
    assert re.search(r"unseen puzzles handed in right: \d+% before, \d+% after", told)
    assert "working" in told and "target" in told
    facts = json.loads((run / "run.json").read_text())
    assert facts["families"] == ["fill_enclosed"] and facts["env_steps"] == 2 * 32 * 8
    assert len((run / "batch_metrics.jsonl").read_text().splitlines()) == 1
    assert len((run / "evaluations.jsonl").read_text().splitlines()) == 2
