"""The numbers that a seed stands for: SplitMix64, the same on every machine and in both engines.

What is drawn is up to each kind of puzzle.
"""

from typing import Any

_WORD = (1 << 64) - 1


class SplitMix64:
    """Whole numbers below a bound, one after the other.

    >>> draws = Draws(7)
    >>> [draws.below(10) for _ in range(5)]
    [3, 0, 9, 5, 1]
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _WORD

    def below(self, bound: int) -> int:
        """One of 0 to bound - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _WORD
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
        return ((z ^ (z >> 31)) >> 32) * bound >> 32

    def shuffle(self, items: list[Any]) -> None:
        """Put the items in a drawn order."""
        for place in range(len(items) - 1, 0, -1):
            other = self.below(place + 1)
            items[place], items[other] = items[other], items[place]

    def order(self, count: int) -> list[int]:
        """0 to count - 1 in a drawn order."""
        items = list(range(count))
        self.shuffle(items)
        return items
