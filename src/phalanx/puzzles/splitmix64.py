"""SplitMix64 random number generator, identical to the C++ version that the puzzle generators use."""

from typing import Any

_MASK = (1 << 64) - 1


class SplitMix64:
    """SplitMix64 pseudorandom number generator. The same seed always gives the same integers.

    Args:
        seed: Integer seed, of which only the lowest 64 bits are used.

    >>> rng = SplitMix64(7)
    >>> [rng.integers(10) for _ in range(5)]
    [3, 0, 9, 5, 4]
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def integers(self, high: int) -> int:
        """Draw an integer from 0 (inclusive) to `high` (exclusive)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        return ((z ^ (z >> 31)) >> 32) * high >> 32

    def shuffle(self, items: list[Any]) -> None:
        """Shuffle a list in place."""
        for last in range(len(items) - 1, 0, -1):
            other = self.integers(last + 1)
            items[last], items[other] = items[other], items[last]

    def permutation(self, count: int) -> list[int]:
        """Return the integers from 0 to `count - 1` in random order."""
        items = list(range(count))
        self.shuffle(items)
        return items
