"""The packing example finds what it says; in this process, because torch and transformers load slowly."""

import pytest

from tests.helpers.example_runs import run_example


def test_packed_losses_are_the_unpacked_ones_and_the_model_learns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch = pytest.importorskip("torch")
    for name in ("datasets", "transformers"):
        pytest.importorskip(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for one another in loops on a busy machine
    run_example("trainers/packing_for_transformers.py", "--samples", 40, "--steps", 8)
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    packed, leaky = (line for line in said.splitlines() if "equal" in line)
    assert packed.startswith("40 losses") and packed.endswith("equal True")
    assert leaky.startswith("without the mask") and leaky.endswith("equal False")
    assert "learned True" in said
