"""Figures over several seeds: interquartile means and their bootstrap intervals.

Both are as in Agarwal and others, "Deep reinforcement learning at the edge of the statistical precipice"
(2021). Their library `rliable` is for tables of final scores and brings SciPy, arch and seaborn; curves need
a few lines of NumPy.
"""

import itertools
import math

import numpy as np
from jaxtyping import Float64

Scores = Float64[np.ndarray, "seeds *points"]
Figures = Float64[np.ndarray, "*points"]

_DRAWS = 500
_ENUMERATED = 5
"""Up to so many seeds every way to draw them is counted, and nothing is left to chance."""


def interquartile_mean(scores: Scores) -> Figures:
    """The mean over the seeds without the lowest and the highest quarter, rounded down, of them.

    >>> float(interquartile_mean(np.array([0.0, 4.0, 6.0, 100.0])))
    5.0
    """
    cut = len(scores) // 4
    return np.asarray(np.sort(scores, axis=0)[cut : len(scores) - cut].mean(axis=0))


def bootstrap_interval(scores: Scores, level: float = 0.95, seed: int = 0) -> tuple[Figures, Figures]:
    """Between which values the interquartile mean lies when seeds are drawn anew, with replacement.

    >>> low, high = bootstrap_interval(np.array([1.0, 2.0, 3.0]))
    >>> round(float(low), 3), round(float(high), 3)
    (1.0, 3.0)
    """
    count = len(scores)
    if count <= _ENUMERATED:
        drawn = np.array(list(itertools.combinations_with_replacement(range(count), count)))
        ways = [math.factorial(count) / math.prod(map(math.factorial, np.bincount(row))) for row in drawn]
    else:
        drawn = np.random.default_rng(seed).integers(count, size=(_DRAWS, count))
        ways = [1.0] * _DRAWS
    found = interquartile_mean(np.moveaxis(scores[drawn], 1, 0))
    order = np.argsort(found, axis=0)
    ranked = np.take_along_axis(found, order, axis=0)
    shares = np.cumsum(np.asarray(ways)[order], axis=0) / sum(ways)
    tail = (1 - level) / 2
    places = [(shares >= share - 1e-12).argmax(axis=0)[None] for share in (tail, 1 - tail)]
    low, high = (np.asarray(np.take_along_axis(ranked, place, axis=0)[0]) for place in places)
    return low, high
