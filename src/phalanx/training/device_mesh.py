"""The mesh of devices on which algorithms train, and functions for programs that run on all of them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import PyTree

AXIS = "devices"
"""Name of the only axis of the mesh."""


def create_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Create a mesh with one axis. By default, it contains all devices of this process."""
    return Mesh(np.asarray(jax.local_devices() if devices is None else devices), (AXIS,))


def mean_over_devices(tree: PyTree) -> PyTree:
    """Average arrays of floats over all devices, in a program in `jax.shard_map`."""
    # One vector needs one collective operation. XLA's CPU collectives do not combine those of several arrays.
    vector, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(vector, AXIS))


def unreplicate(tree: PyTree) -> PyTree:
    """Replace arrays that are replicated on several devices with the copy on one device.

    Arrays that are distributed over the devices are not changed, because no device has all of their data.
    """

    def first_copy(leaf: Any) -> Any:
        is_replicated = isinstance(leaf, jax.Array) and leaf.is_fully_replicated
        return leaf.addressable_data(0) if is_replicated and len(leaf.devices()) > 1 else leaf

    return jax.tree.map(first_copy, tree)
