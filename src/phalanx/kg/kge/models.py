"""TransE, DistMult, ComplEx, RotatE and TuckER: tables of numbers, and how a question meets an answer.

Each turns (relation, entity) into a query that is compared with entities, so that one matrix product scores
all answers. Rows count from 0 here; the numbers of an `IndexManager` are understood in `scoring`, and
learning is in `training`.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from phalanx.core.environment import Key
from phalanx.kg.kge.config import DISTANCES, KGEConfig

_NEARLY = 0.03
"""How far from the identity relations begin on the coordinates of `identity_share`."""
_TINY = 1e-9
"""Keeps the root of a squared distance differentiable where two points coincide."""

Rows = Int32[Array, " n"]
Queries = Float[Array, "n dim"]


class EmbeddingModel(eqx.Module):
    """A table of entities, one of relations, and a comparison; a higher score is truer."""

    entities: eqx.AbstractVar[Float[Array, "entities dim"]]
    relations: eqx.AbstractVar[Float[Array, "relations _"]]

    @abc.abstractmethod
    def tail_queries(self, relations: Rows, heads: Rows, key: Key | None = None) -> Queries:
        """What the tails of (relation, head, ?) should be like; a key is for training, and drops out."""

    @abc.abstractmethod
    def head_queries(self, relations: Rows, tails: Rows, key: Key | None = None) -> Queries:
        """What the heads of (relation, ?, tail) should be like, scored as the tails are."""

    @abc.abstractmethod
    def compare(self, queries: Queries, answers: Float[Array, "m dim"]) -> Float[Array, "n m"]:
        """The score of every query with every answer."""

    @abc.abstractmethod
    def compare_rows(self, queries: Queries, answers: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """The score of every query with the answer in its row."""

    def sizes(self, relations: Rows, heads: Rows, tails: Rows) -> tuple[Float[Array, "n _"], ...]:
        """How large each coordinate of some triples is, for a regularizer."""
        rows = self.entities[heads], self.relations[relations], self.entities[tails]
        return tuple(jnp.abs(row) for row in rows)

    def reordered(
        self, entities: Int[np.ndarray, " e"], relations: Int[np.ndarray, " r"]
    ) -> "EmbeddingModel":
        """The model with the rows of its tables in another order."""
        tables = self.entities[entities], self.relations[relations]
        return eqx.tree_at(lambda model: (model.entities, model.relations), self, tables)


class _Product(EmbeddingModel):
    """Models whose score is the inner product of query and answer."""

    dropout: eqx.AbstractVar[float]

    def compare(self, queries: Queries, answers: Float[Array, "m dim"]) -> Float[Array, "n m"]:
        return queries @ answers.T

    def compare_rows(self, queries: Queries, answers: Float[Array, "n dim"]) -> Float[Array, " n"]:
        return jnp.sum(queries * answers, axis=-1)

    def _dropped(self, values: Queries, key: Key | None, place: int) -> Queries:
        if key is None or self.dropout == 0:
            return values
        kept = jax.random.bernoulli(jax.random.fold_in(key, place), 1 - self.dropout, values.shape)
        return jnp.where(kept, values / (1 - self.dropout), 0)


class _Distance(EmbeddingModel):
    """Models whose score is how much nearer than the margin query and answer are."""

    norm: eqx.AbstractVar[int]
    margin: eqx.AbstractVar[float]

    def compare(self, queries: Queries, answers: Float[Array, "m dim"]) -> Float[Array, "n m"]:
        if self.norm == 1:
            return self.margin - self._sum_of_distances(queries[:, None], answers[None])
        squares = jnp.sum(queries**2, 1)[:, None] + jnp.sum(answers**2, 1) - 2 * (queries @ answers.T)
        return self.margin - jnp.sqrt(jnp.maximum(squares, 0) + _TINY)

    def compare_rows(self, queries: Queries, answers: Float[Array, "n dim"]) -> Float[Array, " n"]:
        if self.norm == 1:
            return self.margin - self._sum_of_distances(queries, answers)
        return self.margin - jnp.sqrt(jnp.sum((queries - answers) ** 2, axis=-1) + _TINY)

    @abc.abstractmethod
    def _sum_of_distances(
        self, queries: Float[Array, "*rows dim"], answers: Float[Array, "*#rows dim"]
    ) -> Float[Array, "*rows"]: ...


class TransE(_Distance):
    """A relation is a way to go: margin - |head + relation - tail| (Bordes and others, 2013)."""

    entities: Float[Array, "entities dim"]
    relations: Float[Array, "relations dim"]
    norm: int = eqx.field(static=True)
    margin: float = eqx.field(static=True)

    def tail_queries(self, relations: Rows, heads: Rows, key: Key | None = None) -> Queries:
        return self.entities[heads] + self.relations[relations]

    def head_queries(self, relations: Rows, tails: Rows, key: Key | None = None) -> Queries:
        return self.entities[tails] - self.relations[relations]

    def _sum_of_distances(self, queries: Array, answers: Array) -> Array:
        return jnp.sum(jnp.abs(queries - answers), axis=-1)


class RotatE(_Distance):
    """A relation turns each complex coordinate by an angle: margin - |head * relation - tail| (Sun, 2019)."""

    entities: Float[Array, "entities dim"]
    relations: Float[Array, "relations half"]
    """Angles."""
    norm: int = eqx.field(static=True)
    margin: float = eqx.field(static=True)

    def tail_queries(self, relations: Rows, heads: Rows, key: Key | None = None) -> Queries:
        return _times(self.entities[heads], self._turns(relations))

    def head_queries(self, relations: Rows, tails: Rows, key: Key | None = None) -> Queries:
        return _times(self.entities[tails], _conjugate(self._turns(relations)))

    def sizes(self, relations: Rows, heads: Rows, tails: Rows) -> tuple[Float[Array, "n _"], ...]:
        return _moduli(self.entities[heads]), _moduli(self.entities[tails])

    def _turns(self, relations: Rows) -> Queries:
        angles = self.relations[relations]
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)

    def _sum_of_distances(self, queries: Array, answers: Array) -> Array:
        return jnp.sum(_moduli(queries - answers), axis=-1)


class DistMult(_Product):
    """A relation weighs coordinates: sum of head * relation * tail (Yang and others, 2015)."""

    entities: Float[Array, "entities dim"]
    relations: Float[Array, "relations dim"]
    dropout: float = eqx.field(static=True)

    def tail_queries(self, relations: Rows, heads: Rows, key: Key | None = None) -> Queries:
        entities = self._dropped(self.entities[heads], key, 0)
        return self._dropped(entities * self.relations[relations], key, 1)

    def head_queries(self, relations: Rows, tails: Rows, key: Key | None = None) -> Queries:
        return self.tail_queries(relations, tails, key)


class ComplEx(_Product):
    """The real part of the sum of head * relation * conjugate tail (Trouillon and others, 2016)."""

    entities: Float[Array, "entities dim"]
    relations: Float[Array, "relations dim"]
    dropout: float = eqx.field(static=True)

    def tail_queries(self, relations: Rows, heads: Rows, key: Key | None = None) -> Queries:
        entities = self._dropped(self.entities[heads], key, 0)
        return self._dropped(_times(entities, self.relations[relations]), key, 1)

    def head_queries(self, relations: Rows, tails: Rows, key: Key | None = None) -> Queries:
        entities = self._dropped(self.entities[tails], key, 0)
        return self._dropped(_times(entities, _conjugate(self.relations[relations])), key, 1)

    def sizes(self, relations: Rows, heads: Rows, tails: Rows) -> tuple[Float[Array, "n _"], ...]:
        rows = self.entities[heads], self.relations[relations], self.entities[tails]
        return tuple(_moduli(row) for row in rows)


class TuckER(_Product):
    """A core that relation, head and tail are multiplied into (Balazevic and others, 2019)."""

    entities: Float[Array, "entities dim"]
    relations: Float[Array, "relations relation_dim"]
    core: Float[Array, "relation_dim dim dim"]
    """From a relation's coordinates to a matrix from heads to tails."""
    dropout: float = eqx.field(static=True)

    def tail_queries(self, relations: Rows, heads: Rows, key: Key | None = None) -> Queries:
        entities = self._dropped(self.entities[heads], key, 0)
        return self._dropped(self._through(entities, relations, self.core), key, 1)

    def head_queries(self, relations: Rows, tails: Rows, key: Key | None = None) -> Queries:
        entities = self._dropped(self.entities[tails], key, 0)
        return self._dropped(self._through(entities, relations, self.core.transpose(0, 2, 1)), key, 1)

    def _through(self, entities: Queries, relations: Rows, core: Array) -> Queries:
        pairs = self.relations[relations][:, :, None] * entities[:, None, :]
        return pairs.reshape(len(pairs), -1) @ core.reshape(-1, core.shape[-1])


def create_model(
    config: KGEConfig, num_entities: int, num_relations: int, generator: np.random.Generator
) -> EmbeddingModel:
    """A model with random tables; `num_relations` counts the rows, those that are read backwards included."""

    def table(spread: float, *shape: int) -> Float[Array, "..."]:
        return jnp.asarray(spread * generator.standard_normal(shape, np.float32))

    dim, norm, margin = config.dim, config.norm, config.margin
    if config.model in DISTANCES:
        # At a scale of 1 two entities are about `margin` apart, and scores begin around 0.
        parts = dim // 2 if config.model == "rotate" else dim
        spread = margin / (1.5 * parts if norm == 1 else (2.5 * dim) ** 0.5)
        entities = table(spread * config.init_scale, num_entities, dim)
        if config.model == "transe":
            return TransE(
                entities, table(spread * config.init_scale, num_relations, dim), norm=norm, margin=margin
            )
        angles = generator.uniform(-np.pi, np.pi, (num_relations, parts))
        angles[:, : round(config.identity_share * parts)] *= _NEARLY
        return RotatE(entities, jnp.asarray(angles, jnp.float32), norm=norm, margin=margin)
    entities = table(dim**-0.5 * config.init_scale, num_entities, dim)
    if config.model == "tucker":
        width = config.relation_dim
        relations, core = table(width**-0.5, num_relations, width), table(1.0, width, dim, dim)
        return TuckER(entities=entities, relations=relations, core=core, dropout=config.dropout)
    weights = generator.standard_normal((num_relations, dim))
    parts, product = (dim // 2, ComplEx) if config.model == "complex" else (dim, DistMult)
    alike = np.arange(dim) % parts < round(config.identity_share * parts)
    # One is a number whose imaginary part, in the second half, is zero.
    one = np.where(np.arange(dim) < parts, 1.0, 0.0)
    relations = jnp.asarray(np.where(alike, one + _NEARLY * weights, weights), jnp.float32)
    return product(entities, relations, dropout=config.dropout)


def _halves(values: Array) -> tuple[Array, Array]:
    """Real and imaginary parts, which a row holds one after the other."""
    real, imaginary = jnp.split(values, 2, axis=-1)
    return real, imaginary


def _times(left: Array, right: Array) -> Array:
    (a, b), (c, d) = _halves(left), _halves(right)
    return jnp.concatenate([a * c - b * d, a * d + b * c], axis=-1)


def _conjugate(values: Array) -> Array:
    real, imaginary = _halves(values)
    return jnp.concatenate([real, -imaginary], axis=-1)


def _moduli(values: Array) -> Array:
    real, imaginary = _halves(values)
    return jnp.sqrt(real**2 + imaginary**2 + _TINY)
