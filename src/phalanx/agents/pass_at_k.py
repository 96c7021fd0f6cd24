"""pass@k: the chance that at least one of k attempts at a puzzle succeeds.

Making the attempts is in `arc_evaluation`.
"""

from collections.abc import Iterable
from math import comb


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The share of the choices of k attempts, out of those made, that hold a success.

    An unbiased estimate for k fresh attempts (Chen et al. 2021, "Evaluating large language models trained on
    code"), where 1 - (1 - successes / attempts) ** k is too low.

    >>> pass_at_k(attempts=4, successes=1, k=2)
    0.5
    """
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@k needs at least k attempts: k is {k}, attempts are {attempts}")
    if not 0 <= successes <= attempts:
        raise ValueError(f"successes must lie between 0 and {attempts}, the attempts, got {successes}")
    # Whole numbers until the last division: nothing overflows, and 0 and 1 come out exactly.
    every = comb(attempts, k)
    return (every - comb(attempts - successes, k)) / every


def mean_pass_at_k(attempts: int, successes: Iterable[int], k: int) -> float:
    """Over puzzles that were attempted equally often.

    >>> mean_pass_at_k(attempts=4, successes=[0, 1, 4], k=2)
    0.5
    """
    estimates = [pass_at_k(attempts, count, k) for count in successes]
    if not estimates:
        raise ValueError("pass@k of no puzzles at all is not defined")
    return sum(estimates) / len(estimates)
