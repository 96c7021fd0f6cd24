"""Embedding models: TransE, DistMult, ComplEx, RotatE and TuckER, and their settings.

Each model maps the relation and the given entity of a query to a query vector. The score of an answer is
computed from the query vector and the embedding of the answer. The scores of all entities are usually
computed with one matrix product.
"""

import abc
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, PRNGKeyArray
from pydantic import Field, model_validator

from phalanx.config import Config

ModelName = Literal["transe", "distmult", "complex", "rotate", "tucker"]
DISTANCE_MODELS = ("transe", "rotate")
"""Models whose score is a margin minus a distance. The score of all other models is an inner product."""

_IDENTITY_NOISE = 0.03
"""Scale of the random deviation from the identity when relation embeddings are initialized; see
`KGEModelConfig.identity_init_dim_fraction`."""
_EPSILON = 1e-9
"""Added to squared distances, so that their square root is differentiable where two points coincide."""

Ids = Int32[Array, " n"]
Queries = Float[Array, "n dim"]


class KGEModelConfig(Config):
    """Settings for a knowledge-graph embedding model."""

    name: ModelName = "complex"
    """Embedding model: TransE, DistMult, ComplEx, RotatE or TuckER."""
    embedding_dim: int = Field(default=128, ge=2)
    """Size of an entity embedding, counted in real numbers. It must be even for ComplEx and RotatE, where
    each complex coordinate takes two of them."""
    relation_dim: int = Field(default=32, ge=1)
    """Dimension of the relation embeddings in TuckER. Other models ignore this setting."""
    reciprocal: bool = True
    """Give each relation a second embedding for its inverse. The score of a triple (r, h, t) is then the mean
    of two scores: that of tail t for (r, h, ?) and that of tail h for (inverse of r, t, ?)."""
    norm: Literal[1, 2] = 2
    """Norm of the distance in TransE and RotatE: 1 (Manhattan) or 2 (Euclidean). The Euclidean norm is
    computed with a matrix product and is several times faster."""
    margin: float = Field(default=6.0, gt=0)
    """Margin of TransE and RotatE. The score of a triple is the margin minus the distance."""
    init_scale_factor: float = Field(default=1.0, gt=0)
    """Factor by which the initial entity embeddings are multiplied (in TransE, also the initial relation
    embeddings). With a smaller factor, training overwrites the random initial values sooner."""
    identity_init_dim_fraction: float = Field(default=0.0, ge=0, le=1)
    """Fraction of coordinates on which every relation is initialized close to the identity (DistMult, ComplEx
    and RotatE only). On these coordinates, entities that are related in any way become similar, which helps
    in large sparse graphs. The other coordinates distinguish the relations."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability for the coordinates of entity and query vectors during training (DistMult, ComplEx
    and TuckER only)."""

    @model_validator(mode="after")
    def _check_combination(self) -> "KGEModelConfig":
        name, dim = self.name, self.embedding_dim
        if name in ("complex", "rotate") and dim % 2:
            raise ValueError(f"embedding_dim must be even for {name}, which uses complex numbers, got {dim}")
        if self.dropout and name in DISTANCE_MODELS:
            reason = "because it would only increase distances"
            raise ValueError(f"dropout must be 0 for {name}, {reason}, got {self.dropout}")
        if self.identity_init_dim_fraction and name in ("transe", "tucker"):
            hint = "(it applies to distmult, complex and rotate)"
            raise ValueError(
                f"identity_init_dim_fraction must be 0 for {name} {hint}, "
                f"got {self.identity_init_dim_fraction}"
            )
        return self


class EmbeddingModel(eqx.Module):
    """Base class for embedding models, which consist of embedding tables and a scoring function.

    A higher score means that a triple is more likely to be true.
    """

    is_complex: ClassVar[bool] = False
    """Whether the entity embeddings are complex vectors."""
    entities: Float[Array, "entities dim"]
    relations: Float[Array, "relations _"]

    def tail_queries(self, relations: Ids, heads: Ids, key: PRNGKeyArray | None = None) -> Queries:
        """Return the query vector of each query (relation, head, ?). A PRNG key enables dropout."""
        vectors = self._transform(self._drop(self.entities[heads], key, 0), relations, invert=False)
        return self._drop(vectors, key, 1)

    def head_queries(self, relations: Ids, tails: Ids, key: PRNGKeyArray | None = None) -> Queries:
        """Return the query vector of each query (relation, ?, tail). A PRNG key enables dropout."""
        vectors = self._transform(self._drop(self.entities[tails], key, 0), relations, invert=True)
        return self._drop(vectors, key, 1)

    @abc.abstractmethod
    def _transform(self, entities: Queries, relations: Ids, invert: bool) -> Queries:
        """Apply a relation to each entity vector, and return the query vectors.

        Args:
            entities: Vectors of the heads, or of the tails if `invert` is true.
            relations: Id of the relation for each entity vector.
            invert: Compute query vectors for predicting heads from tails.
        """

    def _drop(self, values: Queries, key: PRNGKeyArray | None, number: int) -> Queries:
        """Apply dropout if a PRNG key is given. Calls with the same key must have different `number`s."""
        return values

    @abc.abstractmethod
    def compare(self, queries: Queries, answers: Float[Array, "m dim"]) -> Float[Array, "n m"]:
        """Return the score of every pair of a query vector and an answer vector."""

    @abc.abstractmethod
    def compare_rows(self, queries: Queries, answers: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """Return one score per row, for the query vector and the answer vector in this row."""

    def magnitudes(self, relations: Ids, heads: Ids, tails: Ids) -> tuple[Float[Array, "n _"], ...]:
        """Return the absolute values of the embeddings of a batch of triples, for regularization.

        The result contains one array for the heads, one for the relations and one for the tails. Models with
        complex numbers return the moduli. RotatE returns no array for relations.
        """
        rows = self.entities[heads], self.relations[relations], self.entities[tails]
        return tuple(map(self._moduli, rows))

    def _moduli(self, values: Array) -> Array:
        """Return the absolute value of each real or complex coordinate."""
        if not self.is_complex:
            return jnp.abs(values)
        real, imaginary = _split_complex(values)
        return jnp.sqrt(real**2 + imaginary**2 + _EPSILON)


class _ProductModel(EmbeddingModel):
    """Base class for models whose score is the inner product of the query and answer vectors."""

    dropout: float = eqx.field(static=True)

    def compare(self, queries: Queries, answers: Float[Array, "m dim"]) -> Float[Array, "n m"]:
        return queries @ answers.T

    def compare_rows(self, queries: Queries, answers: Float[Array, "n dim"]) -> Float[Array, " n"]:
        return jnp.sum(queries * answers, axis=-1)

    def _drop(self, values: Queries, key: PRNGKeyArray | None, number: int) -> Queries:
        if key is None or self.dropout == 0:
            return values
        kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - self.dropout, values.shape)
        return jnp.where(kept, values / (1 - self.dropout), 0)


class _DistanceModel(EmbeddingModel):
    """Base class for models whose score is the margin minus the distance between query and answer vectors."""

    norm: int = eqx.field(static=True)
    margin: float = eqx.field(static=True)

    def compare(self, queries: Queries, answers: Float[Array, "m dim"]) -> Float[Array, "n m"]:
        if self.norm == 1:
            return self.margin - jnp.sum(self._moduli(queries[:, None] - answers[None]), axis=-1)
        squares = jnp.sum(queries**2, 1)[:, None] + jnp.sum(answers**2, 1) - 2 * (queries @ answers.T)
        return self.margin - jnp.sqrt(jnp.maximum(squares, 0) + _EPSILON)

    def compare_rows(self, queries: Queries, answers: Float[Array, "n dim"]) -> Float[Array, " n"]:
        if self.norm == 1:
            return self.margin - jnp.sum(self._moduli(queries - answers), axis=-1)
        return self.margin - jnp.sqrt(jnp.sum((queries - answers) ** 2, axis=-1) + _EPSILON)


class TransE(_DistanceModel):
    """TransE: a relation is a translation (Bordes et al., 2013).

    The score is margin - |head + relation - tail|.
    """

    def _transform(self, entities: Queries, relations: Ids, invert: bool) -> Queries:
        vectors = self.relations[relations]
        return entities - vectors if invert else entities + vectors


class RotatE(_DistanceModel):
    """RotatE: a relation rotates each complex coordinate (Sun et al., 2019).

    The score is margin - |head * relation - tail|. The table of relations contains the rotation angles in
    radians, one for each complex coordinate.
    """

    is_complex = True

    def _transform(self, entities: Queries, relations: Ids, invert: bool) -> Queries:
        angles = self.relations[relations]
        rotations = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        return complex_product(entities, complex_conjugate(rotations) if invert else rotations)

    def magnitudes(self, relations: Ids, heads: Ids, tails: Ids) -> tuple[Float[Array, "n _"], ...]:
        return self._moduli(self.entities[heads]), self._moduli(self.entities[tails])


class DistMult(_ProductModel):
    """DistMult: a relation scales each coordinate (Yang et al., 2015).

    The score is the sum of head * relation * tail over all coordinates.
    """

    def _transform(self, entities: Queries, relations: Ids, invert: bool) -> Queries:
        return entities * self.relations[relations]


class ComplEx(_ProductModel):
    """ComplEx: embeddings are vectors of complex numbers (Trouillon et al., 2016).

    The score is the real part of the sum of head * relation * conjugate(tail).
    """

    is_complex = True

    def _transform(self, entities: Queries, relations: Ids, invert: bool) -> Queries:
        vectors = self.relations[relations]
        return complex_product(entities, complex_conjugate(vectors) if invert else vectors)


class TuckER(_ProductModel):
    """TuckER: the score is the product of a core tensor and the embeddings of the relation, the head and the
    tail (Balazevic et al., 2019)."""

    core: Float[Array, "relation_dim dim dim"]
    """Core tensor. Multiplied by a relation vector, it gives the matrix of a bilinear form of head and
    tail."""

    def _transform(self, entities: Queries, relations: Ids, invert: bool) -> Queries:
        core = self.core.transpose(0, 2, 1) if invert else self.core
        pairs = self.relations[relations][:, :, None] * entities[:, None, :]
        return pairs.reshape(len(pairs), -1) @ core.reshape(-1, core.shape[-1])


def create_model(
    config: KGEModelConfig, num_entities: int, num_relations: int, generator: np.random.Generator
) -> EmbeddingModel:
    """Create a model with random parameters.

    Args:
        config: The settings.
        num_entities: Number of entities.
        num_relations: Number of relations, including inverse relations if they have their own embeddings.
        generator: Random number generator for the initial parameters.
    """

    def table(scale: float, *shape: int) -> Float[Array, "..."]:
        return jnp.asarray(scale * generator.standard_normal(shape, np.float32))

    dim, norm, margin = config.embedding_dim, config.norm, config.margin
    if config.name in DISTANCE_MODELS:
        # With this scale, two entities are about `margin` apart, so that scores start around 0.
        num_coordinates = dim // 2 if config.name == "rotate" else dim
        scale = margin / (1.5 * num_coordinates if norm == 1 else (2.5 * dim) ** 0.5)
        scale *= config.init_scale_factor
        entities = table(scale, num_entities, dim)
        if config.name == "transe":
            return TransE(entities, table(scale, num_relations, dim), norm=norm, margin=margin)
        angles = generator.uniform(-np.pi, np.pi, (num_relations, num_coordinates))
        angles[:, : round(config.identity_init_dim_fraction * num_coordinates)] *= _IDENTITY_NOISE
        return RotatE(entities, jnp.asarray(angles, jnp.float32), norm=norm, margin=margin)
    entities = table(dim**-0.5 * config.init_scale_factor, num_entities, dim)
    if config.name == "tucker":
        relation_dim = config.relation_dim
        relations = table(relation_dim**-0.5, num_relations, relation_dim)
        core = table(1.0, relation_dim, dim, dim)
        return TuckER(entities=entities, relations=relations, core=core, dropout=config.dropout)
    weights = generator.standard_normal((num_relations, dim))
    num_coordinates, model = (dim // 2, ComplEx) if config.name == "complex" else (dim, DistMult)
    is_identity = np.arange(dim) % num_coordinates < round(
        config.identity_init_dim_fraction * num_coordinates
    )
    # The imaginary part of the complex number 1, which is stored in the second half, is 0.
    one = np.where(np.arange(dim) < num_coordinates, 1.0, 0.0)
    relations = jnp.asarray(np.where(is_identity, one + _IDENTITY_NOISE * weights, weights), jnp.float32)
    return model(entities, relations, dropout=config.dropout)


def _split_complex(values: Array) -> tuple[Array, Array]:
    """Split vectors into their first half, the real parts, and their second half, the imaginary parts."""
    real, imaginary = jnp.split(values, 2, axis=-1)
    return real, imaginary


def complex_product(left: Array, right: Array) -> Array:
    """Multiply complex vectors elementwise. Real parts are stored first, followed by imaginary parts."""
    (a, b), (c, d) = _split_complex(left), _split_complex(right)
    return jnp.concatenate([a * c - b * d, a * d + b * c], axis=-1)


def complex_conjugate(values: Array) -> Array:
    """Conjugate complex vectors. Real parts are stored first, followed by imaginary parts."""
    real, imaginary = _split_complex(values)
    return jnp.concatenate([real, -imaginary], axis=-1)
