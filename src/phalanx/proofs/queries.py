"""The queries that episodes start from: positives with their depths, drawn by curriculum, and negatives.

How a negative is made from a positive is in `negatives`.
"""

import dataclasses
import functools
import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.core.identity import ByFingerprint
from phalanx.proofs.config import QueryConfig
from phalanx.proofs.negatives import KnownTriples, corrupt

DRAW_WORDS = 5
"""Random words that a query takes."""


class Drawn(NamedTuple):
    """Queries to start from."""

    query: Int32[Array, "*batch 3"]
    label: Bool[Array, "*batch"]
    depth: Int32[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class QuerySet(ByFingerprint):
    """Positives of a split. Equal when the arrays are equal, and static under `jit`."""

    positives: np.ndarray
    """int32 [queries, 3]."""
    depths: np.ndarray
    """int32 [queries]; -1 where a query cannot be proved or nobody knows."""

    @classmethod
    def create(
        cls, positives: Int32[np.ndarray, "queries 3"], depths: Int32[np.ndarray, " queries"] | None = None
    ) -> "QuerySet":
        """Queries and, where known, the depths of their shortest proofs."""
        if depths is None:
            depths = np.full(len(positives), -1, np.int32)
        if len(depths) != len(positives):
            raise ValueError(f"{len(positives)} queries have {len(depths)} depths")
        arrays = np.array(positives, np.int32), np.array(depths, np.int32)
        for array in arrays:
            array.setflags(write=False)
        return cls(*arrays)

    def __len__(self) -> int:
        return len(self.positives)

    def selected(self, config: QueryConfig) -> "QuerySet":
        """The queries that a config admits, sorted by depth where depths are weighted."""
        low = -1 if config.min_depth is None else config.min_depth
        kept = self.depths >= low
        if config.max_depth is not None:
            kept &= self.depths <= config.max_depth
        order = np.flatnonzero(kept)
        if config.depth_weights:
            weighted = [depth for depth, weight in config.depth_weights if weight > 0]
            order = order[np.isin(self.depths[order], weighted)]
            order = order[np.argsort(self.depths[order], kind="stable")]
        if not len(order):
            depths = ", ".join(
                f"{d}: {n}" for d, n in zip(*np.unique(self.depths, return_counts=True), strict=True)
            )
            raise ValueError(
                f"no query is left by min_depth={config.min_depth}, max_depth={config.max_depth} and "
                f"depth_weights={config.depth_weights}; queries by depth are {depths or 'none'}"
            )
        return QuerySet.create(self.positives[order], self.depths[order])

    @functools.cached_property
    def arrays(self) -> tuple[jax.Array, jax.Array]:
        """Positives and depths on the device, concrete even when first asked for under a trace."""
        with jax.ensure_compile_time_eval():
            return jnp.asarray(self.positives), jnp.asarray(self.depths)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of queries and depths."""
        return hashlib.sha256(self.positives.tobytes() + self.depths.tobytes()).hexdigest()

    def __repr__(self) -> str:
        return f"QuerySet({len(self)} queries)"


jax.tree_util.register_static(QuerySet)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def draw_query(
    config: QueryConfig, queries: QuerySet, known: KnownTriples, words: UInt32[Array, "5"]
) -> Drawn:
    """A query from random words: a positive, or a negative made from one; `queries` as `selected` gave them.

    A positive that cannot be corrupted, because every replacement is a known triple, stays positive.
    """
    positives, depths = queries.arrays
    index = _draw_index(config, queries, words[0])
    positive, depth = positives[index], depths[index]
    if config.negative_ratio == 0:
        return Drawn(positive, jnp.bool_(True), depth)
    share = config.negative_ratio / (1 + config.negative_ratio)
    wanted = _fraction(words[1]) < share
    negative, possible = corrupt(known.arrays, config.corruption, positive, words[2:])
    changed = wanted & possible
    return Drawn(jnp.where(changed, negative, positive), ~changed, jnp.where(changed, -1, depth))


def _draw_index(config: QueryConfig, queries: QuerySet, word: UInt32[Array, ""]) -> Any:
    if not config.depth_weights:
        return (word % jnp.uint32(len(queries))).astype(jnp.int32)
    depths, starts, sizes = np.unique(queries.depths, return_index=True, return_counts=True)
    by_depth = dict(config.depth_weights)
    weights = np.array([by_depth[int(depth)] for depth in depths])
    limits = jnp.asarray(np.cumsum(weights / weights.sum())[:-1], jnp.float32)
    group = jnp.sum(_fraction(word) >= limits)
    # The high bits chose the group; a multiplication brings the low ones up for the place within it.
    place = (word * jnp.uint32(0x9E3779B1)) % jnp.asarray(sizes, jnp.uint32)[group]
    return jnp.asarray(starts, jnp.int32)[group] + place.astype(jnp.int32)


def _fraction(word: UInt32[Array, ""]) -> Array:
    """From 0 to 1, 1 excluded."""
    return (word >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
