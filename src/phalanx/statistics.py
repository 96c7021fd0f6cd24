"""Interquartile means over seeds, their bootstrap confidence intervals, and pass@k.

Interquartile means and their intervals follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (2021). Their library `rliable` is not used, because it is designed for tables of final
scores and depends on SciPy, arch and seaborn, whereas learning curves need only a few lines of NumPy.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64

Scores = Float64[np.ndarray, "seeds *points"]
"""Score of each seed, or the learning curve of each seed."""
Aggregates = Float64[np.ndarray, "*points"]
"""Statistic over seeds, such as a mean, for each point of the learning curve."""

_NUM_RESAMPLES = 500
_MAX_ENUMERATED_SEEDS = 5
"""Up to this number of seeds, all possible resamples are enumerated instead of drawn at random."""


def interquartile_mean(scores: Scores) -> Aggregates:
    """Compute the mean over seeds without the lowest and the highest quarter of the scores.

    The number of scores in a quarter is rounded down, so with fewer than four seeds, the result is the mean.

    >>> float(interquartile_mean(np.array([0.0, 4.0, 6.0, 100.0])))
    5.0
    """
    cut = len(scores) // 4
    return np.asarray(np.sort(scores, axis=0)[cut : len(scores) - cut].mean(axis=0))


def bootstrap_interval(scores: Scores, level: float = 0.95, seed: int = 0) -> tuple[Aggregates, Aggregates]:
    """Compute the bootstrap confidence interval of the interquartile mean by resampling seeds.

    Args:
        scores: Scores with seeds as the first axis.
        level: Confidence level.
        seed: Seed for drawing resamples. It is not used if all possible resamples are enumerated.

    Returns:
        The lower and upper ends of the interval.

    >>> low, high = bootstrap_interval(np.array([1.0, 2.0, 3.0]))
    >>> round(float(low), 3), round(float(high), 3)
    (1.0, 3.0)
    """
    count = len(scores)
    if count <= _MAX_ENUMERATED_SEEDS:
        resamples = np.array(list(itertools.combinations_with_replacement(range(count), count)))
        weights = [
            math.factorial(count) / math.prod(map(math.factorial, np.bincount(row))) for row in resamples
        ]
    else:
        resamples = np.random.default_rng(seed).integers(count, size=(_NUM_RESAMPLES, count))
        weights = [1.0] * _NUM_RESAMPLES
    means = interquartile_mean(np.moveaxis(scores[resamples], 1, 0))
    order = np.argsort(means, axis=0)
    ranked = np.take_along_axis(means, order, axis=0)
    cumulative = np.cumsum(np.asarray(weights)[order], axis=0) / sum(weights)
    tail = (1 - level) / 2
    indices = [(cumulative >= level - 1e-12).argmax(axis=0)[None] for level in (tail, 1 - tail)]
    low, high = (np.asarray(np.take_along_axis(ranked, index, axis=0)[0]) for index in indices)
    return low, high


def describe_seeds(scores: Sequence[float], number_format: str) -> str:
    """Describe the scores of several seeds by their interquartile mean and its bootstrap interval.

    Args:
        scores: Score of each seed.
        number_format: Format specifier for the numbers.

    >>> describe_seeds([0.25, 0.75], ".0%")
    'interquartile mean of 2 seeds: 50%, 95% bootstrap interval 25% to 75%'
    """
    values = np.array(scores, np.float64)
    mean, (low, high) = interquartile_mean(values), bootstrap_interval(values)
    return (
        f"interquartile mean of {len(values)} seeds: {mean:{number_format}}, "
        f"95% bootstrap interval {low:{number_format}} to {high:{number_format}}"
    )


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Estimate the probability that at least one of `k` attempts is correct.

    The estimator is unbiased (Chen et al., 2021, "Evaluating Large Language Models Trained on Code"), whereas
    `1 - (1 - num_correct / num_samples) ** k` is too low on average.

    Args:
        num_samples: Number of attempts that were made. Must be at least `k`.
        num_correct: Number of those attempts that were correct.
        k: Number of attempts in which the problem must be solved at least once.

    >>> pass_at_k(num_samples=4, num_correct=1, k=2)
    0.5
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@k needs k between 1 and num_samples, which is {num_samples}, got {k}")
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct must be between 0 and num_samples, {num_samples}, got {num_correct}")
    # Integers until the last division: nothing overflows, and 0 and 1 are exact.
    subsets = math.comb(num_samples, k)
    return (subsets - math.comb(num_samples - num_correct, k)) / subsets


def mean_pass_at_k(num_samples: int, num_correct: Iterable[int], k: int) -> float:
    """Average `pass_at_k` over problems that were attempted equally often.

    Args:
        num_samples: Number of attempts per problem.
        num_correct: Number of correct attempts for each problem.
        k: Number of attempts in which a problem must be solved at least once.

    >>> mean_pass_at_k(num_samples=4, num_correct=[0, 1, 4], k=2)
    0.5
    """
    estimates = [pass_at_k(num_samples, count, k) for count in num_correct]
    if not estimates:
        raise ValueError("pass@k needs at least one problem")
    return sum(estimates) / len(estimates)
