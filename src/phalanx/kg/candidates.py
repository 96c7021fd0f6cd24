"""What a true triple is ranked against, corruptions of one argument, and the metrics of where it comes.

Negatives to learn from are in `search.queries`; what scores candidates is in `rank`.
"""

import dataclasses
import hashlib
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from phalanx.kg.joins import KnownArguments
from phalanx.kg.knowledge_base import DataHandler

Sides = Literal["head", "tail", "both"]
SIDES: tuple[Literal["head"], Literal["tail"]] = ("head", "tail")
"""By their numbers: 0 is the first argument, 1 the second."""


@dataclasses.dataclass(frozen=True)
class CandidateLists:
    """Lists to rank: each has a positive at its head and the corruptions of one of its sides behind it."""

    triples: Int32[np.ndarray, "candidates atom"]
    """All lists, one after the other."""
    starts: Int64[np.ndarray, " lists_and_one"]
    """Where each list begins, and the end of the last."""
    query: Int64[np.ndarray, " lists"]
    """The number of each list's query."""
    side: Int64[np.ndarray, " lists"]
    """0 where the first argument is replaced, 1 where the second is."""
    tie_draw: Float64[np.ndarray, " lists"]
    """From 0 to 1, 1 excluded: where a positive comes among those of its own score."""
    num_queries: int

    def __len__(self) -> int:
        """How many lists there are."""
        return len(self.query)

    @property
    def is_positive(self) -> np.ndarray:
        """bool [candidates]"""
        mask = np.zeros(len(self.triples), bool)
        mask[self.starts[:-1]] = True
        return mask

    @property
    def list_of(self) -> np.ndarray:
        """int64 [candidates]: the list that each candidate is in."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def usual_sides(data: DataHandler) -> Sides:
    """The second argument alone where constants are of several domains, as for countries; else both."""
    return "tail" if len(data.domains) > 1 else "both"


def make_candidates(
    queries: Int32[np.ndarray, "queries atom"],
    known: Int32[np.ndarray, "known atom"],
    num_constants: int,
    *,
    sides: Sides = "both",
    corruptions: int | None = 100,
    domains: Int32[np.ndarray, " constants_and_one"] | None = None,
    seed: int = 0,
) -> CandidateLists:
    """For each query and side: the query, and that many corruptions of it; None takes all there are.

    A corruption replaces the argument by another constant of its domain, gives no known triple, and is drawn
    without replacement; where fewer are left, all of them are taken. What is drawn follows from the seed, the
    query and the side, so other queries do not matter.
    """
    if sides not in ("head", "tail", "both"):
        raise ValueError(f"sides must be head, tail or both, got {sides!r}")
    if corruptions is not None and corruptions < 1:
        raise ValueError(f"corruptions must be at least 1, or None for all, got {corruptions}")
    if domains is None:
        domains = np.zeros(num_constants + 1, np.int32)
    members = {
        int(domain): 1 + np.flatnonzero(domains[1:] == domain).astype(np.int32) for domain in set(domains[1:])
    }
    numbers = [0, 1] if sides == "both" else [SIDES.index(sides)]
    true = {side: KnownArguments(known, side + 1) for side in numbers}
    ranges = {side: arguments.ranges(queries) for side, arguments in true.items()}
    lists: list[np.ndarray] = []
    places = [(query, side) for query in range(len(queries)) for side in numbers]
    draws = np.empty(len(places))
    for place, (query, side) in enumerate(places):
        triple = queries[query]
        rng = _generator(seed, triple, side)
        draws[place] = rng.random()
        among = members[int(domains[triple[1 + side]])]
        taken = np.zeros(num_constants + 1, bool)
        begin, count = (part[query] for part in ranges[side])
        taken[true[side].arguments[begin : begin + count]] = True
        taken[triple[1 + side]] = True
        free = among[~taken[among]]
        if corruptions is not None and len(free) > corruptions:
            free = np.sort(rng.choice(free, corruptions, replace=False))
        rows = np.repeat(triple[None], 1 + len(free), axis=0)
        rows[1:, 1 + side] = free
        lists.append(rows)
    lengths = np.array([len(rows) for rows in lists], np.int64)
    return CandidateLists(
        triples=np.concatenate([np.zeros((0, 3), np.int32), *lists]),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        query=np.array([query for query, _ in places], np.int64),
        side=np.array([side for _, side in places], np.int64),
        tie_draw=draws,
        num_queries=len(queries),
    )


def _generator(seed: int, triple: np.ndarray, side: int) -> np.random.Generator:
    words = hashlib.blake2b(f"{seed}/{triple.tolist()}/{side}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(np.frombuffer(words, "<u4").tolist()))


Ties = Literal["random", "mean", "expected"]
HITS = (1, 3, 10)


@dataclasses.dataclass(frozen=True)
class RankMetrics:
    """Of some queries. A standard error is of the mean over other queries of the kind; None for fewer than 2.

    A query that is ranked on both sides counts once, with the mean of the two.
    """

    queries: int
    lists: int
    """Queries times sides."""
    mrr: float
    mrr_se: float | None
    hits: dict[int, float]
    """By k: the share of lists whose positive is among the first k."""
    hits_se: dict[int, float | None]
    proved: float | None
    """Share of the positives that were proved; None where the scorer proves nothing."""
    proved_corruptions: float | None
    """Share of the corruptions that were proved; None also where there are none."""

    def as_record(self) -> dict[str, Any]:
        """As JSON has it."""
        record: dict[str, Any] = {
            "queries": self.queries,
            "lists": self.lists,
            "mrr": self.mrr,
            "mrr_se": self.mrr_se,
        }
        for k in HITS:
            record[f"hits@{k}"], record[f"hits@{k}_se"] = self.hits[k], self.hits_se[k]
        return {**record, "proved": self.proved, "proved_corruptions": self.proved_corruptions}

    def describe(self) -> str:
        """One line."""
        parts = [f"MRR {_with_error(self.mrr, self.mrr_se)}"]
        parts += [f"Hits@{k} {_with_error(self.hits[k], self.hits_se[k])}" for k in HITS]
        if self.proved is not None:
            proved = f"proved {100 * self.proved:.1f} %"
            if self.proved_corruptions is not None:
                proved += f" (corruptions {100 * self.proved_corruptions:.2f} %)"
            parts.append(proved)
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class RankCounts:
    """Of each list's positive: how many candidates score more, and how many others score the same."""

    above: Int64[np.ndarray, " lists"]
    level: Int64[np.ndarray, " lists"]


def ranks_of(candidates: CandidateLists, score: Float64[np.ndarray, " candidates"]) -> RankCounts:
    """Where the positives stand; greater scores are better, and infinite ones are allowed."""
    if np.isnan(score).any():
        row = int(np.flatnonzero(np.isnan(score))[0])
        raise ValueError(f"the score of candidate {candidates.triples[row].tolist()} is not a number")
    own = np.repeat(score[candidates.starts[:-1]], np.diff(candidates.starts))
    return RankCounts(
        _sums(score > own, candidates.starts),
        # A positive is level with itself, which does not count.
        _sums(score == own, candidates.starts) - 1,
    )


def list_metrics(
    ranks: RankCounts, ties: Ties, draw: Float64[np.ndarray, " lists"]
) -> Float64[np.ndarray, "lists metrics"]:
    """The reciprocal rank and the hits of each list, in the order of `HITS`.

    Ties: `random` puts the positive at a random place among its equals, by `draw`; `mean` takes the mean of
    the best and the worst place for its rank; `expected` is what `random` comes to on average, exactly.
    """
    above, level = ranks.above, ranks.level
    if ties == "expected":
        harmonic = np.concatenate(
            [[0.0], np.cumsum(1 / np.arange(1, 2 + int((above + level).max(initial=0))))]
        )
        reciprocal = (harmonic[above + level + 1] - harmonic[above]) / (level + 1)
        hits = [np.clip(k - above, 0, level + 1) / (level + 1) for k in HITS]
        return np.stack([reciprocal, *hits], axis=1)
    if ties == "random":
        rank = 1 + above + np.floor(draw * (level + 1))
    elif ties == "mean":
        rank = 1 + above + level / 2
    else:
        raise ValueError(f"ties must be random, mean or expected, got {ties!r}")
    return np.stack([1 / rank, *((rank <= k).astype(np.float64) for k in HITS)], axis=1)


def summarize(
    candidates: CandidateLists,
    by_list: Float64[np.ndarray, "lists metrics"],
    proved: Bool[np.ndarray, " candidates"] | None,
    chosen: Bool[np.ndarray, " lists"],
) -> RankMetrics:
    """Of the chosen lists, of which there is at least one."""
    query = candidates.query[chosen]
    numbers, place = np.unique(query, return_inverse=True)
    count = np.bincount(place)
    by_query = np.stack([np.bincount(place, weights=column) / count for column in by_list[chosen].T], axis=1)
    errors: list[float | None] = [None] * by_query.shape[1]
    if len(numbers) > 1:
        errors = (by_query.std(axis=0, ddof=1) / np.sqrt(len(numbers))).tolist()
    means = by_query.mean(axis=0).tolist()
    positive_share = corruption_share = None
    if proved is not None:
        here, first = chosen[candidates.list_of], candidates.is_positive
        positive_share = float(proved[here & first].mean())
        if (here & ~first).any():
            corruption_share = float(proved[here & ~first].mean())
    return RankMetrics(
        queries=len(numbers),
        lists=int(chosen.sum()),
        mrr=means[0],
        mrr_se=errors[0],
        hits=dict(zip(HITS, means[1:], strict=True)),
        hits_se=dict(zip(HITS, errors[1:], strict=True)),
        proved=positive_share,
        proved_corruptions=corruption_share,
    )


def _sums(flags: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """How many are set in each list; no list is empty."""
    cumulated = np.concatenate([[0], np.cumsum(flags)])
    return (cumulated[starts[1:]] - cumulated[starts[:-1]]).astype(np.int64)


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
