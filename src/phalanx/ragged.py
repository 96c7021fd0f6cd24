"""Functions for ragged arrays: groups of different sizes that are stored one after the other.

`offsets` contains the position at which each group starts, followed by the total number of elements.
"""

import numpy as np
from jaxtyping import Int, Int64


def counts_to_offsets(counts: Int[np.ndarray, " groups"]) -> Int64[np.ndarray, " groups_and_one"]:
    """Convert the sizes of groups to offsets.

    >>> counts_to_offsets(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def sum_groups(
    values: Int[np.ndarray, " elements"], offsets: Int64[np.ndarray, " groups_and_one"]
) -> Int64[np.ndarray, " groups"]:
    """Return the sum of the values in each group.

    >>> sum_groups(np.array([3, 4, 5]), np.array([0, 2, 2, 3])).tolist()
    [7, 0, 5]
    """
    return np.diff(counts_to_offsets(values)[offsets])


def expand_ranges(
    starts: Int[np.ndarray, " ranges"], counts: Int[np.ndarray, " ranges"]
) -> tuple[Int64[np.ndarray, " indices"], Int64[np.ndarray, " indices"]]:
    """Concatenate ranges of integers, given their starts and lengths.

    Returns:
        For each element of the concatenation, the index of its range, and the element itself.

    >>> [array.tolist() for array in expand_ranges(np.array([7, 3]), np.array([1, 2]))]
    [[0, 1, 1], [7, 3, 4]]
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) + np.repeat(starts - counts_to_offsets(counts)[:-1], counts)


def gather_groups(
    offsets: Int64[np.ndarray, " groups_and_one"], groups: Int[np.ndarray, " chosen"]
) -> tuple[Int64[np.ndarray, " elements"], Int64[np.ndarray, " chosen_and_one"]]:
    """Return the indices of all elements in the chosen groups, one group after another.

    Returns:
        The indices of the elements, and the offsets of the chosen groups among these elements.

    >>> [array.tolist() for array in gather_groups(np.array([0, 2, 2, 5]), np.array([2, 0]))]
    [[2, 3, 4, 0, 1], [0, 3, 5]]
    """
    counts = offsets[groups + 1] - offsets[groups]
    starts = counts_to_offsets(counts)
    elements = np.repeat(offsets[groups] - starts[:-1], counts)
    elements += np.arange(starts[-1])
    return elements, starts
