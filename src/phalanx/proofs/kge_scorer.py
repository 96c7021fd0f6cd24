"""A trained embedding as others use it: scores of atoms by the numbers of an `IndexManager`.

The models themselves are in `kge_models`; reading and writing them is in `kge_files`.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.proofs.kge_config import KGEConfig
from phalanx.proofs.kge_models import EmbeddingModel, create_model

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
    """A score is `sigmoid(slope * score + offset)` likely; see `kge_validation.calibrated`."""
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
