"""Hydra composes Phalanx's presets, and what it composes trains."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hydra")
# The notebook's sizes, so that what one of the two has compiled serves the other.
SMALL = (
    "env.dataset.families=[fill_enclosed]",
    "env.dataset.num_generated_tasks=64",
    "network.kind=conv",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "num_envs=32",
    "evaluation.num_generated_tasks=8",
    "evaluation.num_sampled_attempts=0",
    "evaluation.every=0",
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "sweeps/hydra_training.py"


def test_hydra_composes_a_preset_and_phalanx_trains_with_it(tmp_path: Path) -> None:
    """In a process of its own: Hydra takes the logging of the whole process."""
    given = (*SMALL, "num_updates=1", "logging.sample_frequency=0")
    settings = [f"++ppo.{one}" for one in given]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *settings, f"hydra.run.dir={tmp_path}/job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{tmp_path}/job/run: " in done.stdout
    config = (tmp_path / "job/run/config.yaml").read_text()
    # From the preset, and from the command line.
    assert "unsolved_submission_penalty: -1.5" in config
    assert "num_updates: 1\n" in config
