"""Networks for proofs: embeddings of atoms and of goal lists, and the actor and the critic that read them.

What is drawn from the logits is in `phalanx.proofs.evaluation`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.nn.distributions import MaskedCategorical
from phalanx.nn.layers import Dense
from phalanx.proofs.state import ProofObservation
from phalanx.proofs.vocabulary import ProofVocabulary

AtomEmbeddingKind = Literal["transe", "complex", "rotate", "mlp"]
StatePooling = Literal["mean", "sum", "attention"]


class AtomRows(NamedTuple):
    """What the tables hold for some atoms; where there is no term, a row that means none."""

    predicate: Float[Array, "*states atoms rows"]
    first: Float[Array, "*states atoms width"]
    second: Float[Array, "*states atoms width"]
    third: Float[Array, "*states atoms width"] | None = None
    """Where atoms have three terms."""


class Tables(eqx.Module):
    """A row for every predicate and for every constant and variable; row 0, padding, is never read."""

    predicates: Float[Array, "predicates rows"]
    terms: Float[Array, "terms width"]

    def __init__(self, kind: AtomEmbeddingKind, width: int, index: ProofVocabulary, *, key: Key) -> None:
        # By the largest index that a state can hold, `_kge` twins and variables included; a table sized by
        # the number of predicates or of constants has no row for those.
        predicates, terms = index.num_predicate_embeddings, index.num_constant_embeddings
        drawn = jax.random.normal(key, (predicates + terms, width))
        # Atoms come out with numbers of deviation 1 or so.
        deviation = {"transe": 3**-0.5, "complex": 0.5**0.5, "rotate": 0.5**0.5, "mlp": 1.0}[kind]
        self.terms = deviation * drawn[predicates:]
        # Angles that are spread this wide are as good as even.
        angles = math.pi * drawn[:predicates, : width // 2]
        self.predicates = angles if kind == "rotate" else deviation * drawn[:predicates]

    def look_up(self, goals: Int32[Array, "*states atoms atom"]) -> AtomRows:
        """The rows of the atoms' predicates and terms, of padding whatever they are."""
        terms = (self.terms[goals[..., place]] for place in range(1, goals.shape[-1]))
        return AtomRows(self.predicates[goals[..., 0]], *terms)

    def add_rows(self, goals: Int32[Array, "*states atoms atom"], rows: AtomRows) -> "Tables":
        """These tables with something added to the rows that `look_up` reads; padding has none."""
        real = goals > 0
        sizes = [len(self.predicates), *[len(self.terms)] * (goals.shape[-1] - 1)]
        out_of_range = jnp.array(sizes, jnp.int32)
        places = jnp.where(real, goals, out_of_range)
        predicates = self.predicates.at[places[..., 0]].add(rows.predicate, mode="drop")
        terms = self.terms.at[places[..., 1]].add(rows.first, mode="drop")
        terms = terms.at[places[..., 2]].add(rows.second, mode="drop")
        if rows.third is not None:
            terms = terms.at[places[..., 3]].add(rows.third, mode="drop")
        return eqx.tree_at(lambda tables: (tables.predicates, tables.terms), self, (predicates, terms))


class Composition(eqx.Module):
    """What makes one vector of a state's rows: an atom from predicate and terms, the state from its atoms.

    - `transe`: first + predicate - second;
    - `complex`: first * predicate * conj(second), half of the width real parts, half imaginary ones;
    - `rotate`: first turned by the predicate's angles, minus second;
    - `mlp`: two layers on all of them; the only one for atoms of three terms.

    `True`, `False` and `End` have no terms and are their predicate alone.
    """

    layers: tuple[Dense, ...]
    attention: tuple[Dense, ...]
    atoms: AtomEmbeddingKind = eqx.field(static=True)
    states: StatePooling = eqx.field(static=True)

    def __init__(
        self, atoms: AtomEmbeddingKind, states: StatePooling, width: int, arity: int = 2, *, key: Key
    ) -> None:
        if arity > 2 and atoms != "mlp":
            raise ValueError(
                f"atom_embedding={atoms} supports at most two arguments, but this knowledge base has a "
                "predicate with three; set network.atom_embedding=mlp"
            )
        self.atoms, self.states = atoms, states
        self.layers, self.attention = (), ()
        if atoms == "mlp":
            keys = jax.random.split(jax.random.fold_in(key, 0))
            self.layers = Dense((1 + arity) * width, width, key=keys[0]), Dense(width, width, key=keys[1])
        if states == "attention":
            keys = jax.random.split(jax.random.fold_in(key, 1))
            self.attention = Dense(width, 1, key=keys[0]), Dense(width, width, key=keys[1])

    def __call__(
        self, rows: AtomRows, goals: Int32[Array, "*states atoms atom"]
    ) -> Float[Array, "*states width"]:
        """The states' vectors; of a state without atoms, zero."""
        real = goals[..., 0] > 0
        return self._pooled(jnp.where(real[..., None], self._atoms(rows, goals), 0.0), real)

    def _atoms(
        self, rows: AtomRows, goals: Int32[Array, "*states atoms atom"]
    ) -> Float[Array, "*states atoms width"]:
        nothing = jnp.zeros(rows.first.shape[-1])
        one = nothing.at[: len(nothing) // 2].set(1.0)
        # What leaves the predicate alone in place of a term that is not there.
        absent = {"transe": (nothing, nothing), "complex": (one, one), "rotate": (one, nothing)}
        neutral = absent.get(self.atoms, (nothing, nothing))
        first = jnp.where(goals[..., 1, None] > 0, rows.first, neutral[0])
        second = jnp.where(goals[..., 2, None] > 0, rows.second, neutral[1])
        match self.atoms:
            case "transe":
                return first + rows.predicate - second
            case "complex":
                return _product(_product(first, rows.predicate), _conjugate(second))
            case "rotate":
                turn = jnp.concatenate([jnp.cos(rows.predicate), jnp.sin(rows.predicate)], axis=-1)
                return _product(first, turn) - second
            case "mlp":
                inner, outer = self.layers
                parts = [rows.predicate, first, second]
                if rows.third is not None:
                    parts.append(jnp.where(goals[..., 3, None] > 0, rows.third, nothing))
                return outer(jax.nn.gelu(inner(jnp.concatenate(parts, axis=-1))))

    def _pooled(
        self, atoms: Float[Array, "*states atoms width"], real: Bool[Array, "*states atoms"]
    ) -> Float[Array, "*states width"]:
        match self.states:
            case "sum":
                return jnp.sum(atoms, axis=-2)
            case "mean":
                count = jnp.maximum(jnp.sum(real, axis=-1), 1).astype(atoms.dtype)
                return jnp.sum(atoms, axis=-2) / count[..., None]
            case "attention":
                scores, values = self.attention
                weights = jax.nn.softmax(jnp.where(real, scores(atoms)[..., 0], -1e30), axis=-1)
                return jnp.sum(jnp.where(real, weights, 0.0)[..., None] * values(atoms), axis=-2)


class StateEmbedding(eqx.Module):
    """A vector for each list of goals."""

    tables: Tables
    composition: Composition

    def __init__(
        self, atoms: AtomEmbeddingKind, states: StatePooling, width: int, index: ProofVocabulary, *, key: Key
    ) -> None:
        self.tables = Tables(atoms, width, index, key=key)
        self.composition = Composition(atoms, states, width, index.arity, key=jax.random.fold_in(key, 0))

    def __call__(self, goals: Int32[Array, "*states atoms atom"]) -> Float[Array, "*states width"]:
        return self.composition(self.tables.look_up(goals), goals)


def _product(a: Float[Array, "*axes width"], b: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
    """Of complex numbers whose real parts are the first half."""
    (a_real, a_imaginary), (b_real, b_imaginary) = jnp.split(a, 2, axis=-1), jnp.split(b, 2, axis=-1)
    real = a_real * b_real - a_imaginary * b_imaginary
    return jnp.concatenate([real, a_real * b_imaginary + a_imaginary * b_real], axis=-1)


def _conjugate(a: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
    real, imaginary = jnp.split(a, 2, axis=-1)
    return jnp.concatenate([real, -imaginary], axis=-1)


_CHUNK = 256
"""Successors embedded at a time."""


def successor_scores(
    embedding: StateEmbedding,
    wanted: Float[Array, " width"],
    successors: Int32[Array, "states atoms atom"],
    count: Int32[Array, ""],
) -> Float[Array, " states"]:
    """The product of `wanted` with the vector of each of the first `count` successors; 0 for the others.

    Under `vmap` the successors of the whole batch are put in one row without gaps and embedded a chunk at a
    time, in the gradient too, so that both cost what the real ones cost.
    """
    arrays, structure = eqx.partition(embedding, eqx.is_array)
    scores = _scores_of_batch(structure)

    @custom_vmap
    def one(arrays: PyTree, wanted: Array, successors: Array, count: Array) -> Array:
        return scores(arrays, wanted[None], successors[None], count[None])[0]

    @one.def_vmap
    def _(
        size: int, batched: Any, arrays: PyTree, wanted: Array, successors: Array, count: Array
    ) -> tuple[Array, bool]:
        def spread(leaf: Array, has_axis: bool) -> Array:
            return leaf if has_axis else jnp.broadcast_to(leaf, (size, *leaf.shape))

        rows = [spread(*pair) for pair in zip((wanted, successors, count), batched[1:], strict=True)]
        if not any(jax.tree.leaves(batched[0])):
            return scores(arrays, *rows), True
        # Several networks at once, as when several seeds look at something together.
        alone = [row[:, None] for row in rows]
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched[0])
        return jax.vmap(scores, (axes, 0, 0, 0))(arrays, *alone)[:, 0], True

    return one(arrays, wanted, successors, count)


BatchScores = Callable[[PyTree, Array, Array, Array], Array]


def _scores_of_batch(structure: Any) -> BatchScores:
    """From a network's arrays, [batch, width], [batch, states, atoms, 3] and [batch] to [batch, states]."""

    def forward(arrays: PyTree, wanted: Array, successors: Array, counts: Array) -> Array:
        embedding = eqx.combine(arrays, structure)

        def one_chunk(start: Array, scores: Array) -> Array:
            owner, place, there = _chunk_of(start, counts)
            goals = successors.at[owner, place].get(mode="clip")
            found = _score(embedding.composition, embedding.tables.look_up(goals), wanted[owner], goals)
            # What is behind the last successor is dropped.
            return scores.at[jnp.where(there, owner, len(counts)), place].set(found, mode="drop")

        return _chunks(counts, one_chunk, jnp.zeros(successors.shape[:2], wanted.dtype))

    def backward(kept: tuple[PyTree, Array, Array, Array], slopes: Array) -> tuple[PyTree, Array, None, None]:
        arrays, wanted, successors, counts = kept
        embedding = eqx.combine(arrays, structure)
        tables, composition = embedding.tables, embedding.composition
        weights, shape = eqx.partition(composition, eqx.is_array)

        def one_chunk(start: Array, sums: tuple[Tables, PyTree, Array]) -> tuple[Tables, PyTree, Array]:
            owner, place, there = _chunk_of(start, counts)
            goals = jnp.where(there[:, None, None], successors.at[owner, place].get(mode="clip"), 0)

            def score(weights: PyTree, rows: AtomRows, wanted: Array) -> Array:
                return _score(eqx.combine(weights, shape), rows, wanted, goals)

            slope = jnp.where(there, slopes[owner, place], 0.0)
            _, pull = jax.vjp(score, weights, tables.look_up(goals), wanted[owner])
            by_weights, by_rows, by_wanted = pull(slope)
            table_sums, weight_sums, wanted_sums = sums
            return (
                table_sums.add_rows(goals, by_rows),
                jax.tree.map(jnp.add, weight_sums, by_weights),
                wanted_sums.at[owner].add(by_wanted),
            )

        nothing = jax.tree.map(jnp.zeros_like, (tables, weights, wanted))
        table_slopes, weight_slopes, wanted_slopes = _chunks(counts, one_chunk, nothing)
        whole = eqx.tree_at(
            lambda e: (e.tables, e.composition),
            arrays,
            (table_slopes, weight_slopes),
            is_leaf=lambda _: False,
        )
        return whole, wanted_slopes, None, None

    scores = jax.custom_vjp(forward)
    scores.defvjp(lambda *inputs: (forward(*inputs), inputs), backward)
    return scores


def _score(
    composition: Composition,
    rows: AtomRows,
    wanted: Float[Array, "chunk width"],
    goals: Int32[Array, "chunk atoms atom"],
) -> Float[Array, " chunk"]:
    return jnp.sum(composition(rows, goals) * wanted, axis=-1)


def _chunk_of(start: Int32[Array, ""], counts: Int32[Array, " batch"]) -> tuple[Array, Array, Array]:
    """Whose successors the next ones are, which of theirs, and whether there are still any."""
    ends = jnp.cumsum(counts)
    number = start + jnp.arange(_CHUNK, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, number, side="right").astype(jnp.int32)
    there = owner < len(counts)
    owner = jnp.minimum(owner, len(counts) - 1)
    return owner, number - (ends - counts)[owner], there


def _chunks(counts: Int32[Array, " batch"], one_chunk: Callable[[Array, Any], Any], start: Any) -> Any:
    total = jnp.sum(counts)

    def step(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        return carry[0] + _CHUNK, one_chunk(*carry)

    return jax.lax.while_loop(lambda carry: carry[0] < total, step, (jnp.int32(0), start))[1]


class ProofNetworkConfig(Config):
    """Settings of the policy network for proofs."""

    renamed_settings: ClassVar[Mapping[str, str]] = {
        "atoms": "atom_embedding",
        "states": "state_pooling",
        "width": "embedding_dim",
        "depth": "num_layers",
    }

    atom_embedding: AtomEmbeddingKind = "transe"
    """How an atom is embedded from its predicate and terms: like a triple in `transe`, `complex` or `rotate`,
    or with an `mlp`. Predicates with three arguments need `mlp`."""
    state_pooling: StatePooling = "mean"
    """How the embeddings of a state's goals are combined: `mean`, `sum` or `attention`."""
    embedding_dim: int = Field(default=64, ge=2)
    """Size of all embeddings; even for `complex` and `rotate`."""
    num_layers: int = Field(default=2, ge=1)
    """Number of layers of the actor, and of the critic before its value."""
    separate_critic: bool = True
    """Whether the critic has its own embeddings instead of the actor's."""
    temperature: float | None = Field(default=None, gt=0)
    """Divisor of the logits; None for the square root of `embedding_dim`."""

    @model_validator(mode="after")
    def _check_dim(self) -> "ProofNetworkConfig":
        if self.atom_embedding in ("complex", "rotate") and self.embedding_dim % 2:
            raise ValueError(
                f"embedding_dim must be even for atom_embedding={self.atom_embedding}, "
                f"got {self.embedding_dim}"
            )
        return self


class Perceptron(eqx.Module):
    """Layers with a rectifier between them."""

    layers: tuple[Dense, ...]

    def __init__(self, widths: tuple[int, ...], *, key: Key, last_scale: float = 1.0) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        # A rectifier halves what passes it; the factor makes up for that.
        scales = [math.sqrt(2)] * (len(keys) - 1) + [last_scale]
        self.layers = tuple(
            Dense(inputs, outputs, key=layer_key, scale=scale)
            for inputs, outputs, layer_key, scale in zip(widths[:-1], widths[1:], keys, scales, strict=True)
        )

    def __call__(self, x: Float[Array, "*axes inputs"]) -> Float[Array, "*axes outputs"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


class ProofNetwork(eqx.Module):
    """Scores each successor against the current state, and values the state.

    It reads goals, successors and mask of an observation, and nothing else: label and depth are for
    bookkeeping.
    """

    embedding: StateEmbedding
    actor: Perceptron
    critic_embedding: StateEmbedding | None
    critic: Perceptron
    temperature: float = eqx.field(static=True)

    def __init__(self, config: ProofNetworkConfig, index: ProofVocabulary, *, key: Key) -> None:
        keys = jax.random.split(key, 4)
        width, depth = config.embedding_dim, config.num_layers
        kinds = config.atom_embedding, config.state_pooling, width, index
        self.embedding = StateEmbedding(*kinds, key=keys[0])
        self.actor = Perceptron((width,) * (depth + 1), key=keys[1])
        self.critic_embedding = StateEmbedding(*kinds, key=keys[2]) if config.separate_critic else None
        self.critic = Perceptron((*(width,) * (depth + 1), 1), key=keys[3], last_scale=0.1)
        self.temperature = math.sqrt(width) if config.temperature is None else config.temperature

    def embed_states(self, goals: Int32[Array, "*states atoms atom"]) -> Float[Array, "*states width"]:
        """The vectors of some lists of goals, as the actor reads them."""
        return self.embedding(goals)

    def score(
        self, state: Float[Array, " width"], successors: Float[Array, "states width"]
    ) -> Float[Array, " states"]:
        """The logits of some successors of a state, from their vectors."""
        return successors @ self._wanted(state)

    def value(self, goals: Int32[Array, "atoms atom"]) -> Float[Array, ""]:
        """What is to be expected from a state on."""
        own = self.embedding if self.critic_embedding is None else self.critic_embedding
        return self.critic(own(goals))[0]

    def __call__(self, observation: ProofObservation) -> tuple[MaskedCategorical, Float[Array, ""]]:
        logits, value = self.logits(observation)
        return MaskedCategorical(logits, observation.action_mask), value

    def logits(self, observation: ProofObservation) -> tuple[Float[Array, " states"], Float[Array, ""]]:
        """Compute the logits of all actions (0 for masked actions) and the value of one observation."""
        goals = observation.goals
        count = jnp.sum(observation.action_mask, dtype=jnp.int32)
        wanted = self._wanted(self.embed_states(goals))
        logits = successor_scores(self.embedding, wanted, observation.successors, count)
        return logits, self.value(goals)

    def _wanted(self, state: Float[Array, " width"]) -> Float[Array, " width"]:
        """What a successor's vector should point to."""
        return self.actor(state) / self.temperature


def create_proof_network(config: ProofNetworkConfig, index: ProofVocabulary, key: Key) -> ProofNetwork:
    """A network with random weights, for the states that an `ProofVocabulary` numbers."""
    return ProofNetwork(config, index, key=key)
