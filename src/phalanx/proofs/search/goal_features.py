"""Features of goals for the learned heuristic, computed from facts and rules."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from phalanx.proofs.program import Program, row_offsets
from phalanx.proofs.search.best_first import SuccessorBatch

ATOM_FEATURES, STATE_FEATURES = 9, 8
"""Number of numeric features per goal and per state."""
_WALK_LENGTHS = (2, 6)
"""Maximum lengths of random walks. There is one similarity feature per length. With short walks, constants
are similar if they share direct neighbors, and with long walks if they share larger neighborhoods."""
_MAX_KEY_LENGTH = 5
"""Maximum number of body predicates in the key that identifies a rule. The key consists of the rule's head
predicate and its first body predicates."""
_PROJECTION_DIM = 48
"""Dimension of the random projections that represent constants."""


class GoalFeatures(NamedTuple):
    """Features of a batch of states, which are the inputs of `HeuristicNetwork`."""

    predicates: Int32[np.ndarray, "states atoms"]
    """Predicate of each goal, or 0 for padding."""
    queries: Int32[np.ndarray, " states"]
    """Predicate of each state's query."""
    atoms: Float32[np.ndarray, "states atoms features"]
    """Numeric features of each goal."""
    states: Float32[np.ndarray, "states features"]
    """Numeric features of each state."""


class GoalFeatureExtractor:
    """Computes features of successors, such as the number of facts and rules that match each goal.

    Other features measure the similarity of the two constants of a goal. Each constant is represented by a
    random projection of the distribution of random walks that start at the constant and follow facts (FastRP,
    Chen et al., 2019). The similarity of two constants is the cosine between their projections. Another
    feature is the confidence of the rule that led to a successor. The rule is identified by its head and body
    predicates.

    Args:
        program: Facts and rules.
        confidence: Confidence of each rule, in the order passed to `Program.create`. None means that all
            rules have confidence 1.
    """

    def __init__(self, program: Program, confidence: Float32[np.ndarray, " rules"] | None = None) -> None:
        self._program = program
        facts, predicates, constants = program.facts, program.num_predicates, program.num_constants
        self._counts = [
            np.diff(row_offsets(facts[:, 0], facts[:, side], predicates, constants)) for side in (1, 2)
        ]
        self._totals = np.bincount(facts[:, 0], minlength=predicates + 1)
        self._rules = np.bincount(program.heads[:, 0], minlength=predicates + 1)
        self._projected = _project_walks(program)
        given = np.ones(len(program.heads), np.float32) if confidence is None else np.asarray(confidence)
        self._keys, self._confidence = self._rule_table(given[program.rule_order])

    def __call__(self, batch: SuccessorBatch) -> GoalFeatures:
        goals, owner = batch.goals, batch.owner
        real, ground = goals[..., 0] > 0, self._ground(goals)
        is_ground: np.ndarray = ground[..., 0] & ground[..., 1]
        matches = [
            np.where(ground[..., side], self._matches(goals, side), self._totals[goals[..., 0]])
            for side in (0, 1)
        ]
        similarities = self._similarities(goals[..., 1], goals[..., 2], is_ground)
        rules = self._rules[goals[..., 0]]
        has_no_match = (rules == 0) & (is_ground | (np.minimum(*matches) == 0))
        columns = [
            ground[..., 0], ground[..., 1], *(np.log1p(found) for found in matches),
            np.log1p(self._totals[goals[..., 0]]), np.log1p(rules), *similarities, has_no_match,
        ]  # fmt: skip
        atoms = np.where(real[..., None], np.stack(columns, axis=-1), 0).astype(np.float32)
        return GoalFeatures(goals[..., 0], batch.queries[owner, 0], atoms, self._states(batch, real, ground))

    def confidence(self, batch: SuccessorBatch) -> Float32[np.ndarray, " successors"]:
        """Return the confidence of the rule that led to each successor, or 1 if a fact led to it."""
        added = self._num_added_goals(batch)
        keys = self._key(batch.parents[batch.owner, 0, 0], batch.goals[..., 0], added)
        index = np.searchsorted(self._keys, keys)
        known = (self._keys[index] == keys) & (added > 0)
        return np.where(known, self._confidence[index], 1.0).astype(np.float32)

    def _states(self, batch: SuccessorBatch, real: np.ndarray, ground: np.ndarray) -> np.ndarray:
        goals, owner = batch.goals, batch.owner
        rows, terms = np.arange(len(goals)), goals[..., 1:].reshape(len(goals), -1)
        constant = (ground & real[..., None]).reshape(len(goals), -1)
        first, last = constant.argmax(axis=1), constant.shape[1] - 1 - constant[:, ::-1].argmax(axis=1)
        ends = constant.any(axis=1)
        similarities = self._similarities(terms[rows, first], terms[rows, last], ends)
        count = np.bincount(owner, minlength=len(batch.parents))
        variables = (real[..., None] & ~ground).sum(axis=(1, 2))
        columns = [
            real.sum(axis=1), variables, np.log(self.confidence(batch) + 1e-3), self._num_added_goals(batch),
            *similarities, np.log(np.maximum(count, 1))[owner], batch.depth[owner] / 10,
        ]  # fmt: skip
        return np.stack(columns, axis=-1).astype(np.float32)

    def _ground(self, goals: np.ndarray) -> np.ndarray:
        return (goals[..., 1:] >= 1) & (goals[..., 1:] <= self._program.num_constants)

    def _matches(self, goals: np.ndarray, side: int) -> np.ndarray:
        """Return, for each goal, the number of facts with the same predicate and the same argument at `side`.

        Args:
            goals: Encoded goals.
            side: Index of the argument, 0 or 1.
        """
        constants = self._program.num_constants
        cell = (goals[..., 0].astype(np.int64) - 1) * constants + goals[..., 1 + side] - 1
        table = self._counts[side]
        return table[np.clip(cell, 0, len(table) - 1)]

    def _similarities(self, one: np.ndarray, other: np.ndarray, where: np.ndarray) -> list[np.ndarray]:
        """Return the similarity of each pair of constants, as one array for each length in `_WALK_LENGTHS`.

        The similarity is 0 where `where` is False.
        """
        # Row 0 of each table is zero.
        one, other = np.where(where, one, 0), np.where(where, other, 0)
        return [np.einsum("...d,...d->...", table[one], table[other]) for table in self._projected]

    def _num_added_goals(self, batch: SuccessorBatch) -> np.ndarray:
        """Return, for each successor, the number of goals that replaced the first goal of the parent."""
        before = (batch.parents[..., 0] > 0).sum(axis=1)[batch.owner]
        return (batch.goals[..., 0] > 0).sum(axis=1) - (before - 1)

    def _key(self, head: np.ndarray, predicates: np.ndarray, length: np.ndarray) -> np.ndarray:
        factor = self._program.num_predicates + 1
        key = head.astype(np.int64)
        for index in range(_MAX_KEY_LENGTH):
            here = predicates[:, index] if index < predicates.shape[-1] else 0
            key = key * factor + np.where(index < length, here, 0)
        return key

    def _rule_table(self, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct keys of the rules in ascending order, and the largest confidence for each key.

        The keys are followed by a sentinel that is larger than the key of any rule, so that a binary search
        always finds an entry.
        """
        bodies = self._program.bodies[..., 0]
        length = (bodies > 0).sum(axis=1)
        keys = self._key(self._program.heads[:, 0], bodies, length)
        order = np.lexsort((-confidence, keys))
        unique, first = np.unique(keys[order], return_index=True)
        return np.append(unique, np.iinfo(np.int64).max), np.append(confidence[order][first], 1.0)


def _project_walks(program: Program) -> list[np.ndarray]:
    """Compute the random projections that represent constants; see `GoalFeatureExtractor`.

    Returns:
        For each length in `_WALK_LENGTHS`, a table with one unit vector per constant. Row 0 contains zeros
        and is used for padding.
    """
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped, unused-ignore]

    size, random = program.num_constants + 1, np.random.default_rng(0)
    heads, tails = program.facts[:, 1], program.facts[:, 2]
    ends = np.concatenate([heads, tails]), np.concatenate([tails, heads])
    walk = coo_matrix((np.ones(len(ends[0]), np.float32), ends), (size, size)).tocsr()
    degree = np.maximum(np.asarray(walk.sum(axis=1)).reshape(-1), 1)
    walk = walk.multiply(1 / degree[:, None]).tocsr()
    vectors = random.standard_normal((size, _PROJECTION_DIM)).astype(np.float32) / np.sqrt(degree)[:, None]
    found, total = [], np.zeros_like(vectors)
    for step in range(1, max(_WALK_LENGTHS) + 1):
        vectors = walk @ vectors
        length = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        total = total + vectors / length
        if step in _WALK_LENGTHS:
            norm = np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9)
            found.append((total / norm).astype(np.float32))
    return found
