"""Cheap random ARC actions, shared by all environments that run on JAX.

All fields of an action come from one call of `jax.random.bits`, so that drawing actions takes little of the
measured time. Phalanx is not imported, because the workers of other libraries use this module, too.
"""

import jax
import jax.numpy as jnp

WORDS_PER_ACTION = {"point": 1, "bbox": 2, "mask": 2}
"""Number of random 32-bit words that an action of each format needs."""


def random_fields(seed, counter, cells, grid, selection_format, num_operations=35):
    """Return the fields of one random action per environment.

    Args:
        seed: `uint32` scalar.
        counter: `uint32` scalar that differs for each step. Together with `seed`, it is the random key, which
            saves the cost of splitting keys.
        cells: `int32[batch]`: one cell of each observation. The action depends on it, as that of a policy
            would; otherwise, XLA copies the observations in each step.
        grid: Height and width of the canvas.
        selection_format: `point`, `bbox` or `mask`.
        num_operations: Operations are drawn from 0 to `num_operations - 1`.

    Returns:
        `int32[batch]` arrays by field name; for masks, `selection` is `bool[batch, height, width]`.
    """
    key = jnp.stack([seed, counter])
    words = jax.random.bits(key, (WORDS_PER_ACTION[selection_format], *cells.shape), jnp.uint32)
    words = words ^ (cells.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
    height, width = grid
    fields = {"operation": _scale(words[0], 0, 16, num_operations)}
    if selection_format == "point":
        return fields | {"row": _scale(words[0], 16, 8, height), "col": _scale(words[0], 24, 8, width)}
    if selection_format == "bbox":
        return fields | {
            "r1": _scale(words[0], 16, 8, height),
            "c1": _scale(words[0], 24, 8, width),
            "r2": _scale(words[1], 0, 16, height),
            "c2": _scale(words[1], 16, 16, width),
        }
    return fields | {"selection": _masks(words[1], height, width)}


def _scale(words, shift, bits, count):
    """Scale some bits of each word to a number from 0 to `count - 1`."""
    field = (words >> shift) & ((1 << bits) - 1)
    return ((field * count) >> bits).astype(jnp.int32)


def _masks(words, height, width):
    """Return masks that select about half of the cells, by multiplicative hashing with 16 bits."""
    numbers = jnp.arange(height * width, dtype=jnp.uint32) * jnp.uint32(0x9E3779B2) + jnp.uint32(0x85EBCA6B)
    odd = ((numbers >> 8) | 1).astype(jnp.uint16)
    chosen = (words.astype(jnp.uint16)[:, None] * odd) >> 15
    return chosen.astype(jnp.bool_).reshape(-1, height, width)
