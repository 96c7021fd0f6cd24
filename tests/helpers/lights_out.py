"""The environment of `examples/custom/environment.py`, which has a mask of legal actions."""

import runpy
from pathlib import Path

import numpy as np

_EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "custom/environment.py"))

LightsOut, LAMPS = _EXAMPLE["LightsOut"], _EXAMPLE["LAMPS"]


def all_but(lamp: int) -> list[bool]:
    """Return the mask after a press: all other lamps."""
    return (np.arange(LAMPS) != lamp).tolist()
