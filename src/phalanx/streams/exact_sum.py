"""A running sum of floats that is exact: adding numbers and taking them away again leaves no error behind.

What is summed is decided in `replay_stats`.
"""

from fractions import Fraction

import numpy as np
from jaxtyping import Float64

_LIMB_BITS = 27
_LOWEST = -1126
"""Twice the smallest float64 and half its 53 bits; every mantissa is a whole number of 2**_LOWEST."""
_EXPONENTS = 1025 - _LOWEST


class ExactSum:
    """Sums float64 numbers without rounding, many at a time.

    Each number is an integer of 53 bits times a power of two. The integers are added up for each power by
    itself, in two halves, so that no sum of fewer than 2**36 numbers overflows.
    """

    def __init__(self) -> None:
        self._limbs = np.zeros((2, _EXPONENTS), np.int64)

    def add(self, numbers: Float64[np.ndarray, " count"]) -> None:
        """Count these numbers in; they must be finite."""
        self._move(numbers, 1)

    def remove(self, numbers: Float64[np.ndarray, " count"]) -> None:
        """Take out numbers that were counted in before."""
        self._move(numbers, -1)

    def _move(self, numbers: Float64[np.ndarray, " count"], sign: int) -> None:
        mantissas, exponents = np.frexp(numbers)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        high = whole >> _LIMB_BITS
        low = whole - (high << _LIMB_BITS)
        place = exponents - 53 - _LOWEST
        np.add.at(self._limbs[0], place, sign * low)
        np.add.at(self._limbs[1], place, sign * high)

    @property
    def fraction(self) -> Fraction:
        """The sum itself."""
        limbs = self._limbs[0].astype(object) + (self._limbs[1].astype(object) << _LIMB_BITS)
        places = np.flatnonzero(self._limbs.any(axis=0)).tolist()
        total = sum(int(limbs[place]) << place for place in places)
        return Fraction(total, 1) * Fraction(1, 1 << -_LOWEST)

    def mean(self, count: int) -> float:
        """The sum over `count`, rounded once; 0 for a count of 0."""
        return float(self.fraction / count) if count else 0.0

    def clear(self) -> None:
        """Back to 0."""
        self._limbs[:] = 0
