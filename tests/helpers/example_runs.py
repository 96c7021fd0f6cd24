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


def first_and_last_return(said: str) -> tuple[float, float]:
    """Pattern of the line that summarizes a training."""
    told = re.search(r"first update (\S+), of the last (\S+)$", said, re.MULTILINE)
    assert told is not None, said
    return float(told[1]), float(told[2])
