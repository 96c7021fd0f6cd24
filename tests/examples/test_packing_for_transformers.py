"""The packing example runs as a reader would run it, and finds what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "packing_for_transformers.py"


def test_packed_losses_are_the_unpacked_ones_and_the_model_learns() -> None:
    for name in ("torch", "datasets", "transformers"):
        pytest.importorskip(name)
    result = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), "--samples", "40", "--steps", "8"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    packed, leaky = (line for line in result.stdout.splitlines() if "equal" in line)
    assert packed.startswith("40 losses") and packed.endswith("equal True")
    assert leaky.startswith("without the mask") and leaky.endswith("equal False")
    assert "learned True" in result.stdout
