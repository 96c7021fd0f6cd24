"""FLOPs of an update and peak FLOPs per second of the machine, for the `mfu` metric.

The metric is the model FLOPs utilization: the FLOPs per second of training, as a fraction of the peak.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from phalanx.lm.model import LanguageModelConfig

_MATRIX_SHAPES = ((1024, 1024, 1024), (4096, 128, 384), (4096, 256, 128))
"""Shapes (m, k, n) of the matrix products that are timed to measure the peak speed. Not all matrices are
square, because XLA on the CPU can be faster with other shapes."""


def train_flops(config: LanguageModelConfig, segment_ids: Int32[np.ndarray, "rows width"]) -> int:
    """Return the number of floating-point operations in one update on a batch of packed rows.

    The backward pass is counted as twice the forward pass. Attention is counted only for pairs of tokens in
    the same segment. Padding tokens are counted like other tokens, but attend only to themselves. Operations
    that are recomputed in the backward pass to save memory are counted once.

    Args:
        config: Architecture of the model.
        segment_ids: Segment of each token. Segments are numbered from 1 in each row, and 0 is padding.
    """
    rows, width = segment_ids.shape
    block_params = config.d_model * (4 * config.d_model + 3 * config.d_ff)
    params = config.num_layers * block_params + 2 * config.vocab_size * config.d_model
    row_ids = np.broadcast_to(np.arange(rows)[:, None], segment_ids.shape)
    segments = np.stack([row_ids, segment_ids])[:, segment_ids > 0]
    lengths = np.unique(segments, axis=1, return_counts=True)[1].astype(np.int64)
    attended_pairs = int(np.sum(lengths**2)) + int((segment_ids == 0).sum())
    return 6 * (rows * width * params + config.num_layers * config.d_model * attended_pairs)


@functools.cache
def measured_peak_flops(dtype: str) -> float:
    """Measure how many floating-point operations per second this machine reaches in large matrix products."""
    product = jax.jit(jnp.dot)
    best = 0.0
    for m, k, n in _MATRIX_SHAPES:
        a, b = jnp.ones((m, k), dtype), jnp.ones((k, n), dtype)
        jax.block_until_ready(product(a, b))
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(product(a, b))
            best = max(best, 2 * m * k * n / (time.perf_counter() - start))
    return best
