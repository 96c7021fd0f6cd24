"""Running an example as a script in the tests' own process, which has paid for its imports already.

What each example promises is in the test that is named after it.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: object) -> None:
    """`python examples/NAME ARGUMENTS`; the caller captures what it prints."""
    script = str(EXAMPLES / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(script, run_name="__main__")


def first_and_last_return(said: str) -> tuple[float, float]:
    """Of the line that sums a training up."""
    told = re.search(r"first update (\S+), of the last (\S+)$", said, re.MULTILINE)
    assert told is not None, said
    return float(told[1]), float(told[2])
