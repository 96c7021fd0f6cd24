"""Reference implementation of proof search, with a small policy.

A state is a tuple of atoms, and an atom is a tuple of integers; variables of rules are negative.
"""

import functools
import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

Atom = tuple[int, int, int]
State = tuple[Atom, ...]
Rule = tuple[Atom, Sequence[Atom]]


class TinyPolicy(eqx.Module):
    """A policy whose scores depend on every atom of a state, its position and the previous state."""

    tables: Float32[Array, "3 rows 4"]
    mixing: Float32[Array, "4 4"]

    def __init__(self, rows: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.tables = jnp.asarray(random.normal(size=(3, rows, 4)), jnp.float32)
        self.mixing = jnp.asarray(random.normal(size=(4, 4)), jnp.float32)

    def embed_states(self, goals: Int32[Array, "*n atoms 3"]) -> Float32[Array, "*n 4"]:
        rows = sum(self.tables[column][goals[..., column]] for column in range(3))
        places = 1.0 / (1 + jnp.arange(goals.shape[-2], dtype=jnp.float32))
        real = goals[..., 0] != 0
        return jnp.sum(jnp.where(real[..., None], rows * places[:, None], 0.0), axis=-2)

    def score(
        self, state: Float32[Array, "4"], successors: Float32[Array, "states 4"]
    ) -> Float32[Array, " states"]:
        return successors @ jnp.tanh(self.mixing @ state)

    def plain_log_probs(self, state: State, successors: Sequence[State]) -> list[float]:
        """The same policy with NumPy for one state at a time."""
        tables, mixing = np.asarray(self.tables, np.float64), np.asarray(self.mixing, np.float64)

        def embed(goals: State) -> np.ndarray:
            return sum(
                sum(tables[column, atom[column]] for column in range(3)) / (1 + place)
                for place, atom in enumerate(goals)
            )

        wanted = np.tanh(mixing @ embed(state))
        logits = [float(embed(successor) @ wanted) for successor in successors]
        total = math.log(sum(math.exp(logit) for logit in logits))
        return [logit - total for logit in logits]


class ReferenceProver:
    """Facts and rules; the query itself is not a fact."""

    def __init__(self, facts: np.ndarray, rules: Sequence[Rule], predicates: int, constants: int) -> None:
        self.facts = sorted(tuple(int(x) for x in fact) for fact in facts)
        self.rules, self.constants = rules, constants
        self.true: State = ((predicates + 1, 0, 0),)
        self.false: State = ((predicates + 2, 0, 0),)
        self.end: State = ((predicates + 3, 0, 0),)

    def successors(self, state: State, query: Atom, visited: Sequence[State] = ()) -> list[State]:
        """List the successors of a state by facts, then by rules, then by giving up."""
        facts = [fact for fact in self.facts if fact != query]
        found: list[State] = []
        for head, body in [*((fact, ()) for fact in facts), *self.rules]:
            bindings = self._unify(head, state[0])
            if bindings is None:
                continue
            goals = [(p, walk(a, bindings), walk(b, bindings)) for p, a, b in (*body, *state[1:])]
            left = self._canonical([goal for goal in goals if goal not in facts]) or self.true
            if left not in found and left not in visited:
                found.append(left)
        return [*found, self.end] if found else [self.false]

    def _unify(self, head: Atom, goal: Atom) -> dict[int, int] | None:
        bindings: dict[int, int] = {}
        if head[0] != goal[0]:
            return None
        for a, b in zip(head[1:], goal[1:], strict=True):
            a, b = walk(a, bindings), walk(b, bindings)
            if a == b:
                continue
            if 1 <= a <= self.constants:
                a, b = b, a
            if 1 <= a <= self.constants:
                return None
            bindings[a] = b
        return bindings

    def _canonical(self, goals: Sequence[Atom]) -> State:
        names: dict[int, int] = {}

        def name(term: int) -> int:
            is_constant = 1 <= term <= self.constants
            return term if is_constant else names.setdefault(term, self.constants + 1 + len(names))

        return tuple((p, name(a), name(b)) for p, a, b in goals)


def walk(term: int, bindings: dict[int, int]) -> int:
    while term in bindings:
        term = bindings[term]
    return term


def best_log_prob(prover: ReferenceProver, policy: TinyPolicy, query: Atom, max_depth: int) -> float:
    """Compute the log-probability of all proofs with a number of steps by enumeration."""

    @functools.cache
    def steps(state: State) -> list[tuple[State, float]]:
        successors = prover.successors(state, query)
        return list(zip(successors, policy.plain_log_probs(state, successors), strict=True))

    @functools.cache
    def best(state: State, left: int) -> float:
        if state == prover.true:
            return 0.0
        if left == 0 or state in (prover.false, prover.end):
            return -math.inf
        return max(log_prob + best(successor, left - 1) for successor, log_prob in steps(state))

    return best((query,), max_depth)


def beam(
    prover: ReferenceProver, policy: TinyPolicy, query: Atom, width: int, max_depth: int
) -> tuple[float, int, int]:
    """Return log-probability and length of the first proof of a beam search, and the states expanded.

    Without a proof, the first two are minus infinity and -1. Visited states are skipped.
    """
    kept: list[tuple[float, State, tuple[State, ...]]] = [(0.0, (query,), ())]
    expanded = 0
    for depth in range(1, max_depth + 1):
        reached: list[tuple[float, State, tuple[State, ...]]] = []
        expanded += len(kept)
        for log_prob, state, path in kept:
            passed = (*path, state)
            successors = prover.successors(state, query, passed)
            more = policy.plain_log_probs(state, successors)
            reached += [(log_prob + m, s, passed) for s, m in zip(successors, more, strict=True)]
        proofs = [log_prob for log_prob, state, _ in reached if state == prover.true]
        if proofs:
            return max(proofs), depth, expanded
        kept, seen = [], {prover.false, prover.end}
        for way in sorted(reached, key=lambda way: -way[0]):
            if way[1] not in seen and len(kept) < width:
                seen.add(way[1])
                kept.append(way)
    return -math.inf, -1, expanded
