"""Features of goals for a guide: what facts and rules there are for them, and how near their constants are.

They are computed from facts and rules alone; what is learned of them is in `guide`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from phalanx.proofs.program import Program, offsets
from phalanx.proofs.search.best_first import SuccessorBatch

ATOM_FEATURES, STATE_FEATURES = 9, 8
_NEAR = (2, 6)
"""Steps along facts after which two constants are compared: close by, and further off."""
_LONGEST = 5
"""Predicates of a body that tell a rule from others."""
_DIRECTIONS = 48
"""Random directions that constants are compared in."""


class GoalFeatures(NamedTuple):
    """Some states as numbers."""

    predicates: Int32[np.ndarray, "states atoms"]
    queries: Int32[np.ndarray, " states"]
    """Predicates of the queries."""
    atoms: Float32[np.ndarray, "states atoms features"]
    states: Float32[np.ndarray, "states features"]


class GoalFeatureExtractor:
    """Describes successors: how many facts and rules each goal has, and how near its constants are.

    Nearness is the cosine between random projections of where walks along facts lead from two constants
    (Chen and others, 2019: FastRP). A rule's confidence is found by head and body predicates.
    """

    def __init__(
        self, program: Program, confidence: Float32[np.ndarray, " rules"] | None = None, seed: int = 0
    ) -> None:
        """`confidence` is that of the rules in the order that the program was made of; 1 if not given."""
        self._program = program
        facts, predicates, constants = program.facts, program.num_predicates, program.num_constants
        self._counts = [
            np.diff(offsets(facts[:, 0], facts[:, side], predicates, constants)) for side in (1, 2)
        ]
        self._totals = np.bincount(facts[:, 0], minlength=predicates + 1)
        self._rules = np.bincount(program.heads[:, 0], minlength=predicates + 1)
        self._near = _projections(program, np.random.default_rng(seed))
        given = np.ones(len(program.heads), np.float32) if confidence is None else np.asarray(confidence)
        self._keys, self._confidence = self._rule_table(given[program.rule_order])

    def __call__(self, siblings: SuccessorBatch) -> GoalFeatures:
        goals, owner = siblings.goals, siblings.owner
        real, ground = goals[..., 0] > 0, self._ground(goals)
        both: np.ndarray = ground[..., 0] & ground[..., 1]
        matches = [
            np.where(ground[..., side], self._matches(goals, side), self._totals[goals[..., 0]])
            for side in (0, 1)
        ]
        near = [
            np.where(both, self._nearness(table, goals[..., 1], goals[..., 2], both), 0)
            for table in self._near
        ]
        rules = self._rules[goals[..., 0]]
        hopeless = (rules == 0) & (both | (np.minimum(*matches) == 0))
        columns = [
            ground[..., 0], ground[..., 1], *(np.log1p(found) for found in matches),
            np.log1p(self._totals[goals[..., 0]]), np.log1p(rules), *near, hopeless,
        ]  # fmt: skip
        atoms = np.where(real[..., None], np.stack(columns, axis=-1), 0).astype(np.float32)
        return GoalFeatures(
            goals[..., 0], siblings.queries[owner, 0], atoms, self._states(siblings, real, ground)
        )

    def confidence(self, siblings: SuccessorBatch) -> Float32[np.ndarray, " successors"]:
        """Of the rule that made each successor; 1 where a fact did."""
        added = self._added(siblings)
        keys = self._key(siblings.parents[siblings.owner, 0, 0], siblings.goals[..., 0], added)
        place = np.minimum(np.searchsorted(self._keys, keys), max(len(self._keys) - 1, 0))
        if not len(self._keys):
            return np.ones(len(keys), np.float32)
        known = (self._keys[place] == keys) & (added > 0)
        return np.where(known, self._confidence[place], 1.0).astype(np.float32)

    def _states(self, siblings: SuccessorBatch, real: np.ndarray, ground: np.ndarray) -> np.ndarray:
        goals, owner = siblings.goals, siblings.owner
        rows, terms = np.arange(len(goals)), goals[..., 1:].reshape(len(goals), -1)
        constant = (ground & real[..., None]).reshape(len(goals), -1)
        first, last = constant.argmax(axis=1), constant.shape[1] - 1 - constant[:, ::-1].argmax(axis=1)
        ends = constant.any(axis=1)
        start, stop = terms[rows, first], terms[rows, last]
        near = [np.where(ends, self._nearness(table, start, stop, ends), 0) for table in self._near]
        count = np.bincount(owner, minlength=len(siblings.parents))
        variables = (real[..., None] & ~ground).sum(axis=(1, 2))
        columns = [
            real.sum(axis=1), variables, np.log(self.confidence(siblings) + 1e-3), self._added(siblings),
            *near, np.log(np.maximum(count, 1))[owner], siblings.depth[owner] / 10,
        ]  # fmt: skip
        return np.stack(columns, axis=-1).astype(np.float32)

    def _ground(self, goals: np.ndarray) -> np.ndarray:
        return (goals[..., 1:] >= 1) & (goals[..., 1:] <= self._program.num_constants)

    def _matches(self, goals: np.ndarray, side: int) -> np.ndarray:
        """Facts that have this predicate and this argument."""
        constants = self._program.num_constants
        cell = (goals[..., 0].astype(np.int64) - 1) * constants + goals[..., 1 + side] - 1
        table = self._counts[side]
        return table[np.clip(cell, 0, len(table) - 1)]

    def _nearness(
        self, table: np.ndarray, one: np.ndarray, other: np.ndarray, where: np.ndarray
    ) -> np.ndarray:
        rows = [np.where(where, place, 0) for place in (one, other)]
        return np.einsum("...d,...d->...", table[rows[0]], table[rows[1]])

    def _added(self, siblings: SuccessorBatch) -> np.ndarray:
        """Goals that a step has put in front of the remaining ones."""
        before = (siblings.parents[..., 0] > 0).sum(axis=1)[siblings.owner]
        return (siblings.goals[..., 0] > 0).sum(axis=1) - (before - 1)

    def _key(self, head: np.ndarray, predicates: np.ndarray, length: np.ndarray) -> np.ndarray:
        factor = self._program.num_predicates + 1
        key = head.astype(np.int64)
        for place in range(_LONGEST):
            here = predicates[:, place] if place < predicates.shape[-1] else 0
            key = key * factor + np.where(place < length, here, 0)
        return key

    def _rule_table(self, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The keys of the rules, sorted, each with the confidence of its best rule."""
        bodies = self._program.bodies[..., 0]
        length = (bodies > 0).sum(axis=1)
        keys = self._key(self._program.heads[:, 0], bodies, length)
        order = np.lexsort((-confidence, keys))
        unique, first = np.unique(keys[order], return_index=True)
        return unique, confidence[order][first]


def _projections(program: Program, random: np.random.Generator) -> list[np.ndarray]:
    """For each distance, a unit vector for each constant (and a zero row for padding)."""
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped, unused-ignore]

    size = program.num_constants + 1
    heads, tails = program.facts[:, 1], program.facts[:, 2]
    ends = np.concatenate([heads, tails]), np.concatenate([tails, heads])
    walk = coo_matrix((np.ones(len(ends[0]), np.float32), ends), (size, size)).tocsr()
    degree = np.maximum(np.asarray(walk.sum(axis=1)).reshape(-1), 1)
    walk = walk.multiply(1 / degree[:, None]).tocsr()
    vectors = random.standard_normal((size, _DIRECTIONS)).astype(np.float32) / np.sqrt(degree)[:, None]
    found, total = [], np.zeros_like(vectors)
    for step in range(1, max(_NEAR) + 1):
        vectors = walk @ vectors
        length = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        total = total + vectors / length
        if step in _NEAR:
            norm = np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9)
            found.append((total / norm).astype(np.float32))
    return found
