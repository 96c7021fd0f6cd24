"""Comparison of pytrees, with differences described as text for error messages."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

# Integers, booleans and keys must be equal. Floats may differ by rounding, because a batch and a single
# environment are compiled to different code.
RELATIVE_TOLERANCE = 1e-5
ABSOLUTE_TOLERANCE = 1e-6


def differences(expected: PyTree, actual: PyTree, what: str) -> list[str]:
    """Return one message per leaf that differs, or an empty list if the trees are equal.

    Args:
        expected: Pytree with the expected values.
        actual: Pytree to check.
        what: Name of the compared value. The messages begin with it.
    """
    expected_structure: Any = jax.tree.structure(expected)
    actual_structure: Any = jax.tree.structure(actual)
    if expected_structure != actual_structure:
        return [f"{what} has another structure: expected {expected_structure}, got {actual_structure}"]
    found = []
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), strict=True)
    for (path, left), right in pairs:
        name = what + jax.tree_util.keystr(path)
        found += _leaf_differences(as_numpy(left), as_numpy(right), name)
    return found


def _leaf_differences(left: np.ndarray, right: np.ndarray, name: str) -> list[str]:
    if left.shape != right.shape or left.dtype != right.dtype:
        return [f"{name}: expected {left.dtype}{list(left.shape)}, got {right.dtype}{list(right.shape)}"]
    if np.issubdtype(left.dtype, np.inexact):
        same = np.isclose(left, right, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True)
    else:
        same = left == right
    if np.all(same):
        return []
    position = tuple(int(i) for i in np.argwhere(~same)[0])
    cell = f"{list(position)}" if position else ""
    count = f"{np.sum(~same)} of {same.size} differ"
    return [f"{name}{cell}: expected {left[position]}, got {right[position]} ({count})"]


def as_numpy(leaf: Any) -> np.ndarray:
    """Convert a leaf to a NumPy array. A typed PRNG key is converted to its `uint32` data."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def to_host(tree: PyTree) -> PyTree:
    """Convert all leaves to NumPy arrays, so that slicing them does not involve the device."""
    return jax.tree.map(as_numpy, tree)


def take(tree: PyTree, *index: Any) -> PyTree:
    """Index every leaf of a pytree, and return the pytree of the results."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
