"""Fixtures that several test files of `phalanx.data` share."""

import numpy as np
import pytest

from phalanx.data import LengthTable


@pytest.fixture(scope="session")
def million_lengths() -> LengthTable:
    """A million log-normally distributed lengths."""
    draws = np.random.default_rng(0).lognormal(np.log(300) - 0.5, 1.0, 1_000_000)
    return LengthTable.from_arrays(None, np.clip(np.round(draws), 1, 2048).astype(np.int32))
