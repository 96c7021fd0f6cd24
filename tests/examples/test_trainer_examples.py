"""The recipes for trainers: packed losses are the unpacked ones, and after a kill the next batch comes."""

import gc
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.example_runs import EXAMPLES, run_example

TRAINERS = EXAMPLES / "trainers"
collect = gc.collect


@pytest.fixture
def recipe(capsys: pytest.CaptureFixture[str], torch_threads: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs one of the files in this process, beside which it finds the others, and gives what it prints."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.set_num_threads(1)
    monkeypatch.syspath_prepend(TRAINERS)
    # Before each training accelerate collects garbage: that would look at all objects of the suite.
    monkeypatch.setattr(gc, "collect", lambda generation=1: collect(min(generation, 1)))

    def run(name: str, *arguments: object) -> str:
        run_example(f"trainers/{name}", *arguments)
        said = capsys.readouterr().out
        check_losses(said)
        return said

    return run


def check_losses(said: str) -> None:
    packed, unpacked = re.search(r"packed and unpacked: (\S+) and (\S+)", said).groups()
    assert float(packed) == pytest.approx(float(unpacked), abs=2e-5)
    assert 5.4 < float(packed) < 5.8  # a model without knowledge: ln 258 is 5.55


@pytest.mark.filterwarnings("default")
def test_a_trainer_that_was_killed_goes_on_with_the_plans_next_batch(recipe: Any) -> None:
    pytest.importorskip("accelerate")
    said = recipe("hf_trainer.py", "--samples", 20, "--accumulate", 2)
    assert "killed after step 3 of 5" in said
    assert "5 losses, after the resume the same: True" in said
    assert "the same weights in the end: True" in said


@pytest.mark.filterwarnings("default")
def test_trls_trainer_learns_the_assistants_turns_of_a_plan_and_resumes(recipe: Any) -> None:
    for name in ("trl", "tokenizers", "jinja2"):
        pytest.importorskip(name)
    said = recipe("trl_sft.py", "--samples", 8)
    assert "killed after step 4 of 8" in said
    assert "losses, after the resume the same: True" in said
    assert "the same weights in the end: True" in said


@pytest.mark.filterwarnings("default")
def test_accelerates_checkpoints_hold_the_loader(recipe: Any) -> None:
    pytest.importorskip("accelerate")
    said = recipe("accelerate_training.py", "--samples", 20)
    assert "1 processes, 10 steps each" in said
    assert "killed after step 3; losses after the resume the same: True" in said


@pytest.mark.filterwarnings("default")
def test_lightning_resumes_in_mid_epoch_at_its_end_and_before_the_last_step(recipe: Any) -> None:
    pytest.importorskip("lightning")
    said = recipe("lightning_training.py", "--samples", 16, "--epochs", 2)
    assert said.count("losses, samples and weights the same: True") == 3


def test_ranks_that_were_killed_go_on_together() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(TRAINERS / "ddp_training.py"), "--ranks", "3", "--samples", "30"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout
    check_losses(said)
    assert "3 ranks" in said
    assert "every sample once an epoch: True" in said
    assert "losses and samples after the resume the same: True" in said
