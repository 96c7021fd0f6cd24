"""Candidates of the XLA engine: the facts and rules of goals by number, and the goal lists they lead to.

Which of them become successors is decided in `xla_resolution`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from phalanx.proofs.nodes import Asked
from phalanx.proofs.program import Program, ProgramArrays, is_fact


class Sources(NamedTuple):
    """Where the candidates of goals come from: first some facts, then some rules."""

    first_fact: Int32[Array, " rows"]
    num_facts: Int32[Array, " rows"]
    first_rule: Int32[Array, " rows"]
    total: Int32[Array, " rows"]
    """Facts and rules."""


def sources_of(
    program: Program, arrays: ProgramArrays, asked: Asked, goals: Int32[Array, "rows atoms 3"]
) -> Sources:
    """The facts and rules that the first goals may unify with."""
    constants = program.num_constants
    predicate, x, y = goals[:, 0, 0], goals[:, 0, 1], goals[:, 0, 2]
    x_free, y_free = x > constants, y > constants
    real = (predicate >= 1) & (predicate <= program.num_predicates)
    row = (jnp.where(real, predicate, 1) - 1) * constants
    by_first = row + jnp.where(x_free, 0, x - 1)
    by_second = row + jnp.where(y_free, 0, y - 1)
    span = jnp.where(x_free, constants, 1)
    only_second = x_free & ~y_free
    start = jnp.where(only_second, arrays.start_by_second[by_second], arrays.start_by_first[by_first])
    stop = jnp.where(
        only_second, arrays.start_by_second[by_second + 1], arrays.start_by_first[by_first + span]
    )
    # Where the other goals do not mention the variables, all facts lead to the same successor, and two are
    # enough in case that one of them is the query.
    rest = goals[:, 1:, 1:]
    here = ((rest == x[:, None, None]) & x_free[:, None, None]) | (
        (rest == y[:, None, None]) & y_free[:, None, None]
    )
    needed = jnp.where(jnp.any(here, axis=(1, 2)) | (x == y), stop - start, jnp.minimum(stop - start, 2))
    # Of a ground goal the only candidate is the goal itself.
    is_query = asked.excluded & jnp.all(goals[:, 0] == asked.query, axis=1)
    itself = is_fact(arrays, constants, predicate, x, y) & ~is_query
    num_facts = jnp.where(x_free | y_free, needed, itself.astype(jnp.int32))
    place = jnp.where(real, predicate, 0)
    first_rule, last_rule = arrays.rule_start[place], arrays.rule_start[place + 1]
    num_facts = jnp.where(real, num_facts, 0)
    return Sources(start, num_facts, first_rule, num_facts + jnp.where(real, last_rule - first_rule, 0))


def candidates(
    program: Program,
    arrays: ProgramArrays,
    goals: Int32[Array, "rows atoms 3"],
    query: Int32[Array, "rows 3"],
    excluded: Bool[Array, " rows"],
    sources: Sources,
    number: Int32[Array, "rows width"],
) -> tuple[Int32[Array, "rows width cells"], Bool[Array, "rows width"], Bool[Array, "rows width"]]:
    """The goal lists of some candidates in canonical form; which of them fit; which unify at all."""
    constants, atoms = program.num_constants, goals.shape[1]
    predicate, x, y = (goals[:, 0, k, None] for k in range(3))
    x_free, y_free = x > constants, y > constants

    by_fact = number < sources.num_facts[:, None]
    place = sources.first_fact[:, None] + number
    fact = jnp.where((x_free & ~y_free)[..., None], arrays.by_second[place], arrays.facts[place])
    fact = jnp.where((x_free | y_free)[..., None], fact, goals[:, 0, None, 1:])
    is_query = (predicate == query[:, :1]) & jnp.all(fact == query[:, None, 1:], axis=-1)
    rule = jnp.where(by_fact, 0, sources.first_rule[:, None] + number - sources.num_facts[:, None])
    head = jnp.where(by_fact[..., None], fact, arrays.heads[rule])
    unifies = (number < sources.total[:, None]) & ~(by_fact & is_query & excluded[:, None])

    # A fact is a rule with constants in its head and without a body.
    head_1, head_2 = head[..., 0], head[..., 1]
    equal = (head_1 < 0) & (head_1 == head_2)
    clash_1 = (head_1 > 0) & ~x_free & (x != head_1)
    clash_2 = (head_2 > 0) & ~y_free & (y != head_2)
    clash_both = (head_1 > 0) & (head_2 > 0) & (x == y) & (head_1 != head_2)
    clash = jnp.where(equal, ~x_free & ~y_free & (x != y), clash_1 | clash_2 | clash_both)
    unifies &= ~clash
    x_bound = x_free & (equal | (head_1 > 0))
    y_bound = y_free & (equal & ~x_free | (head_2 > 0))
    x_value, y_value = jnp.where(equal, y, head_1), jnp.where(equal, x, head_2)

    def substituted(term: Array) -> Array:
        """Terms [rows, 1, n] of the goals under each candidate's substitution [rows, width, n]."""
        by_y = jnp.where(y_bound[..., None] & (term == y[..., None]), y_value[..., None], term)
        return jnp.where(x_bound[..., None] & (term == x[..., None]), x_value[..., None], by_y)

    of_goals = substituted(goals[:, None, :, 1:].reshape(goals.shape[0], 1, -1))
    body = jnp.where(by_fact[..., None, None], 0, arrays.bodies[rule])
    terms = body[..., 1:].reshape(*number.shape, 2 * body.shape[-2])
    of_body = constants + 2 * atoms - terms
    of_body = jnp.where(terms == head_2[..., None], of_goals[..., 1:2], of_body)
    of_body = jnp.where(terms == head_1[..., None], of_goals[..., :1], of_body)
    of_body = jnp.where(terms >= 0, terms, of_body)
    terms = jnp.concatenate([of_body, of_goals[..., 2:]], axis=-1).reshape(*number.shape, -1, 2)
    rest = jnp.broadcast_to(goals[:, None, 1:, 0], (*number.shape, atoms - 1))
    cells = jnp.concatenate([jnp.concatenate([body[..., 0], rest], axis=-1)[..., None], terms], axis=-1)

    proved = is_fact(arrays, constants, cells[..., 0], cells[..., 1], cells[..., 2])
    proved &= ~(excluded[:, None, None] & jnp.all(cells == query[:, None, None], axis=-1))
    kept = (cells[..., 0] != 0) & ~proved
    length = jnp.sum(kept, axis=-1)
    rows = _renamed(_packed(cells, kept, atoms), constants)
    first = jnp.where(length == 0, program.true_index, rows[..., 0, 0])
    rows = rows.at[..., 0, 0].set(first)
    return rows.reshape(*number.shape, -1), unifies & (length <= atoms), unifies


def _packed(
    cells: Int32[Array, "rows width goals 3"], kept: Bool[Array, "rows width goals"], atoms: int
) -> Int32[Array, "rows width atoms 3"]:
    """The kept goals without gaps, as many as fit."""
    place = jnp.cumsum(kept, axis=-1, dtype=jnp.int32) - 1
    goes = kept[..., None, :] & (place[..., None, :] == jnp.arange(atoms)[:, None])
    return jnp.sum(jnp.where(goes[..., None], cells[..., None, :, :], 0), axis=-2, dtype=jnp.int32)


def _renamed(rows: Int32[Array, "rows width atoms 3"], constants: int) -> Int32[Array, "rows width atoms 3"]:
    """Variables numbered by first occurrence."""
    terms = rows[..., 1:].reshape(*rows.shape[:2], -1)
    count = terms.shape[-1]
    free = terms > constants
    place = jnp.arange(count)
    first = jnp.min(jnp.where(terms[..., :, None] == terms[..., None, :], place, count), axis=-1)
    is_first = free & (first == place)
    name = jnp.sum(is_first[..., None, :] & (place <= first[..., None]), axis=-1, dtype=jnp.int32)
    terms = jnp.where(free, constants + name, terms)
    return jnp.concatenate([rows[..., :1], terms.reshape(*rows.shape[:-1], 2)], axis=-1)


def hash_rows(rows: Int32[Array, "*rows cells"]) -> Int32[Array, "*rows 2"]:
    """Two words for each row; equal words are checked against the rows themselves."""
    numbers = np.random.default_rng(5).integers(1, 2**32, (2, rows.shape[-1]), dtype=np.uint32) | np.uint32(1)
    cells = rows.astype(jnp.uint32)[..., None, :]
    mixed = (cells ^ (cells >> 7)) * jnp.asarray(numbers)
    mixed = jnp.sum(mixed ^ (mixed >> 15), axis=-1, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    return (mixed ^ (mixed >> 16)).astype(jnp.int32)
