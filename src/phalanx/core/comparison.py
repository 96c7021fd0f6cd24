"""Comparing pytrees leaf by leaf, and saying in words where they differ.

Integers, booleans and keys must be equal; floats may differ by rounding, because a batch and a single
environment are compiled into different code.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

RELATIVE_TOLERANCE = 1e-5
ABSOLUTE_TOLERANCE = 1e-6


def differences(expected: PyTree, actual: PyTree, what: str) -> list[str]:
    """One sentence for each leaf that differs; empty when the trees agree."""
    wanted: Any = jax.tree.structure(expected)
    given: Any = jax.tree.structure(actual)
    if wanted != given:
        return [f"{what} has another structure: expected {wanted}, got {given}"]
    sentences = []
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), strict=True)
    for (path, left), right in pairs:
        name = what + jax.tree_util.keystr(path)
        sentences += _leaf_differences(as_numpy(left), as_numpy(right), name)
    return sentences


def _leaf_differences(left: np.ndarray, right: np.ndarray, name: str) -> list[str]:
    if left.shape != right.shape or left.dtype != right.dtype:
        return [f"{name}: expected {left.dtype}{list(left.shape)}, got {right.dtype}{list(right.shape)}"]
    if np.issubdtype(left.dtype, np.inexact):
        same = np.isclose(left, right, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True)
    else:
        same = left == right
    if np.all(same):
        return []
    where = tuple(int(i) for i in np.argwhere(~same)[0])
    cell = f"{list(where)}" if where else ""
    count = f"{np.sum(~same)} of {same.size} differ"
    return [f"{name}{cell}: expected {left[where]}, got {right[where]} ({count})"]


def as_numpy(leaf: Any) -> np.ndarray:
    """A leaf on the host; a typed key as its words."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def to_host(tree: PyTree) -> PyTree:
    """The same tree with NumPy leaves, so that slicing it costs no device call."""
    return jax.tree.map(as_numpy, tree)


def at(tree: PyTree, *index: Any) -> PyTree:
    """One entry of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
