"""Embeddings of atoms and of states of a proof: a vector for each list of goals.

What chooses and values by them is in `proof_networks`.
"""

import math
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from phalanx.agents.layers import Dense
from phalanx.core.environment import Key
from phalanx.proofs.vocabulary import IndexManager

AtomKind = Literal["transe", "complex", "rotate", "mlp"]
StateKind = Literal["mean", "sum", "attention"]


class AtomRows(NamedTuple):
    """What the tables hold for some atoms; where there is no term, a row that means none."""

    predicate: Float[Array, "*states atoms rows"]
    first: Float[Array, "*states atoms width"]
    second: Float[Array, "*states atoms width"]


class Tables(eqx.Module):
    """A row for every predicate and for every constant and variable; row 0, padding, is never read."""

    predicates: Float[Array, "predicates rows"]
    terms: Float[Array, "terms width"]

    def __init__(self, kind: AtomKind, width: int, index: IndexManager, *, key: Key) -> None:
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

    def look_up(self, goals: Int32[Array, "*states atoms 3"]) -> AtomRows:
        """The rows of the atoms' predicates and terms, of padding whatever they are."""
        return AtomRows(self.predicates[goals[..., 0]], self.terms[goals[..., 1]], self.terms[goals[..., 2]])

    def add_rows(self, goals: Int32[Array, "*states atoms 3"], rows: AtomRows) -> "Tables":
        """These tables with something added to the rows that `look_up` reads; padding has none."""
        real = goals > 0
        out_of_range = jnp.array([len(self.predicates), len(self.terms), len(self.terms)], jnp.int32)
        places = jnp.where(real, goals, out_of_range)
        predicates = self.predicates.at[places[..., 0]].add(rows.predicate, mode="drop")
        terms = self.terms.at[places[..., 1]].add(rows.first, mode="drop")
        terms = terms.at[places[..., 2]].add(rows.second, mode="drop")
        return eqx.tree_at(lambda tables: (tables.predicates, tables.terms), self, (predicates, terms))


class Composition(eqx.Module):
    """What makes one vector of a state's rows: an atom from predicate and terms, the state from its atoms.

    - `transe`: first + predicate - second;
    - `complex`: first * predicate * conj(second), half of the width real parts, half imaginary ones;
    - `rotate`: first turned by the predicate's angles, minus second;
    - `mlp`: two layers on all three.

    `True`, `False` and `End` have no terms and are their predicate alone.
    """

    layers: tuple[Dense, ...]
    attention: tuple[Dense, ...]
    atoms: AtomKind = eqx.field(static=True)
    states: StateKind = eqx.field(static=True)

    def __init__(self, atoms: AtomKind, states: StateKind, width: int, *, key: Key) -> None:
        self.atoms, self.states = atoms, states
        self.layers, self.attention = (), ()
        if atoms == "mlp":
            keys = jax.random.split(jax.random.fold_in(key, 0))
            self.layers = Dense(3 * width, width, key=keys[0]), Dense(width, width, key=keys[1])
        if states == "attention":
            keys = jax.random.split(jax.random.fold_in(key, 1))
            self.attention = Dense(width, 1, key=keys[0]), Dense(width, width, key=keys[1])

    def __call__(
        self, rows: AtomRows, goals: Int32[Array, "*states atoms 3"]
    ) -> Float[Array, "*states width"]:
        """The states' vectors; of a state without atoms, zero."""
        real = goals[..., 0] > 0
        return self._pooled(jnp.where(real[..., None], self._atoms(rows, goals), 0.0), real)

    def _atoms(
        self, rows: AtomRows, goals: Int32[Array, "*states atoms 3"]
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
                return outer(jax.nn.gelu(inner(jnp.concatenate([rows.predicate, first, second], axis=-1))))

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
        self, atoms: AtomKind, states: StateKind, width: int, index: IndexManager, *, key: Key
    ) -> None:
        self.tables = Tables(atoms, width, index, key=key)
        self.composition = Composition(atoms, states, width, key=jax.random.fold_in(key, 0))

    def __call__(self, goals: Int32[Array, "*states atoms 3"]) -> Float[Array, "*states width"]:
        return self.composition(self.tables.look_up(goals), goals)


def _product(a: Float[Array, "*axes width"], b: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
    """Of complex numbers whose real parts are the first half."""
    (a_real, a_imaginary), (b_real, b_imaginary) = jnp.split(a, 2, axis=-1), jnp.split(b, 2, axis=-1)
    real = a_real * b_real - a_imaginary * b_imaginary
    return jnp.concatenate([real, a_real * b_imaginary + a_imaginary * b_real], axis=-1)


def _conjugate(a: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
    real, imaginary = jnp.split(a, 2, axis=-1)
    return jnp.concatenate([real, -imaginary], axis=-1)
