"""Policy network for proofs, which embeds goals and successors and has an actor and a critic."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.vector import broadcast_unbatched
from phalanx.kg.kge.models import complex_conjugate, complex_product
from phalanx.nn.distributions import MaskedCategorical
from phalanx.nn.layers import Dense
from phalanx.proofs.state import ProofObservation
from phalanx.proofs.vocabulary import ProofVocabulary

AtomEmbedding = Literal["transe", "complex", "rotate", "mlp"]
StatePooling = Literal["mean", "sum", "attention"]
_CHUNK_SIZE = 256
"""Number of successors that are embedded at a time."""


class ProofNetworkConfig(Config):
    """Settings for the policy network for proofs."""

    atom_embedding: AtomEmbedding = "transe"
    """How an atom is embedded from its predicate and terms: like a triple in TransE (`transe`), ComplEx
    (`complex`) or RotatE (`rotate`), or with an `mlp`. Predicates with three arguments need `mlp`."""
    state_pooling: StatePooling = "mean"
    """How the embeddings of a state's goals are combined: `mean`, `sum` or `attention`."""
    hidden_dim: int = Field(default=64, ge=2)
    """Size of all embeddings and hidden layers. It must be even for `complex` and `rotate`."""
    num_layers: int = Field(default=2, ge=1)
    """Number of layers in the actor. The critic has one more layer, whose output is the value."""
    separate_critic: bool = True
    """Give the critic its own embeddings instead of sharing those of the actor."""
    temperature: float | None = Field(default=None, gt=0)
    """Number by which the logits are divided. Defaults to the square root of `hidden_dim`."""

    @model_validator(mode="after")
    def _check_dim(self) -> "ProofNetworkConfig":
        if self.atom_embedding in ("complex", "rotate") and self.hidden_dim % 2:
            raise ValueError(
                f"hidden_dim must be even for atom_embedding={self.atom_embedding}, got {self.hidden_dim}"
            )
        return self


class EmbeddingRows(NamedTuple):
    """Rows of `EmbeddingTables` for the predicates and terms of a batch of atoms.

    The atoms `True`, `False` and `End` have no terms. For these atoms and for padding, `terms` contains row 0
    of the table, whose values have no meaning.
    """

    predicate: Float[Array, "*states atoms predicate_dim"]
    terms: tuple[Float[Array, "*states atoms dim"], ...]
    """One array for the first terms of all atoms, one for the second terms and, if atoms have three terms,
    one for the third terms."""


class EmbeddingTables(eqx.Module):
    """Embedding tables for predicates and for terms (constants and variables). Row 0 is reserved for padding.

    For `rotate`, the embedding of a predicate is a vector of `hidden_dim / 2` rotation angles.

    Args:
        config: Settings of the network. `atom_embedding` determines the scale of the initial parameters.
        vocabulary: Determines the number of predicates and terms.
        key: PRNG key for the initial parameters.
    """

    predicates: Float[Array, "predicates predicate_dim"]
    terms: Float[Array, "terms dim"]

    def __init__(self, config: ProofNetworkConfig, vocabulary: ProofVocabulary, *, key: Key) -> None:
        kind, dim = config.atom_embedding, config.hidden_dim
        # The tables have more rows than there are predicates and constants, because states also contain
        # `_kge` predicates and variables.
        num_predicates, num_terms = vocabulary.num_predicate_embeddings, vocabulary.num_constant_embeddings
        normal = jax.random.normal(key, (num_predicates + num_terms, dim))
        # With this scale, the coordinates of an embedded atom have a standard deviation of about 1.
        scale = {"transe": 3**-0.5, "complex": 0.5**0.5, "rotate": 0.5**0.5, "mlp": 1.0}[kind]
        self.terms = scale * normal[num_predicates:]
        # Angles with this standard deviation are almost uniform on the circle.
        angles = math.pi * normal[:num_predicates, : dim // 2]
        self.predicates = angles if kind == "rotate" else scale * normal[:num_predicates]

    def look_up(self, goals: Int32[Array, "*states atoms atom"]) -> EmbeddingRows:
        """Return the table rows for the predicate and the terms of each atom. Padding is mapped to row 0."""
        terms = (self.terms[goals[..., column]] for column in range(1, goals.shape[-1]))
        return EmbeddingRows(self.predicates[goals[..., 0]], tuple(terms))

    def add_rows(self, goals: Int32[Array, "*states atoms atom"], rows: EmbeddingRows) -> "EmbeddingTables":
        """Return a copy in which vectors are added to the embeddings of the predicates and terms in `goals`.

        Padding is ignored.

        Args:
            goals: The atoms.
            rows: Values to add, in the format that `look_up` returns.
        """
        sizes = [len(self.predicates), *[len(self.terms)] * len(rows.terms)]
        # Padding becomes an index that is out of range and dropped.
        indices = jnp.where(goals > 0, goals, jnp.array(sizes, jnp.int32))
        predicates = self.predicates.at[indices[..., 0]].add(rows.predicate, mode="drop")
        terms = self.terms
        for column, added in enumerate(rows.terms, 1):
            terms = terms.at[indices[..., column]].add(added, mode="drop")
        return eqx.tree_at(lambda tables: (tables.predicates, tables.terms), self, (predicates, terms))


class StateComposer(eqx.Module):
    """Combines the embeddings of a state's predicates and terms into one vector.

    First, each atom is embedded, and then the embeddings of the atoms are pooled. Let predicate, first and
    second be the embeddings of the predicate and of the two terms. The embedding of the atom is

    - `transe`: first + predicate - second;
    - `complex`: first * predicate * conjugate(second), as complex numbers;
    - `rotate`: first, rotated by the angles of the predicate, minus second;
    - `mlp`: a network with two layers, applied to the concatenation of the three vectors. Only `mlp` also
      supports atoms with three terms.

    `True`, `False` and `End` have no terms. Except with `mlp`, they are embedded as their predicate alone.

    Args:
        config: Settings of the network.
        arity: Number of terms in an atom: 2 or 3.
        key: PRNG key for the initial parameters.
    """

    layers: tuple[Dense, ...]
    attention: tuple[Dense, ...]
    atom_embedding: AtomEmbedding = eqx.field(static=True)
    state_pooling: StatePooling = eqx.field(static=True)

    def __init__(self, config: ProofNetworkConfig, arity: int = 2, *, key: Key) -> None:
        dim = config.hidden_dim
        self.atom_embedding, self.state_pooling = config.atom_embedding, config.state_pooling
        if arity > 2 and self.atom_embedding != "mlp":
            raise ValueError(
                f"atom_embedding={self.atom_embedding} supports at most two arguments, but this knowledge "
                "base has a predicate with three; set network.atom_embedding=mlp"
            )
        self.layers, self.attention = (), ()
        if self.atom_embedding == "mlp":
            keys = jax.random.split(jax.random.fold_in(key, 0))
            self.layers = Dense((1 + arity) * dim, dim, key=keys[0]), Dense(dim, dim, key=keys[1])
        if self.state_pooling == "attention":
            keys = jax.random.split(jax.random.fold_in(key, 1))
            self.attention = Dense(dim, 1, key=keys[0]), Dense(dim, dim, key=keys[1])

    def __call__(
        self, rows: EmbeddingRows, goals: Int32[Array, "*states atoms atom"]
    ) -> Float[Array, "*states dim"]:
        """Return one vector per state. The vector of a state without atoms is zero."""
        is_atom = goals[..., 0] > 0
        return self._pool(jnp.where(is_atom[..., None], self._embed_atoms(rows, goals), 0.0), is_atom)

    def _embed_atoms(
        self, rows: EmbeddingRows, goals: Int32[Array, "*states atoms atom"]
    ) -> Float[Array, "*states atoms dim"]:
        zero = jnp.zeros(rows.terms[0].shape[-1])
        one = zero.at[: len(zero) // 2].set(1.0)
        # Values for missing terms, chosen such that the atom is embedded as its predicate.
        neutral = {"complex": (one, one), "rotate": (one, zero)}.get(self.atom_embedding, (zero, zero, zero))
        first, second, *third = (
            jnp.where(goals[..., column, None] > 0, term, neutral[column - 1])
            for column, term in enumerate(rows.terms, 1)
        )
        match self.atom_embedding:
            case "transe":
                return first + rows.predicate - second
            case "complex":
                return complex_product(complex_product(first, rows.predicate), complex_conjugate(second))
            case "rotate":
                rotation = jnp.concatenate([jnp.cos(rows.predicate), jnp.sin(rows.predicate)], axis=-1)
                return complex_product(first, rotation) - second
            case "mlp":
                inner, outer = self.layers
                parts = [rows.predicate, first, second, *third]
                return outer(jax.nn.gelu(inner(jnp.concatenate(parts, axis=-1))))

    def _pool(
        self, atoms: Float[Array, "*states atoms dim"], is_atom: Bool[Array, "*states atoms"]
    ) -> Float[Array, "*states dim"]:
        match self.state_pooling:
            case "sum":
                return jnp.sum(atoms, axis=-2)
            case "mean":
                count = jnp.maximum(jnp.sum(is_atom, axis=-1), 1).astype(atoms.dtype)
                return jnp.sum(atoms, axis=-2) / count[..., None]
            case "attention":
                scores, values = self.attention
                weights = jax.nn.softmax(jnp.where(is_atom, scores(atoms)[..., 0], -1e30), axis=-1)
                return jnp.sum(jnp.where(is_atom, weights, 0.0)[..., None] * values(atoms), axis=-2)


class StateEncoder(eqx.Module):
    """Embeds states, which are lists of goals, as vectors.

    Args:
        config: Settings of the network.
        vocabulary: Determines the number of predicates and terms.
        key: PRNG key for the initial parameters.
    """

    tables: EmbeddingTables
    composition: StateComposer

    def __init__(self, config: ProofNetworkConfig, vocabulary: ProofVocabulary, *, key: Key) -> None:
        self.tables = EmbeddingTables(config, vocabulary, key=key)
        self.composition = StateComposer(config, vocabulary.arity, key=jax.random.fold_in(key, 0))

    def __call__(self, goals: Int32[Array, "*states atoms atom"]) -> Float[Array, "*states dim"]:
        return self.composition(self.tables.look_up(goals), goals)


def score_successors(
    embedding: StateEncoder,
    target: Float[Array, " dim"],
    successors: Int32[Array, "states atoms atom"],
    count: Int32[Array, ""],
) -> Float[Array, " states"]:
    """Return the inner product of `target` with the embedding of each successor.

    Under `vmap`, the successors of the entire batch are packed without padding and embedded in chunks. The
    gradient is computed in the same way. The cost therefore depends on the number of actual successors and
    not on the amount of padding.

    Args:
        embedding: Embeds states.
        target: Vector whose inner products with the successor embeddings are computed.
        successors: Goals that each action leads to, padded.
        count: Number of actual successors. The scores of all other rows are 0.
    """
    arrays, structure = eqx.partition(embedding, eqx.is_array)
    score_batch = _batch_scorer(structure)

    @custom_vmap
    def score_row(arrays: PyTree, target: Array, successors: Array, count: Array) -> Array:
        return score_batch(arrays, target[None], successors[None], count[None])[0]

    @score_row.def_vmap
    def _(
        size: int, batched: Any, arrays: PyTree, target: Array, successors: Array, count: Array
    ) -> tuple[Array, bool]:
        rows = broadcast_unbatched((target, successors, count), tuple(batched[1:]), size)
        if not any(jax.tree.leaves(batched[0])):
            return score_batch(arrays, *rows), True
        # Each row has its own network.
        single_rows = [row[:, None] for row in rows]
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched[0])
        return jax.vmap(score_batch, (axes, 0, 0, 0))(arrays, *single_rows)[:, 0], True

    return score_row(arrays, target, successors, count)


def _batch_scorer(structure: Any) -> Callable[[PyTree, Array, Array, Array], Array]:
    """Return a batched, differentiable version of `score_successors`.

    The returned function takes the arrays of the embedding and a batch of targets, successors and counts.

    Args:
        structure: The embedding without its arrays.
    """

    def forward(arrays: PyTree, targets: Array, successors: Array, counts: Array) -> Array:
        embedding = eqx.combine(arrays, structure)

        def score_chunk(start: Array, scores: Array) -> Array:
            row, column, is_real = _chunk_indices(start, counts)
            goals = successors.at[row, column].get(mode="clip")
            found = _score(embedding.composition, embedding.tables.look_up(goals), targets[row], goals)
            # Indices after the last successor are out of range and dropped.
            return scores.at[jnp.where(is_real, row, len(counts)), column].set(found, mode="drop")

        return _loop_over_chunks(counts, score_chunk, jnp.zeros(successors.shape[:2], targets.dtype))

    def backward(
        saved: tuple[PyTree, Array, Array, Array], cotangents: Array
    ) -> tuple[PyTree, Array, None, None]:
        arrays, targets, successors, counts = saved
        embedding = eqx.combine(arrays, structure)
        tables, composition = embedding.tables, embedding.composition
        weights, static = eqx.partition(composition, eqx.is_array)

        def add_chunk(
            start: Array, gradients: tuple[EmbeddingTables, PyTree, Array]
        ) -> tuple[EmbeddingTables, PyTree, Array]:
            row, column, is_real = _chunk_indices(start, counts)
            goals = jnp.where(is_real[:, None, None], successors.at[row, column].get(mode="clip"), 0)

            def score(weights: PyTree, rows: EmbeddingRows, targets: Array) -> Array:
                return _score(eqx.combine(weights, static), rows, targets, goals)

            cotangent = jnp.where(is_real, cotangents[row, column], 0.0)
            _, pull_back = jax.vjp(score, weights, tables.look_up(goals), targets[row])
            of_weights, of_rows, of_targets = pull_back(cotangent)
            table_gradients, weight_gradients, target_gradients = gradients
            return (
                table_gradients.add_rows(goals, of_rows),
                jax.tree.map(jnp.add, weight_gradients, of_weights),
                target_gradients.at[row].add(of_targets),
            )

        zeros = jax.tree.map(jnp.zeros_like, (tables, weights, targets))
        table_gradients, weight_gradients, target_gradients = _loop_over_chunks(counts, add_chunk, zeros)
        gradients = eqx.tree_at(
            lambda e: (e.tables, e.composition),
            arrays,
            (table_gradients, weight_gradients),
            is_leaf=lambda _: False,
        )
        return gradients, target_gradients, None, None

    score_batch = jax.custom_vjp(forward)
    score_batch.defvjp(lambda *inputs: (forward(*inputs), inputs), backward)
    return score_batch


def _score(
    composition: StateComposer,
    rows: EmbeddingRows,
    targets: Float[Array, "chunk dim"],
    goals: Int32[Array, "chunk atoms atom"],
) -> Float[Array, " chunk"]:
    return jnp.sum(composition(rows, goals) * targets, axis=-1)


def _chunk_indices(start: Int32[Array, ""], counts: Int32[Array, " batch"]) -> tuple[Array, Array, Array]:
    """Return the indices of the successors of one chunk of the packed batch.

    Args:
        start: Index of the chunk's first successor, counted over the entire batch without padding.
        counts: Number of successors of each batch row.

    Returns:
        The batch row and the action of each successor, and a mask, which is False after the last successor.
    """
    ends = jnp.cumsum(counts)
    number = start + jnp.arange(_CHUNK_SIZE, dtype=jnp.int32)
    row = jnp.searchsorted(ends, number, side="right").astype(jnp.int32)
    is_real = row < len(counts)
    row = jnp.minimum(row, len(counts) - 1)
    return row, number - (ends - counts)[row], is_real


def _loop_over_chunks(
    counts: Int32[Array, " batch"], process_chunk: Callable[[Array, Any], Any], initial: Any
) -> Any:
    total = jnp.sum(counts)

    def step(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        return carry[0] + _CHUNK_SIZE, process_chunk(*carry)

    return jax.lax.while_loop(lambda carry: carry[0] < total, step, (jnp.int32(0), initial))[1]


class MLP(eqx.Module):
    """Multilayer perceptron, which consists of dense layers with ReLU between them.

    Args:
        sizes: Size of the input, followed by the output size of each layer.
        key: PRNG key for the initial parameters.
        last_scale: Scale of the initial weights of the last layer.
    """

    layers: tuple[Dense, ...]

    def __init__(self, sizes: tuple[int, ...], *, key: Key, last_scale: float = 1.0) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        # ReLU halves the variance, and this factor compensates for it (He et al., 2015).
        scales = [math.sqrt(2)] * (len(keys) - 1) + [last_scale]
        self.layers = tuple(
            Dense(inputs, outputs, key=layer_key, scale=scale)
            for inputs, outputs, layer_key, scale in zip(sizes[:-1], sizes[1:], keys, scales, strict=True)
        )

    def __call__(self, x: Float[Array, "*axes inputs"]) -> Float[Array, "*axes outputs"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


class ProofNetwork(eqx.Module):
    """Policy network for proofs.

    The actor maps the embedding of the state to a target vector. The logit of an action is the inner product
    of this vector with the embedding of the successor. The critic estimates the value of the state. Only the
    goals, successors and action mask of an observation are used.

    Args:
        config: Settings of the network.
        vocabulary: Determines the number of predicates and terms.
        key: PRNG key for the initial parameters.
    """

    embedding: StateEncoder
    actor: MLP
    critic_embedding: StateEncoder | None
    """State embedding of the critic, or None if the critic uses that of the actor."""
    critic: MLP
    temperature: float = eqx.field(static=True)

    def __init__(self, config: ProofNetworkConfig, vocabulary: ProofVocabulary, *, key: Key) -> None:
        keys = jax.random.split(key, 4)
        dim, num_layers = config.hidden_dim, config.num_layers
        self.embedding = StateEncoder(config, vocabulary, key=keys[0])
        self.actor = MLP((dim,) * (num_layers + 1), key=keys[1])
        separate = config.separate_critic
        self.critic_embedding = StateEncoder(config, vocabulary, key=keys[2]) if separate else None
        self.critic = MLP((*(dim,) * (num_layers + 1), 1), key=keys[3], last_scale=0.1)
        self.temperature = math.sqrt(dim) if config.temperature is None else config.temperature

    def __call__(self, observation: ProofObservation) -> tuple[MaskedCategorical, Float[Array, ""]]:
        logits, value = self.logits(observation)
        return MaskedCategorical(logits, observation.action_mask), value

    def logits(self, observation: ProofObservation) -> tuple[Float[Array, " states"], Float[Array, ""]]:
        """Return the logits of all actions and the value, for a single observation.

        The logits of illegal actions are 0. The action distribution masks these actions.
        """
        goals = observation.goals
        count = jnp.sum(observation.action_mask, dtype=jnp.int32)
        target = self._target(self.embed_states(goals))
        logits = score_successors(self.embedding, target, observation.successors, count)
        return logits, self.value(goals)

    def embed_states(self, goals: Int32[Array, "*states atoms atom"]) -> Float[Array, "*states dim"]:
        """Return the actor's embedding of each state."""
        return self.embedding(goals)

    def score(
        self, state: Float[Array, " dim"], successors: Float[Array, "states dim"]
    ) -> Float[Array, " states"]:
        """Return the logits of a state's successors.

        Args:
            state: Embedding of the state.
            successors: Embedding of each successor.
        """
        return successors @ self._target(state)

    def value(self, goals: Int32[Array, "atoms atom"]) -> Float[Array, ""]:
        """Return the critic's estimate of the return from a single state."""
        embedding = self.embedding if self.critic_embedding is None else self.critic_embedding
        return self.critic(embedding(goals))[0]

    def _target(self, state: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return the vector whose inner products with the successor embeddings are the logits."""
        return self.actor(state) / self.temperature
