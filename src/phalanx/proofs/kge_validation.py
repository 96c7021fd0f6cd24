"""How good an embedding is, for choosing among epochs, and what its scores mean as probabilities.

The figures to report, with standard errors and for policies too, come from `ranking`.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32

from phalanx.proofs.kge_scorer import KGE, TripleScorer

_CELLS = 1 << 24
"""Scores computed at once, at most."""


class Validation(NamedTuple):
    """Mean reciprocal ranks of true triples among those that are not known, tails and heads alike."""

    mrr: float
    """Against all entities."""
    mrr_100: float
    """Against 100 random ones: the mean over all draws, not one of them."""


def validate(
    kge: TripleScorer,
    queries: Int32[np.ndarray, "queries 3"],
    known: Int32[np.ndarray, "known 3"],
    max_queries: int | None = None,
) -> Validation:
    """Rank the tail and the head of some queries (evenly taken, if there are more than `max_queries`).

    Of candidates with the same score half count as better.
    """
    if len(queries) == 0:
        raise ValueError("there are no queries to validate an embedding by")
    if max_queries is not None and len(queries) > max_queries:
        queries = queries[np.linspace(0, len(queries) - 1, max_queries).astype(int)]
    rows = max(1, min(len(queries), _CELLS // kge.num_entities))
    better, others = [], []
    for side in (2, 1):
        filtered = _Known(known, side, kge.num_entities)
        for start in range(0, len(queries), rows):
            chunk = queries[start : start + rows]
            # Padded, so that the last chunk is not compiled on its own.
            asked = np.resize(chunk, (rows, 3))
            score = kge.score_tails if side == 2 else kge.score_heads
            scores = np.asarray(score(asked[:, 0], asked[:, 3 - side]))[: len(chunk)]
            free = ~filtered.rows(chunk)
            own = np.take_along_axis(scores, chunk[:, side, None] - 1, axis=1)
            better.append(((scores > own) & free).sum(1) + ((scores == own) & free).sum(1) / 2)
            others.append(free.sum(1))
    above, candidates = np.concatenate(better), np.concatenate(others)
    return Validation(
        float(np.mean(1 / (1 + above))), float(np.mean(expected_reciprocal_rank(above, candidates, 100)))
    )


def expected_reciprocal_rank(
    better: Float[np.ndarray, " n"], candidates: Int32[np.ndarray, " n"] | np.ndarray, drawn: int
) -> Float[np.ndarray, " n"]:
    """The mean of 1 / rank over all ways to draw some candidates, of which so many are better.

    >>> expected_reciprocal_rank(np.array([1.0]), np.array([2]), 1)  # rank 1 or 2, as likely
    array([0.75])
    """
    drawn_of = np.minimum(drawn, candidates)
    places = np.arange(drawn + 1)
    # The chance that none of drawn + 1 is better, among the candidates and one more.
    factors = np.clip((candidates - better)[:, None] - places, 0, None) / np.maximum(
        candidates[:, None] + 1 - places, 1
    )
    none = np.prod(np.where(places <= drawn_of[:, None], factors, 1), axis=1)
    return (candidates + 1) / ((drawn_of + 1) * (better + 1)) * (1 - none)


def calibrated(
    kge: KGE,
    triples: Int32[np.ndarray, "triples 3"],
    known: Int32[np.ndarray, "known 3"],
    seed: int = 0,
) -> KGE:
    """The embedding with the slope and offset that tell these true triples best from random other ones.

    As many of either, so a probability of one half means as likely true as made up (Platt, 1999).
    """
    wrong = _corruptions(triples, known, kge.num_entities, np.random.default_rng(seed))
    scores = np.asarray(kge.score(np.concatenate([triples, wrong])), np.float64)
    positive = np.arange(len(scores)) < len(triples)
    slope, offset = _logistic_fit(scores, positive)
    return eqx.tree_at(lambda k: (k.slope, k.offset), kge, (jnp.float32(slope), jnp.float32(offset)))


def _logistic_fit(scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> tuple[float, float]:
    """Newton's method on standardised scores; the slope stays positive, so that the order stays."""
    mean, spread = float(scores.mean()), float(scores.std()) or 1.0
    values = np.stack([(scores - mean) / spread, np.ones_like(scores)], axis=1)
    # Platt's targets, so that scores that separate perfectly have a finite slope.
    share = np.where(positive, 1 - 1 / (positive.sum() + 2), 1 / ((~positive).sum() + 2))
    weights = np.array([1.0, 0.0])
    for _ in range(50):
        likely = 1 / (1 + np.exp(-values @ weights))
        gradient = values.T @ (likely - share)
        curvature = (values * (likely * (1 - likely))[:, None]).T @ values + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-8:
            break
    slope = max(float(weights[0]), 1e-3) / spread
    return slope, float(weights[1]) - slope * mean


def _corruptions(
    triples: Int32[np.ndarray, "n 3"],
    known: Int32[np.ndarray, "known 3"],
    num_entities: int,
    generator: np.random.Generator,
) -> Int32[np.ndarray, "m 3"]:
    """Each triple with its head or tail replaced; the few that are known to be true are left out."""
    wrong = triples.copy()
    sides = generator.integers(1, 3, len(wrong))
    wrong[np.arange(len(wrong)), sides] = generator.integers(1, num_entities + 1, len(wrong))
    true = np.isin(_codes(wrong, num_entities), _codes(known, num_entities))
    return wrong[~true]


def _codes(triples: Int32[np.ndarray, "n 3"], num_entities: int) -> np.ndarray:
    """One number for each triple."""
    relations, heads, tails = triples.T.astype(np.int64)
    return (relations * (num_entities + 1) + heads) * (num_entities + 1) + tails


class _Known:
    """Which entities are known on one side, by relation and the other side."""

    def __init__(self, known: Int32[np.ndarray, "known 3"], side: int, num_entities: int) -> None:
        self.side, self.num_entities = side, num_entities
        cells = self._cells(known)
        order = np.argsort(cells, kind="stable")
        self.cells, self.entities = cells[order], known[order, side] - 1

    def rows(self, queries: Int32[np.ndarray, "n 3"]) -> Bool[np.ndarray, "n entities"]:
        """True for known entities, and for the query's own."""
        cells = self._cells(queries)
        begin, end = (np.searchsorted(self.cells, cells, side) for side in ("left", "right"))
        found = np.zeros((len(queries), self.num_entities), bool)
        row = np.repeat(np.arange(len(queries)), end - begin)
        within = np.arange(len(row)) - np.repeat(np.cumsum(end - begin) - (end - begin), end - begin)
        found[row, self.entities[begin[row] + within]] = True
        found[np.arange(len(queries)), queries[:, self.side] - 1] = True
        return found

    def _cells(self, triples: Int32[np.ndarray, "n 3"]) -> np.ndarray:
        return triples[:, 0].astype(np.int64) * (self.num_entities + 1) + triples[:, 3 - self.side]
