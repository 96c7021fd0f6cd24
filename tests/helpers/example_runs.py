"""Runs examples as scripts in the process of the tests, where their imports are already loaded."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: object) -> None:
    """Run `python examples/NAME ARGUMENTS`."""
    script = str(EXAMPLES / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(script, run_name="__main__")


def first_and_last_return(output: str) -> tuple[float, float]:
    """Parse the returns of the first and last update from the summary of a training run."""
    match = re.search(r"first update (\S+), of the last (\S+)$", output, re.MULTILINE)
    assert match is not None, output
    return float(match[1]), float(match[2])
