"""The batch-processing example runs."""

import pytest

from tests.helpers.example_runs import run_example


def test_batch_processing_demo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("advanced/batch_processing_demo.py", "--batch-size", 2, "--steps", 5)
    output = capsys.readouterr().out
    assert "observations (2, 10, 10)" in output
    assert "environment 1 did 'Fill 1'" in output
    assert "the second run is the same: True" in output
    assert "11 states in batches of 8 gave 11 rewards" in output
    assert "fastest:" in output
