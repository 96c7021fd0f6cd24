"""What a ranking comes to: reciprocal ranks and hits, with fair ties and standard errors over queries.

Which candidates are ranked is in `ranking_candidates`; who scores them is up to the caller of `ranking`.
"""

import dataclasses
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64

from phalanx.proofs.ranking_candidates import Candidates

Ties = Literal["random", "mean", "expected"]
HITS = (1, 3, 10)


@dataclasses.dataclass(frozen=True)
class Metrics:
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
class Ranks:
    """Of each list's positive: how many candidates score more, and how many others score the same."""

    above: Int64[np.ndarray, " lists"]
    level: Int64[np.ndarray, " lists"]


def ranks_of(candidates: Candidates, score: Float64[np.ndarray, " candidates"]) -> Ranks:
    """Where the positives stand; greater scores are better, and infinite ones are allowed."""
    if np.isnan(score).any():
        row = int(np.flatnonzero(np.isnan(score))[0])
        raise ValueError(f"the score of candidate {candidates.triples[row].tolist()} is not a number")
    own = np.repeat(score[candidates.starts[:-1]], np.diff(candidates.starts))
    return Ranks(
        _sums(score > own, candidates.starts),
        # A positive is level with itself, which does not count.
        _sums(score == own, candidates.starts) - 1,
    )


def list_metrics(
    ranks: Ranks, ties: Ties, draw: Float64[np.ndarray, " lists"]
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
    candidates: Candidates,
    by_list: Float64[np.ndarray, "lists metrics"],
    proved: Bool[np.ndarray, " candidates"] | None,
    chosen: Bool[np.ndarray, " lists"],
) -> Metrics:
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
    return Metrics(
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
