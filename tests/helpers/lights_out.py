"""The example's masked environment, for the tests of adapters: neither knows of the other."""

import runpy
from pathlib import Path

import numpy as np

_EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "custom/environment.py"))

LightsOut, LAMPS = _EXAMPLE["LightsOut"], _EXAMPLE["LAMPS"]


def all_but(lamp: int) -> list[bool]:
    """What is legal after a press: every other lamp."""
    return (np.arange(LAMPS) != lamp).tolist()
