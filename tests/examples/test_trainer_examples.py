"""The recipes for trainers resume exactly: Hugging Face's in this process, plain PyTorch on two ranks."""

import subprocess
import sys

import pytest
from example_runs import EXAMPLES, run_example


@pytest.mark.filterwarnings("default")
def test_a_trainer_that_was_killed_goes_on_with_the_plans_next_batch(
    capsys: pytest.CaptureFixture[str], torch_threads: None
) -> None:
    torch = pytest.importorskip("torch")
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name)
    torch.set_num_threads(1)
    run_example("hf_trainer.py", "--samples", 20, "--accumulate", 2)
    said = capsys.readouterr().out
    assert "killed after step 3 of 5" in said
    assert "5 losses, after the resume the same: True" in said
    assert "the same weights in the end: True" in said


def test_two_ranks_that_were_killed_go_on_together() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(EXAMPLES / "ddp_training.py"), "--ranks", "2", "--samples", "30"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert "every sample once an epoch: True" in said
    assert "losses and samples after the resume the same: True" in said
