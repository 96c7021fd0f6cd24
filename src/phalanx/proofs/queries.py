"""On-device sampling of positive and negative queries for episodes.

A positive is a true triple. A negative (corruption) is a true triple with one or two arguments replaced, such
that the result is not known to be true. Candidate lists and embedding training have their own samplers of
negatives. The sampler in this module is different because it runs inside the compiled environment and chooses
uniformly among all possible replacements.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, Int64, UInt32

from phalanx.core.fingerprint import Fingerprinted
from phalanx.proofs.config import Corruption, QueryConfig
from phalanx.proofs.program import FactSet, row_offsets
from phalanx.proofs.vocabulary import check_atoms

NUM_RANDOM_BITS = 5
"""Length of the argument `bits` of `sample_query`, which contains random 32-bit integers."""
_MAX_DRAWS = 16
"""Maximum number of attempts in rejection sampling, which is used for negatives with three terms."""


class KnownArrays(eqx.Module):
    """Index of the known triples on the device.

    Side 0 is the first argument of a triple, and side 1 is the second. For each side, the known triples are
    grouped by their predicate and the argument on the other side, and the index lists the arguments on this
    side for each group. An argument is stored as its position in a list of all constants that is ordered by
    domain, so that each domain is a range of positions.
    """

    starts: Int32[Array, "2 cells"]
    """For each side, the index in `positions` at which each (predicate, other argument) group starts; see
    `row_offsets`. Unused if atoms have three arguments."""
    positions: Int32[Array, "2 known"]
    """For each side, the arguments of the known triples on this side, as indices into `constant_at`. They
    are sorted within each (predicate, other argument) group. Unused if atoms have three arguments."""
    constant_at: Int32[Array, " constants"]
    """All constants, ordered by domain. The entries of `positions` are indices into this array."""
    domain: Int32[Array, "constants_and_one 2"]
    """For each constant, the range of its domain in `constant_at`, as the index of the first entry and the
    number of entries. Row 0 is padding."""
    arities: Int32[Array, " predicates_and_one"]
    """Number of arguments of each predicate. Further terms of an encoded atom repeat the last argument."""
    fact_set: FactSet
    """Set of all known triples."""
    one_domain: bool = eqx.field(static=True)
    """True if all constants are in one domain."""
    search_steps: int = eqx.field(static=True)
    """Number of steps that a binary search needs in the largest (predicate, other argument) group of
    `positions`."""


@dataclasses.dataclass(frozen=True, eq=False)
class NegativeSamplingData(Fingerprinted):
    """Data for sampling negatives: the known triples, which are not sampled, and the domains of constants.

    Negatives are sampled by `sample_query`. Instances are compared by content and are static under `jit`.
    Triples are encoded by a `ProofVocabulary`, whose indices start at 1.
    """

    triples: np.ndarray
    """Known triples as int32 [triples, 1 + arity], sorted and unique."""
    domains: np.ndarray
    """Domain number of each constant, as int32 [constants + 1]. Entry 0 is for padding. A corruption replaces
    a constant by another constant of the same domain."""
    arities: np.ndarray
    """Number of arguments of each predicate, as int32 [predicates + 1]. Entry 0 is for padding. If an encoded
    atom has more terms than its predicate has arguments, the extra terms repeat the last argument."""

    @classmethod
    def create(
        cls,
        triples: Int32[np.ndarray, "triples atom"],
        num_predicates: int,
        num_constants: int,
        domains: Int32[np.ndarray, " constants_and_one"] | None = None,
        arities: Int32[np.ndarray, " predicates_and_one"] | None = None,
    ) -> "NegativeSamplingData":
        """Create an instance from known triples.

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
        # The binary search needs at least one entry, even if it is not used.
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
        """Return `KnownArrays.starts` and `KnownArrays.positions` for one side.

        Args:
            position_of: Position of each constant in the list of all constants that is ordered by domain.
            replaced: Column of `triples` that contains the arguments on this side.
            other: Column of `triples` that contains the arguments on the other side.
        """
        predicate = self.triples[:, 0]
        # An atom with one argument has no other argument: all atoms of its predicate share one entry.
        given = np.where(self.arities[predicate] == 1, 1, self.triples[:, other])
        found = position_of[self.triples[:, replaced]]
        starts = row_offsets(predicate, given, len(self.arities) - 1, len(self.domains) - 1)
        return starts, found[np.lexsort((found, given, predicate))]

    def __repr__(self) -> str:
        return f"NegativeSamplingData({len(self.triples)} known triples)"


jax.tree_util.register_static(NegativeSamplingData)


def corrupt(
    known: KnownArrays, corruption: Corruption, triple: Int32[Array, " atom"], bits: UInt32[Array, "3"]
) -> tuple[Int32[Array, " atom"], Bool[Array, ""]]:
    """Corrupt a triple: replace arguments at random so that the result is not a known triple.

    - `head` and `tail` replace the first or the last argument by a constant of its domain, chosen uniformly
      among the constants for which the resulting triple is not known.
    - `either` does the same with a random one of the two arguments for which there is such a constant.
    - `both` replaces the first argument by any other constant of its domain, and then chooses the last
      argument like `tail`. The last argument can stay the same.

    If the predicate has only one argument, this argument is always replaced.

    Atoms with three terms are corrupted by rejection sampling, which can fail even if there is a corruption
    that is not known. For these atoms, `either` replaces one argument, chosen uniformly.

    Args:
        known: Index of the known triples.
        corruption: Which arguments to replace: `head`, `tail`, `either` or `both`.
        triple: The triple.
        bits: Random 32-bit integers.

    Returns:
        The corruption, and whether a corruption was found. If none was found, the returned triple must not be
        used.
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
        The first sample that is not a known triple, and whether there is such a sample.
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
    """Positions of the constants that can replace one side of a triple.

    A position is an index into `KnownArrays.constant_at`. It is free if its constant is in the domain of the
    replaced argument and the resulting triple is not known.
    """

    low: Int32[Array, ""]
    """Index in `KnownArrays.constant_at` at which the domain of the replaced argument starts."""
    begin: Int32[Array, ""]
    """Index in `KnownArrays.positions` of the first known constant of the domain. A constant is known if the
    resulting triple is known."""
    end: Int32[Array, ""]
    """Index in `KnownArrays.positions` at which the known constants of the domain end (exclusive)."""
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
    """Replace one side of a triple with a random constant, such that the new triple is not a known triple.

    The constant is the one at a random free position; see `_FreePositions`. Returns the new triple, and
    whether there is a free position.
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
    """Find the first index of `arrays.positions[side]` at which each of several conditions holds.

    The search is binary, so a condition that holds at an index must also hold at all later indices.

    Args:
        arrays: Index of the known triples.
        side: Row of `arrays.positions` to search.
        begin: First index to search.
        end: Index after the last one to search. It is the result for a condition that holds at no index.
        holds: Function `(position, index)` that returns one boolean per condition, which is True if the
            condition holds at `index`. `position` is `arrays.positions[side, index]`.
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
    """True for a positive (a true query), and False for a negative. A positive is not used as a fact in its
    own proof."""
    depth: Int32[Array, "*batch"]
    """Proof depth of the query, or -1 if it is not known or the query is a negative."""


@dataclasses.dataclass(frozen=True, eq=False)
class PositiveQueries(Fingerprinted):
    """The true queries of a split. Instances are compared by content and are static under `jit`."""

    positives: np.ndarray
    """Encoded queries as int32 [queries, 1 + arity]."""
    depths: np.ndarray
    """Proof depths as int32 [queries], or -1 if a query has no proof or its depth is not known."""

    @classmethod
    def create(
        cls, positives: Int32[np.ndarray, "queries atom"], depths: Int32[np.ndarray, " queries"] | None = None
    ) -> "PositiveQueries":
        """Create an instance from encoded queries. If `depths` is None, no proof depth is known."""
        if depths is None:
            depths = np.full(len(positives), -1, np.int32)
        if len(depths) != len(positives):
            raise ValueError(f"got {len(depths)} depths for {len(positives)} queries")
        return cls(np.array(positives, np.int32), np.array(depths, np.int32))

    def __len__(self) -> int:
        return len(self.positives)

    def select(self, config: QueryConfig) -> "PositiveQueries":
        """Return the queries that satisfy the depth limits of a config.

        If the config has depth weights, the result is sorted by depth, and queries whose depth is not listed
        or has weight 0 are removed. Raises `ValueError` if no query is left.
        """
        order = self._selected(config)
        return PositiveQueries.create(self.positives[order], self.depths[order])

    def cumulative_weights(self, config: QueryConfig) -> Float32[np.ndarray, " queries"]:
        """Return the cumulative sampling probabilities of all queries for a config.

        Queries that `select` removes have probability 0.
        """
        selected, by_depth = self._selected(config), dict(config.depth_weights)
        weights = np.zeros(len(self))
        for depth in np.unique(self.depths[selected]):
            rows = selected[self.depths[selected] == depth]
            weights[rows] = by_depth[int(depth)] / len(rows) if by_depth else 1.0
        return (np.cumsum(weights) / weights.sum()).astype(np.float32)

    def _selected(self, config: QueryConfig) -> Int64[np.ndarray, " selected"]:
        by_depth = config.min_depth is not None or config.max_depth is not None or config.depth_weights
        if by_depth and len(self) and self.depths.max() < 0 and config.max_depth != -1:
            raise ValueError(
                "queries cannot be selected by depth because no depth is known: set compute_depths_up_to to "
                "compute depths, or add depth files"
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
        return order

    @functools.cached_property
    def arrays(self) -> tuple[jax.Array, jax.Array]:
        """Queries and depths on the device. The arrays are concrete even while JAX is tracing."""
        with jax.ensure_compile_time_eval():
            return jnp.asarray(self.positives), jnp.asarray(self.depths)

    def __repr__(self) -> str:
        return f"PositiveQueries({len(self)} queries)"


jax.tree_util.register_static(PositiveQueries)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def sample_query(
    config: QueryConfig,
    queries: PositiveQueries,
    known: NegativeSamplingData,
    bits: UInt32[Array, "5"],
    cumulative: Float32[Array, " queries"] | None = None,
) -> SampledQuery:
    """Sample the query of an episode, which is a positive or a negative (a corruption of a positive).

    If a positive cannot be corrupted because every replacement is a known triple, it is returned unchanged as
    a positive.

    Args:
        config: Settings for sampling: the ratio of negatives, the kind of corruption and the depth weights.
        queries: Positives, as returned by `PositiveQueries.select` for the same config.
        known: Known triples, which are never sampled as negatives.
        bits: Random 32-bit integers.
        cumulative: Result of `PositiveQueries.cumulative_weights`, which replaces the depth weights of the
            config. If None, the depth weights are used.
    """
    positives, depths = queries.arrays
    if cumulative is None:
        index = _sample_index(config, queries, bits[0])
    else:
        index = jnp.searchsorted(cumulative, _to_unit_interval(bits[0]), side="right").astype(jnp.int32)
    positive, depth = positives[index], depths[index]
    if config.negative_ratio == 0:
        return SampledQuery(positive, jnp.bool_(True), depth)
    negative_fraction = config.negative_ratio / (1 + config.negative_ratio)
    wants_negative = _to_unit_interval(bits[1]) < negative_fraction
    negative, possible = corrupt(known.arrays, config.corruption, positive, bits[2:])
    changed = wants_negative & possible
    return SampledQuery(jnp.where(changed, negative, positive), ~changed, jnp.where(changed, -1, depth))


def _sample_index(config: QueryConfig, queries: PositiveQueries, bits: UInt32[Array, ""]) -> Any:
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
