"""Networks with random weights. Initial weights of the last layers are nearly zero and would hide errors."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np


def random_weights(make: Callable[..., Any], *settings: Any, seed: int = 0) -> Any:
    """Create a network with random weights.

    The weights come from NumPy, because JAX's generator would be compiled for every shape.
    """
    shapes = eqx.filter_eval_shape(make, *settings, jax.random.key(0))
    generator = np.random.default_rng(seed)

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        values = generator.normal(size=leaf.shape) / np.sqrt(np.prod(leaf.shape[:-1]))
        return jax.device_put(values.astype(leaf.dtype))

    return jax.tree.map(draw, shapes)
