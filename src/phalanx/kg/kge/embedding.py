"""An embedding as others use it: scores and probabilities of atoms, its validation and its calibration.

The models themselves are in `models`; reading and writing them is in `files`.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.kg.joins import KnownArguments, expanded
from phalanx.kg.kge.config import KGEConfig
from phalanx.kg.kge.models import EmbeddingModel, create_model

Indices = Int32[Array, " n"] | Int32[np.ndarray, " n"]
Triples = Int32[Array, "n 3"] | Int32[np.ndarray, "n 3"]


@runtime_checkable
class TripleScorer(Protocol):
    """Whatever scores (relation, head, tail) triples; a higher score is truer."""

    @property
    def num_entities(self) -> int: ...
    def score(self, triples: Triples) -> Float[Array, " n"]: ...
    def score_tails(self, relations: Indices, heads: Indices) -> Float[Array, "n entities"]: ...
    def score_heads(self, relations: Indices, tails: Indices) -> Float[Array, "n entities"]: ...


class KGE(eqx.Module):
    """A knowledge-graph embedding: a higher score is truer.

    Triples are (relation, head, tail) with predicates 1..P and constants 1..C as the `IndexManager` numbers
    them; column c - 1 of a table of scores is constant c. With reciprocal relations a score is the mean of
    both ways to read the triple, whichever method is asked.
    """

    model: EmbeddingModel
    slope: Float[Array, ""]
    offset: Float[Array, ""]
    """A score is `sigmoid(slope * score + offset)` likely; see `calibrated`."""
    num_relations: int = eqx.field(static=True)
    """P: the real predicates."""
    reciprocal: bool = eqx.field(static=True)

    @classmethod
    def create(
        cls, config: KGEConfig, num_relations: int, num_entities: int, generator: np.random.Generator
    ) -> "KGE":
        """An untrained embedding for P predicates and C constants."""
        rows = num_relations * 2 if config.reciprocal else num_relations
        model = create_model(config, num_entities, rows, generator)
        return cls(model, jnp.float32(1.0), jnp.float32(0.0), num_relations, config.reciprocal)

    @property
    def num_entities(self) -> int:
        """C: the constants."""
        return self.model.entities.shape[0]

    @jax.jit
    def score(self, triples: Triples) -> Float[Array, " n"]:
        """The score of each triple."""
        relations, heads, tails = jnp.asarray(triples).T - 1
        model = self.model
        forth = model.compare_rows(model.tail_queries(relations, heads), model.entities[tails])
        if not self.reciprocal:
            return forth
        inverse = relations + self.num_relations
        back = model.compare_rows(model.tail_queries(inverse, tails), model.entities[heads])
        return (forth + back) / 2

    @jax.jit
    def score_tails(self, relations: Indices, heads: Indices) -> Float[Array, "n entities"]:
        """The score of (relation, head, c) for every constant c."""
        relations, heads, model = jnp.asarray(relations) - 1, jnp.asarray(heads) - 1, self.model
        forth = model.compare(model.tail_queries(relations, heads), model.entities)
        if not self.reciprocal:
            return forth
        back = model.compare(model.head_queries(relations + self.num_relations, heads), model.entities)
        return (forth + back) / 2

    @jax.jit
    def score_heads(self, relations: Indices, tails: Indices) -> Float[Array, "n entities"]:
        """The score of (relation, c, tail) for every constant c."""
        relations, tails, model = jnp.asarray(relations) - 1, jnp.asarray(tails) - 1, self.model
        forth = model.compare(model.head_queries(relations, tails), model.entities)
        if not self.reciprocal:
            return forth
        back = model.compare(model.tail_queries(relations + self.num_relations, tails), model.entities)
        return (forth + back) / 2

    def probability(self, triples: Triples) -> Float[Array, " n"]:
        """How likely each triple is true, in [0, 1]; the best of them are all 1 to the last digit."""
        return jnp.exp(self.log_probability(triples))

    def log_probability(self, triples: Triples) -> Float[Array, " n"]:
        """The logarithm of the probability, which tells very likely triples apart where that cannot."""
        return self.log_probability_of(self.score(triples))

    def log_probability_of(self, scores: Float[Array, "*any"]) -> Float[Array, "*any"]:
        """The logarithm of the probability of what has these scores."""
        return jax.nn.log_sigmoid(self.slope * scores + self.offset)


def is_scored(kge: KGE, atoms: Int32[Array, "*any 3"]) -> Bool[Array, "*any"]:
    """Which atoms of a state have a score: ground ones, of a real predicate or its `_kge` twin."""
    predicates, terms = _real_predicates(kge, atoms[..., 0]), atoms[..., 1:]
    ground = jnp.all((terms >= 1) & (terms <= kge.num_entities), axis=-1)
    return ground & (predicates >= 1) & (predicates <= kge.num_relations)


def kge_scores(kge: KGE, atoms: Int32[Array, "*any 3"], otherwise: float = 0.0) -> Float[Array, "*any"]:
    """The scores of atoms as states hold them, `_kge` twins as their predicates.

    Padding, `True`, `False`, `End` and atoms with variables have none and get `otherwise`; `is_scored` tells
    which those are.
    """
    scored = is_scored(kge, atoms)
    real = jnp.stack([_real_predicates(kge, atoms[..., 0]), atoms[..., 1], atoms[..., 2]], axis=-1)
    triples = jnp.where(scored[..., None], real, 1).reshape(-1, 3)
    return jnp.where(scored, kge.score(triples).reshape(scored.shape), otherwise)


def _real_predicates(kge: KGE, predicates: Int32[Array, "*any"]) -> Int32[Array, "*any"]:
    """Twins as the predicates they belong to: they begin behind the P real and the three special ones."""
    offset = kge.num_relations + 3
    return jnp.where(predicates > offset, predicates - offset, predicates)


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
        true = KnownArguments(known, side)
        for start in range(0, len(queries), rows):
            chunk = queries[start : start + rows]
            # Padded, so that the last chunk is not compiled on its own.
            asked = np.resize(chunk, (rows, 3))
            score = kge.score_tails if side == 2 else kge.score_heads
            scores = np.asarray(score(asked[:, 0], asked[:, 3 - side]))[: len(chunk)]
            free = ~_known_mask(true, side, chunk, kge.num_entities)
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


def calibrate(
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
    """Newton's method on standardized scores; the slope stays positive, so that the order stays."""
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


def _known_mask(
    known: KnownArguments, side: int, queries: Int32[np.ndarray, "n 3"], num_entities: int
) -> Bool[np.ndarray, "n entities"]:
    """True for known entities, and for the query's own."""
    rows, places = expanded(*known.ranges(queries))
    mask = np.zeros((len(queries), num_entities), bool)
    mask[rows, known.arguments[places] - 1] = True
    mask[np.arange(len(queries)), queries[:, side] - 1] = True
    return mask
