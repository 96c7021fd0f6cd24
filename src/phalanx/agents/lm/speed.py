"""What training a language model costs, and what the machine could do at best: the peak share in the log.

Nothing here is part of the training.
"""

import functools
import time

import jax
import jax.numpy as jnp

from phalanx.agents.lm.model import LanguageModelConfig

_SIDE = 1024


def training_flops(config: LanguageModelConfig, rows: int, width: int) -> int:
    """Operations of an update: products forward and twice backward, attention to what is before.

    Nothing is counted twice that is computed twice, as attention weights of long rows are.
    """
    block = config.width * (4 * config.width + 3 * config.hidden)
    products = config.depth * block + 2 * config.vocab_size * config.width
    attention = config.depth * config.width * width
    return 6 * rows * width * (products + attention)


@functools.cache
def matmul_peak(dtype: str) -> float:
    """Floating-point operations a second of a large product, the best of a few: what the machine reaches."""
    a = jnp.ones((_SIDE, _SIDE), dtype)
    product = jax.jit(jnp.dot)
    jax.block_until_ready(product(a, a))
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(product(a, a))
        best = min(best, time.perf_counter() - began)
    return 2 * _SIDE**3 / best
