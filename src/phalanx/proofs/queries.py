"""Queries to start episodes from: positives of a split by depth, and negatives made from them.

A negative is a true triple with an argument replaced, drawn evenly from those that are not known to be true.
What a proof may use is in `program`.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.core.fingerprint import Fingerprinted
from phalanx.kg.vocabulary import check_triples
from phalanx.proofs.config import Corruption, QueryConfig
from phalanx.proofs.program import FactSet, offsets


class KnownArrays(eqx.Module):
    """Known triples on the device, for each side: whom a predicate and the other argument are known with.

    Side 0 is the first argument, side 1 the second. Constants are numbered anew, domain by domain, so that a
    domain is a range of places.
    """

    starts: Int32[Array, "2 cells"]
    """Where (predicate, other argument) begins. Of no use where atoms have three terms."""
    places: Int32[Array, "2 known"]
    """Places of the known arguments, ascending for each (predicate, other argument)."""
    constant_at: Int32[Array, " constants"]
    """The constant at a place."""
    domain: Int32[Array, "constants_and_one 2"]
    """First place and size of a constant's domain; row 0 is empty."""
    arities: Int32[Array, " predicates_and_one"]
    """Arguments of each predicate; what stands behind them repeats the last."""
    nests: FactSet
    """The known atoms themselves."""
    one_domain: bool = eqx.field(static=True)
    """Whether all constants are of one domain."""
    rounds: int = eqx.field(static=True)
    """Halvings that find a place among those of any (predicate, other argument)."""


@dataclasses.dataclass(frozen=True, eq=False)
class NegativeSampler(Fingerprinted):
    """All triples that must not serve as negatives. Equal when its triples are, and static under `jit`."""

    triples: np.ndarray
    """int32 [triples, 3], sorted and unique."""
    domains: np.ndarray
    """int32 [constants + 1]: a number for the domain of each constant; a replacement stays in the domain."""
    arities: np.ndarray
    """int32 [predicates + 1]: the arguments of each predicate, which an encoded atom may have more of."""

    @property
    def num_predicates(self) -> int:
        """Real predicates."""
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
        """Known triples of all splits, in any order; `domains[c]` is the domain of constant c.

        `arities` are the arguments of each predicate; without them all have as many as the triples.
        """
        if arities is None:
            arities = np.array([0, *[triples.shape[1] - 1] * num_predicates], np.int32)
        if domains is None:
            domains = np.zeros(num_constants + 1, np.int32)
        if domains.shape != (num_constants + 1,):
            raise ValueError(
                f"domains must have a number for each of {num_constants} constants and one for padding, "
                f"got {domains.shape[0]}"
            )
        check_triples(triples, num_predicates, num_constants)
        unique = np.unique(triples.astype(np.int32), axis=0).reshape(-1, triples.shape[1])
        kept, counts = np.array(domains, np.int32), np.array(arities, np.int32)
        for array in (unique, kept, counts):
            array.setflags(write=False)
        return cls(unique, kept, counts)

    @functools.cached_property
    def arrays(self) -> KnownArrays:
        """The index, concrete even when first asked for under a trace."""
        constants = len(self.domains) - 1
        order = np.argsort(self.domains[1:], kind="stable")
        place_of = np.zeros(constants + 1, np.int32)
        place_of[order + 1] = np.arange(constants, dtype=np.int32)
        _, domain_number, sizes = np.unique(self.domains[1:], return_inverse=True, return_counts=True)
        first_place = np.cumsum(sizes) - sizes
        ranges = np.zeros((constants + 1, 2), np.int32)
        ranges[1:] = np.stack([first_place, sizes], axis=1)[domain_number.reshape(-1)]
        starts, places = [], []
        predicate = self.triples[:, 0]
        wide = self.triples.shape[1] > 3
        for replaced, other in ((1, 2), (2, 1)):
            if wide:
                starts.append(np.zeros(1, np.int32))
                places.append(np.zeros(1, np.int32))
                continue
            # An atom of one argument has no other: all of its predicate stand in one place.
            beside = np.where(self.arities[predicate] == 1, 1, self.triples[:, other])
            here = place_of[self.triples[:, replaced]]
            by = np.lexsort((here, beside, predicate))
            starts.append(offsets(predicate, beside, self.num_predicates, constants))
            # A search needs a place to look at, also where nothing is known.
            places.append(here[by] if len(by) else np.zeros(1, np.int32))
        with jax.ensure_compile_time_eval():
            return KnownArrays(
                jnp.asarray(np.stack(starts)),
                jnp.asarray(np.stack(places)),
                jnp.asarray(order + 1, jnp.int32),
                jnp.asarray(ranges),
                jnp.asarray(self.arities),
                FactSet.of(self.triples, constants),
                one_domain=len(sizes) == 1,
                rounds=0 if wide else int(max(np.diff(start).max() for start in starts)).bit_length(),
            )

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of triples and domains."""
        return hashlib.sha256(
            self.triples.tobytes() + self.domains.tobytes() + self.arities.tobytes()
        ).hexdigest()

    def __repr__(self) -> str:
        return f"KnownTriples({len(self.triples)} triples)"


jax.tree_util.register_static(NegativeSampler)


def corrupt(
    known: KnownArrays, corruption: Corruption, triple: Int32[Array, " atom"], words: UInt32[Array, "3"]
) -> tuple[Int32[Array, " atom"], Bool[Array, ""]]:
    """A triple that is not known, and whether there is one.

    A side is replaced by one of the constants of its domain that are not known there, all equally likely:
    the choice is by rank among them, so nothing has to be drawn twice. `either` falls back on the other side
    where one has no such constant; `both` replaces the first argument by any other of its domain, then the
    second. An atom of one argument has that one replaced, whatever the corruption. Where atoms have three
    terms, `_drawn` does it.
    """
    if len(triple) > 3:
        return _drawn(known, corruption, triple, words)
    if corruption == "both":
        low, size = known.domain[triple[1]]
        place = low + (words[1] % jnp.maximum(size - 1, 1).astype(jnp.uint32)).astype(jnp.int32)
        drawn, last = known.constant_at[place], known.constant_at[low + size - 1]
        # The last of the domain stands in for the constant itself, so the others are equally likely.
        triple = triple.at[1].set(jnp.where(drawn == triple[1], last, drawn))
    free = jax.vmap(lambda side: _free(known, triple, side))(jnp.arange(2))
    if corruption == "either":
        head_free, tail_free = free.size > 0
        side = jnp.where(head_free & ((words[2] >> 31 == 0) | ~tail_free), 0, 1)
    else:
        side = jnp.int32(corruption != "head")
    return _replaced(known, triple, side, jax.tree.map(lambda leaf: leaf[side], free), words[0])


_DRAWS = 16
"""Replacements that are tried for an atom of three terms."""


def _drawn(
    known: KnownArrays, corruption: Corruption, atom: Int32[Array, " atom"], words: UInt32[Array, "3"]
) -> tuple[Int32[Array, " atom"], Bool[Array, ""]]:
    """The first of some draws that is not known, and whether there is one.

    `head` replaces the first argument, `tail` the last, `both` these two, and `either` any one.
    """
    last = known.arities[atom[0]] - 1
    argument = jnp.minimum(jnp.arange(len(atom) - 1), last)
    any_one = (words[2] % (last + 1).astype(jnp.uint32)).astype(jnp.int32)
    chosen = {"head": argument == 0, "tail": argument == last, "either": argument == any_one}
    replaced = chosen.get(corruption, (argument == 0) | (argument == last))
    salts = jnp.arange(1, _DRAWS + 1, dtype=jnp.uint32)[:, None] * jnp.uint32(0x9E3779B1)
    # Columns of one argument are drawn alike.
    mixed = (words[0] + salts) * jnp.uint32(0x85EBCA6B) ^ (
        words[1] + argument.astype(jnp.uint32) * 0x27D4EB2F
    )
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x2C1B3C6D)
    mixed = mixed ^ (mixed >> 13)
    low, size = known.domain[atom[1:]].T
    place = low + (mixed % jnp.maximum(size, 1).astype(jnp.uint32)).astype(jnp.int32)
    drawn = jnp.where(replaced, known.constant_at[place], atom[1:])
    tried = jnp.concatenate([jnp.broadcast_to(atom[:1], (_DRAWS, 1)), drawn], axis=1)
    new = ~known.nests.contain(tried, len(known.constant_at))
    return tried[jnp.argmax(new)], jnp.any(new)


class _Free(NamedTuple):
    """The places of a domain that are not known on one side of a triple."""

    low: Int32[Array, ""]
    """First place of the domain."""
    begin: Int32[Array, ""]
    """Where the domain's known places begin."""
    end: Int32[Array, ""]
    size: Int32[Array, ""]
    """Places that are not known."""


def _free(arrays: KnownArrays, triple: Int32[Array, " atom"], side: Int32[Array, ""]) -> _Free:
    other = jnp.where(arrays.arities[triple[0]] == 1, 1, triple[2 - side])
    cell = (triple[0] - 1) * len(arrays.constant_at) + other - 1
    begin, end = arrays.starts[side, cell], arrays.starts[side, cell + 1]
    low, size = arrays.domain[triple[1 + side]]
    if arrays.one_domain:
        return _Free(low, begin, end, size - (end - begin))
    bounds = jnp.stack([low, low + size])
    begin, end = _first_where(arrays, side, begin, end, lambda place, _: place >= bounds)
    return _Free(low, begin, end, size - (end - begin))


def _replaced(
    arrays: KnownArrays,
    triple: Int32[Array, " atom"],
    side: Int32[Array, ""],
    free: _Free,
    word: UInt32[Array, ""],
) -> tuple[Int32[Array, " atom"], Bool[Array, ""]]:
    """The triple with one of the free places on a side, and whether there is one."""
    rank = (word % jnp.maximum(free.size, 1).astype(jnp.uint32)).astype(jnp.int32)
    # Before the known place at `index` stand `place - low - (index - begin)` free ones.
    behind = _first_where(
        arrays,
        side,
        free.begin,
        free.end,
        lambda place, index: place - free.low - (index - free.begin) > rank[None],
    )[0]
    place = jnp.clip(free.low + rank + behind - free.begin, 0, len(arrays.constant_at) - 1)
    columns = jnp.arange(3)
    here = (columns == 1 + side) | ((arrays.arities[triple[0]] == 1) & (columns > 0))
    return jnp.where(here, arrays.constant_at[place], triple), free.size > 0


def _first_where(
    arrays: KnownArrays,
    side: Int32[Array, ""],
    begin: Int32[Array, ""],
    end: Int32[Array, ""],
    holds: Callable[[Array, Array], Array],
) -> Int32[Array, " questions"]:
    """Bisection: the first index in [begin, end) whose place answers yes, for each of some questions."""
    known = arrays.places.shape[1]
    left = jnp.zeros_like(holds(begin[None], begin[None]), jnp.int32) + begin
    right = jnp.zeros_like(left) + end

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bounds
        middle = (left + right) // 2
        yes = holds(arrays.places[side, jnp.minimum(middle, known - 1)], middle) | (left >= right)
        return jnp.where(yes, left, middle + 1), jnp.where(yes, jnp.minimum(middle, right), right)

    return jax.lax.fori_loop(0, arrays.rounds, halve, (left, right))[0]


SAMPLE_WORDS = 5
"""Random words that a query takes."""


class SampledQueries(NamedTuple):
    """Queries that episodes start from."""

    query: Int32[Array, "*batch atom"]
    label: Bool[Array, "*batch"]
    depth: Int32[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class QuerySet(Fingerprinted):
    """Positives of a split. Equal when the arrays are equal, and static under `jit`."""

    positives: np.ndarray
    """int32 [queries, 3]."""
    depths: np.ndarray
    """int32 [queries]; -1 where a query cannot be proved or nobody knows."""

    @classmethod
    def create(
        cls, positives: Int32[np.ndarray, "queries atom"], depths: Int32[np.ndarray, " queries"] | None = None
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
        by_depth = config.min_depth is not None or config.max_depth is not None or config.depth_weights
        if by_depth and len(self) and self.depths.max() < 0 and config.max_depth != -1:
            raise ValueError(
                "no query has a known depth to be chosen by: set depth_limit, so that depths are computed, "
                "or give depth files"
            )
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
def sample_query(
    config: QueryConfig, queries: QuerySet, known: NegativeSampler, words: UInt32[Array, "5"]
) -> SampledQueries:
    """A query from random words: a positive, or a negative made from one; `queries` as `selected` gave them.

    A positive that cannot be corrupted, because every replacement is a known triple, stays positive.
    """
    positives, depths = queries.arrays
    index = _sample_index(config, queries, words[0])
    positive, depth = positives[index], depths[index]
    if config.negative_ratio == 0:
        return SampledQueries(positive, jnp.bool_(True), depth)
    share = config.negative_ratio / (1 + config.negative_ratio)
    wanted = _fraction(words[1]) < share
    negative, possible = corrupt(known.arrays, config.corruption, positive, words[2:])
    changed = wanted & possible
    return SampledQueries(jnp.where(changed, negative, positive), ~changed, jnp.where(changed, -1, depth))


def _sample_index(config: QueryConfig, queries: QuerySet, word: UInt32[Array, ""]) -> Any:
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
