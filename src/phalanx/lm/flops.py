"""What training a language model costs, and what the machine could do at best: the peak share in the log.

Nothing here is part of the training.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from phalanx.lm.model import LanguageModelConfig

_PRODUCTS = ((1024, 1024, 1024), (4096, 128, 384), (4096, 256, 128))
"""Rows, depth and columns: a square product is not the one that XLA's CPU does best."""


def train_flops(config: LanguageModelConfig, segments: Int32[np.ndarray, "rows width"]) -> int:
    """Operations of an update: products forward and twice backward, attention to what is before in a segment.

    Nothing is counted twice that is computed twice, as attention weights are; padding is counted where it is
    computed, and sees itself alone.
    """
    rows, width = segments.shape
    block = config.width * (4 * config.width + 3 * config.hidden)
    products = config.depth * block + 2 * config.vocab_size * config.width
    in_rows = np.stack([np.broadcast_to(np.arange(rows)[:, None], segments.shape), segments])[:, segments > 0]
    lengths = np.unique(in_rows, axis=1, return_counts=True)[1].astype(np.int64)
    seen = int(np.sum(lengths**2)) + int((segments == 0).sum())
    return 6 * (rows * width * products + config.depth * config.width * seen)


@functools.cache
def measured_peak_flops(dtype: str) -> float:
    """Floating-point operations a second of a large product, the best of a few: what the machine reaches."""
    product = jax.jit(jnp.dot)
    best = 0.0
    for rows, depth, columns in _PRODUCTS:
        a, b = jnp.ones((rows, depth), dtype), jnp.ones((depth, columns), dtype)
        jax.block_until_ready(product(a, b))
        for _ in range(3):
            began = time.perf_counter()
            jax.block_until_ready(product(a, b))
            best = max(best, 2 * rows * depth * columns / (time.perf_counter() - began))
    return best
