"""Samples the queries of episodes, positives and negatives, on the device.

A positive is a true triple. A negative (corruption) is a true triple with an argument replaced, sampled
uniformly from those that are not known to be true. This sampler is separate from those for candidate lists
and for embedding training because it runs inside the compiled environment and must be exactly uniform.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.core.fingerprint import Fingerprinted
from phalanx.proofs.config import Corruption, QueryConfig
from phalanx.proofs.program import FactSet, row_offsets
from phalanx.proofs.vocabulary import check_atoms

NUM_RANDOM_BITS = 5
"""Number of random 32-bit integers that are needed to sample a query."""
_MAX_DRAWS = 16
"""Number of samples that rejection sampling tries for a negative with three terms."""


class KnownArrays(eqx.Module):
    """Index of the known triples on the device.

    Side 0 is the first argument of a triple, and side 1 is the second. For each side, the index contains the
    known values of that argument, grouped by predicate and the other argument. A value is stored as a
    position: constants are ordered by domain, so that each domain is a range of positions.
    """

    starts: Int32[Array, "2 cells"]
    """For each side, the index in `positions` at which the values of each (predicate, other argument) start.
    Unused if atoms have three terms."""
    positions: Int32[Array, "2 known"]
    """For each side, the known values, in ascending order for each (predicate, other argument). Unused if
    atoms have three terms."""
    constant_at: Int32[Array, " constants"]
    """The constant at each position."""
    domain: Int32[Array, "constants_and_one 2"]
    """First position and size of the domain of each constant. Row 0 is padding."""
    arities: Int32[Array, " predicates_and_one"]
    """Number of arguments of each predicate. Further terms of an encoded atom repeat the last argument."""
    fact_set: FactSet
    """Set of all known triples."""
    one_domain: bool = eqx.field(static=True)
    """True if all constants are in one domain."""
    search_steps: int = eqx.field(static=True)
    """Maximum number of steps of a binary search among the values of a (predicate, other argument)."""


@dataclasses.dataclass(frozen=True, eq=False)
class NegativeSampler(Fingerprinted):
    """The known triples, which are never sampled as negatives.

    Instances are compared by content and are static under `jit`. Triples are encoded with the
    indices of `ProofVocabulary`, which start at 1.
    """

    triples: np.ndarray
    """Known triples as int32 [triples, 1 + arity], sorted and unique."""
    domains: np.ndarray
    """Domain of each constant, as int32 [constants + 1]. A replacement is always in the same domain."""
    arities: np.ndarray
    """Number of arguments of each predicate, as int32 [predicates + 1]. Encoded atoms can have more terms."""

    @property
    def num_predicates(self) -> int:
        """Number of predicates."""
        return len(self.arities) - 1

    @classmethod
    def create(
        cls,
        triples: Int32[np.ndarray, "triples atom"],
        num_predicates: int,
        num_constants: int,
        domains: Int32[np.ndarray, " constants_and_one"] | None = None,
        arities: Int32[np.ndarray, " predicates_and_one"] | None = None,
    ) -> "NegativeSampler":
        """Create a sampler.

        Args:
            triples: Known triples of all splits, in any order.
            num_predicates: Number of predicates.
            num_constants: Number of constants.
            domains: Domain number of each constant, with an entry for padding in front. None means that all
                constants are in one domain.
            arities: Number of arguments of each predicate, with an entry for padding in front. None means
                that each predicate has as many arguments as `triples` has terms.
        """
        if arities is None:
            arities = np.array([0, *[triples.shape[1] - 1] * num_predicates], np.int32)
        if domains is None:
            domains = np.zeros(num_constants + 1, np.int32)
        if domains.shape != (num_constants + 1,):
            raise ValueError(
                f"domains must have an entry for each of {num_constants} constants and one for padding, "
                f"got {domains.shape[0]}"
            )
        check_atoms(triples, num_predicates, num_constants)
        unique = np.unique(triples.astype(np.int32), axis=0).reshape(-1, triples.shape[1])
        return cls(unique, np.array(domains, np.int32), np.array(arities, np.int32))

    @functools.cached_property
    def arrays(self) -> KnownArrays:
        """Index of the known triples on the device. The arrays are concrete even while JAX is tracing."""
        num_constants = len(self.domains) - 1
        order = np.argsort(self.domains[1:], kind="stable")
        position_of = np.zeros(num_constants + 1, np.int32)
        position_of[order + 1] = np.arange(num_constants, dtype=np.int32)
        _, domain_number, sizes = np.unique(self.domains[1:], return_inverse=True, return_counts=True)
        first_position = np.cumsum(sizes) - sizes
        ranges = np.zeros((num_constants + 1, 2), np.int32)
        ranges[1:] = np.stack([first_position, sizes], axis=1)[domain_number.reshape(-1)]
        # The binary search needs at least one entry, also if it is not used.
        starts, positions = np.zeros((2, 1), np.int32), np.zeros((2, max(len(self.triples), 1)), np.int32)
        if self.triples.shape[1] == 3:
            sides = [self._index_side(position_of, *sides) for sides in ((1, 2), (2, 1))]
            starts = np.stack([start for start, _ in sides])
            positions[:, : len(self.triples)] = [values for _, values in sides]
        most = int(np.diff(starts).max(initial=0))
        with jax.ensure_compile_time_eval():
            return KnownArrays(
                jnp.asarray(starts),
                jnp.asarray(positions),
                jnp.asarray(order + 1, jnp.int32),
                jnp.asarray(ranges),
                jnp.asarray(self.arities),
                FactSet.create(self.triples, num_constants),
                one_domain=len(sizes) == 1,
                search_steps=most.bit_length(),
            )

    def _index_side(
        self, position_of: np.ndarray, replaced: int, other: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return `starts` and `positions` of `KnownArrays` for one side, given the columns of both sides."""
        predicate = self.triples[:, 0]
        # An atom with one argument has no other argument: all atoms of its predicate share one entry.
        given = np.where(self.arities[predicate] == 1, 1, self.triples[:, other])
        found = position_of[self.triples[:, replaced]]
        starts = row_offsets(predicate, given, self.num_predicates, len(self.domains) - 1)
        return starts, found[np.lexsort((found, given, predicate))]

    def __repr__(self) -> str:
        return f"NegativeSampler({len(self.triples)} known triples)"


jax.tree_util.register_static(NegativeSampler)


def corrupt(
    known: KnownArrays, corruption: Corruption, triple: Int32[Array, " atom"], bits: UInt32[Array, "3"]
) -> tuple[Int32[Array, " atom"], Bool[Array, ""]]:
    """Sample a corruption of a triple that is not a known triple.

    One argument is replaced by a constant of its domain such that the result is not known. All such constants
    are equally likely. The sample is selected by rank, so no rejection sampling is needed, except for atoms
    with three terms. With `either`, a side that has no such constant is not used. `both` replaces the first
    argument by any other constant of its domain, and then the second one as described. If an atom has only
    one argument, this argument is replaced.

    Args:
        known: Index of the known triples.
        corruption: Which argument to replace.
        triple: The triple.
        bits: Random integers.

    Returns:
        The corruption, and True if there is one. If there is none, the returned triple must not be used.
    """
    if len(triple) > 3:
        return _corrupt_three_terms(known, corruption, triple, bits)
    if corruption == "both":
        low, size = known.domain[triple[1]]
        position = low + (bits[1] % jnp.maximum(size - 1, 1).astype(jnp.uint32)).astype(jnp.int32)
        drawn, last = known.constant_at[position], known.constant_at[low + size - 1]
        # The last constant of the domain replaces the constant itself, so all others are equally likely.
        triple = triple.at[1].set(jnp.where(drawn == triple[1], last, drawn))
    free = jax.vmap(lambda side: _free_positions(known, triple, side))(jnp.arange(2))
    if corruption == "either":
        head_free, tail_free = free.size > 0
        side = jnp.where(head_free & ((bits[2] >> 31 == 0) | ~tail_free), 0, 1)
    else:
        side = jnp.int32(corruption != "head")
    return _replace_side(known, triple, side, jax.tree.map(lambda leaf: leaf[side], free), bits[0])


def _corrupt_three_terms(
    known: KnownArrays, corruption: Corruption, atom: Int32[Array, " atom"], bits: UInt32[Array, "3"]
) -> tuple[Int32[Array, " atom"], Bool[Array, ""]]:
    """Corrupt an atom with three terms by rejection sampling.

    `head` replaces the first argument, `tail` replaces the last argument, `both` replaces these two, and
    `either` replaces one random argument.

    Returns:
        The first of several samples that is not known, and True if there is one.
    """
    last = known.arities[atom[0]] - 1
    argument = jnp.minimum(jnp.arange(len(atom) - 1), last)
    any_one = (bits[2] % (last + 1).astype(jnp.uint32)).astype(jnp.int32)
    choices = {"head": argument == 0, "tail": argument == last, "either": argument == any_one}
    is_replaced = choices.get(corruption, (argument == 0) | (argument == last))
    salts = jnp.arange(1, _MAX_DRAWS + 1, dtype=jnp.uint32)[:, None] * jnp.uint32(0x9E3779B1)
    # Terms that repeat an argument get the same sample.
    mixed = (bits[0] + salts) * jnp.uint32(0x85EBCA6B) ^ (bits[1] + argument.astype(jnp.uint32) * 0x27D4EB2F)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x2C1B3C6D)
    mixed = mixed ^ (mixed >> 13)
    low, size = known.domain[atom[1:]].T
    position = low + (mixed % jnp.maximum(size, 1).astype(jnp.uint32)).astype(jnp.int32)
    drawn = jnp.where(is_replaced, known.constant_at[position], atom[1:])
    samples = jnp.concatenate([jnp.broadcast_to(atom[:1], (_MAX_DRAWS, 1)), drawn], axis=1)
    is_new = ~known.fact_set.contains(samples, len(known.constant_at))
    return samples[jnp.argmax(is_new)], jnp.any(is_new)


class _FreePositions(NamedTuple):
    """Free positions of one side of a triple: the positions of its domain that are not known values."""

    low: Int32[Array, ""]
    """First position of the domain."""
    begin: Int32[Array, ""]
    """Index in `KnownArrays.positions` of the first known value in the domain."""
    end: Int32[Array, ""]
    """Index after the last known value in the domain."""
    size: Int32[Array, ""]
    """Number of free positions."""


def _free_positions(
    arrays: KnownArrays, triple: Int32[Array, " atom"], side: Int32[Array, ""]
) -> _FreePositions:
    other = jnp.where(arrays.arities[triple[0]] == 1, 1, triple[2 - side])
    cell = (triple[0] - 1) * len(arrays.constant_at) + other - 1
    begin, end = arrays.starts[side, cell], arrays.starts[side, cell + 1]
    low, size = arrays.domain[triple[1 + side]]
    if arrays.one_domain:
        return _FreePositions(low, begin, end, size - (end - begin))
    bounds = jnp.stack([low, low + size])
    begin, end = _find_first(arrays, side, begin, end, lambda position, _: position >= bounds)
    return _FreePositions(low, begin, end, size - (end - begin))


def _replace_side(
    arrays: KnownArrays,
    triple: Int32[Array, " atom"],
    side: Int32[Array, ""],
    free: _FreePositions,
    bits: UInt32[Array, ""],
) -> tuple[Int32[Array, " atom"], Bool[Array, ""]]:
    """Replace one side of a triple by a random free position.

    Returns the new triple, and True if there is a free position.
    """
    rank = (bits % jnp.maximum(free.size, 1).astype(jnp.uint32)).astype(jnp.int32)
    # There are `position - low - (index - begin)` free positions before the known position at `index`.
    index = _find_first(
        arrays,
        side,
        free.begin,
        free.end,
        lambda position, index: position - free.low - (index - free.begin) > rank[None],
    )[0]
    position = jnp.clip(free.low + rank + index - free.begin, 0, len(arrays.constant_at) - 1)
    columns = jnp.arange(3)
    is_replaced = (columns == 1 + side) | ((arrays.arities[triple[0]] == 1) & (columns > 0))
    return jnp.where(is_replaced, arrays.constant_at[position], triple), free.size > 0


def _find_first(
    arrays: KnownArrays,
    side: Int32[Array, ""],
    begin: Int32[Array, ""],
    end: Int32[Array, ""],
    holds: Callable[[Array, Array], Array],
) -> Int32[Array, " conditions"]:
    """Find the first index in [begin, end) that satisfies each of several conditions, by binary search.

    Args:
        arrays: Index of the known triples.
        side: Side whose positions are searched.
        begin: First index.
        end: Index after the last one, which is also the result if no index satisfies a condition.
        holds: Function of a position and its index that returns whether each condition holds. Conditions must
            be monotonic.
    """
    num_known = arrays.positions.shape[1]
    left = jnp.zeros_like(holds(begin[None], begin[None]), jnp.int32) + begin
    right = jnp.zeros_like(left) + end

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bounds
        middle = (left + right) // 2
        position = arrays.positions[side, jnp.minimum(middle, num_known - 1)]
        found = holds(position, middle) | (left >= right)
        return jnp.where(found, left, middle + 1), jnp.where(found, jnp.minimum(middle, right), right)

    return jax.lax.fori_loop(0, arrays.search_steps, halve, (left, right))[0]


class SampledQuery(NamedTuple):
    """The query of an episode, or of a batch of episodes."""

    atom: Int32[Array, "*batch atom"]
    """The encoded query."""
    label: Bool[Array, "*batch"]
    """True for a positive, which is a true query. It is not used as a fact in its own proof."""
    depth: Int32[Array, "*batch"]
    """Proof depth of the query, or -1 if it is not known or the query is a negative."""


@dataclasses.dataclass(frozen=True, eq=False)
class QuerySet(Fingerprinted):
    """The true queries of a split. Instances are compared by content and are static under `jit`."""

    positives: np.ndarray
    """Encoded queries as int32 [queries, 1 + arity]."""
    depths: np.ndarray
    """Proof depths as int32 [queries], or -1 if a query has no proof or its depth is not known."""

    @classmethod
    def create(
        cls, positives: Int32[np.ndarray, "queries atom"], depths: Int32[np.ndarray, " queries"] | None = None
    ) -> "QuerySet":
        """Create a query set. If `depths` is None, no proof depth is known."""
        if depths is None:
            depths = np.full(len(positives), -1, np.int32)
        if len(depths) != len(positives):
            raise ValueError(f"got {len(depths)} depths for {len(positives)} queries")
        return cls(np.array(positives, np.int32), np.array(depths, np.int32))

    def __len__(self) -> int:
        return len(self.positives)

    def select(self, config: QueryConfig) -> "QuerySet":
        """Return the queries that satisfy the depth limits of a config.

        If the config has depth weights, the queries are sorted by depth, and those with weight 0 are removed.
        Raises `ValueError` if no query is left.
        """
        by_depth = config.min_depth is not None or config.max_depth is not None or config.depth_weights
        if by_depth and len(self) and self.depths.max() < 0 and config.max_depth != -1:
            raise ValueError(
                "queries cannot be selected by depth because no depth is known: set depth_limit to compute "
                "depths, or add depth files"
            )
        low = -1 if config.min_depth is None else config.min_depth
        high = np.inf if config.max_depth is None else config.max_depth
        order = np.flatnonzero((self.depths >= low) & (self.depths <= high))
        if config.depth_weights:
            weighted = [depth for depth, weight in config.depth_weights if weight > 0]
            order = order[np.isin(self.depths[order], weighted)]
            order = order[np.argsort(self.depths[order], kind="stable")]
        if not len(order):
            depths = ", ".join(
                f"{d}: {n}" for d, n in zip(*np.unique(self.depths, return_counts=True), strict=True)
            )
            raise ValueError(
                f"no query matches min_depth={config.min_depth}, max_depth={config.max_depth} and "
                f"depth_weights={config.depth_weights}; numbers of queries by depth: {depths or 'none'}"
            )
        return QuerySet.create(self.positives[order], self.depths[order])

    @functools.cached_property
    def arrays(self) -> tuple[jax.Array, jax.Array]:
        """Queries and depths on the device. The arrays are concrete even while JAX is tracing."""
        with jax.ensure_compile_time_eval():
            return jnp.asarray(self.positives), jnp.asarray(self.depths)

    def __repr__(self) -> str:
        return f"QuerySet({len(self)} queries)"


jax.tree_util.register_static(QuerySet)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def sample_query(
    config: QueryConfig, queries: QuerySet, known: NegativeSampler, bits: UInt32[Array, "5"]
) -> SampledQuery:
    """Sample the query of an episode: a positive, or a negative that is a corruption of a positive.

    If a positive cannot be corrupted because every replacement is a known triple, it stays a positive.

    Args:
        config: Fraction of negatives, corruption and depth weights.
        queries: Positives; the result of `QuerySet.select`.
        known: Known triples, which are never sampled as negatives.
        bits: Random integers.
    """
    positives, depths = queries.arrays
    index = _sample_index(config, queries, bits[0])
    positive, depth = positives[index], depths[index]
    if config.negative_ratio == 0:
        return SampledQuery(positive, jnp.bool_(True), depth)
    negative_fraction = config.negative_ratio / (1 + config.negative_ratio)
    wants_negative = _to_unit_interval(bits[1]) < negative_fraction
    negative, possible = corrupt(known.arrays, config.corruption, positive, bits[2:])
    changed = wants_negative & possible
    return SampledQuery(jnp.where(changed, negative, positive), ~changed, jnp.where(changed, -1, depth))


def _sample_index(config: QueryConfig, queries: QuerySet, bits: UInt32[Array, ""]) -> Any:
    if not config.depth_weights:
        return (bits % jnp.uint32(len(queries))).astype(jnp.int32)
    depths, starts, sizes = np.unique(queries.depths, return_index=True, return_counts=True)
    by_depth = dict(config.depth_weights)
    weights = np.array([by_depth[int(depth)] for depth in depths])
    limits = jnp.asarray(np.cumsum(weights / weights.sum())[:-1], jnp.float32)
    group = jnp.sum(_to_unit_interval(bits) >= limits)
    # The high bits select the group; a multiplication moves the low bits up for the index within it.
    index = (bits * jnp.uint32(0x9E3779B1)) % jnp.asarray(sizes, jnp.uint32)[group]
    return jnp.asarray(starts, jnp.int32)[group] + index.astype(jnp.int32)


def _to_unit_interval(bits: UInt32[Array, ""]) -> Array:
    """Convert random bits to a number in [0, 1)."""
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
