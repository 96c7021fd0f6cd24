"""Random ARC actions that cost little: operation, cells and masks from one call of `jax.random.bits`.

Agents that choose among legal operations are in `phalanx.training`. Nothing of Phalanx is imported here, so
that the runners of other environments take the same actions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

WORDS = {"point": 1, "bbox": 2, "mask": 2}
"""32-bit words that one action of each format takes."""


def draw_fields(
    seed: UInt32[Array, ""],
    counter: UInt32[Array, ""],
    seen: Int32[Array, " batch"],
    grid: tuple[int, int],
    selection_format: str,
    operations: int = 35,
) -> dict[str, Array]:
    """One random action for each environment: `int32[batch]` fields, or masks under `selection`.

    The key is the pair (seed, counter) itself: a fresh key every step without the cost of a split. `seen` is
    one cell of each environment's observation. It is mixed in so that an action depends on the observation,
    as an agent's does; a loop that leaves this out makes XLA copy the observations at every step.
    """
    if selection_format not in WORDS:
        raise ValueError(f"selection_format must be one of {', '.join(WORDS)}, got {selection_format!r}")
    key = jnp.stack([seed, counter])
    words = jax.random.bits(key, (WORDS[selection_format], *seen.shape), jnp.uint32)
    words = words ^ (seen.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
    height, width = grid
    fields = {"operation": _scale(words[0], 0, 16, operations)}
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


def _scale(words: UInt32[Array, " batch"], shift: int, bits: int, count: int) -> Int32[Array, " batch"]:
    """A field of a word, scaled to 0..count-1."""
    field = (words >> shift) & ((1 << bits) - 1)
    return ((field * count) >> bits).astype(jnp.int32)


def _masks(words: UInt32[Array, " batch"], height: int, width: int) -> Bool[Array, "batch rows columns"]:
    """About half of all cells: the top bit of half the word times an odd number of the cell's own."""
    numbers = jnp.arange(height * width, dtype=jnp.uint32) * jnp.uint32(0x9E3779B2) + jnp.uint32(0x85EBCA6B)
    # Sixteen bits are enough, and twice as many of them fit into a vector register.
    odd = ((numbers >> 8) | 1).astype(jnp.uint16)
    chosen = (words.astype(jnp.uint16)[:, None] * odd) >> 15
    return chosen.astype(jnp.bool_).reshape(-1, height, width)
