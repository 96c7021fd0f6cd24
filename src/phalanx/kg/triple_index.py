"""Queries in the form of (entity, directed relation) pairs, and an index of their known answers.

The index is used for filtered rankings, candidate lists and training labels.
"""

import numpy as np
from jaxtyping import Bool, Int32

from phalanx.kg.joins import encode_tuples
from phalanx.ragged import expand_ranges


def directed_queries(
    triples: Int32[np.ndarray, "triples 3"],
) -> tuple[Int32[np.ndarray, "queries 2"], Int32[np.ndarray, " queries"]]:
    """Return the tail queries of all triples (relation, head, tail), followed by all head queries.

    A query is a pair of an entity and a directed relation. The directed relation 2r asks for the tails of
    relation r, and 2r + 1 asks for its heads.

    Returns:
        The queries, and the answer to each query. The answers are the tails of all triples, followed by the
        heads of all triples.

    >>> pairs, answers = directed_queries(np.array([[3, 10, 20]], np.int32))
    >>> pairs.tolist(), answers.tolist()
    ([[10, 6], [20, 7]], [20, 10])
    """
    relation, head, tail = triples.T
    tail_queries, head_queries = np.stack([head, 2 * relation], 1), np.stack([tail, 2 * relation + 1], 1)
    return np.concatenate([tail_queries, head_queries]), np.concatenate([tail, head])


class TripleIndex:
    """Index of the known answers to (entity, directed relation) queries.

    See `directed_queries` for directed relations.

    Args:
        triples: Distinct known triples (relation, head, tail).
        num_entities: Number of entities. All entity ids are less than this number.
    """

    def __init__(self, triples: Int32[np.ndarray, "triples 3"], num_entities: int) -> None:
        self.triples, self.num_entities = triples, num_entities
        pairs, answers = directed_queries(triples)
        keys = self._keys(pairs)
        order = np.argsort(keys, kind="stable")
        self._sorted_keys, self.answers = keys[order], answers[order]

    def ranges(self, pairs: Int32[np.ndarray, "pairs 2"]) -> tuple[np.ndarray, np.ndarray]:
        """Find the known answers to each query, which are consecutive elements of the `answers` attribute.

        Returns:
            For each query, the index of its first known answer in `answers`, and the number of its known
            answers.
        """
        keys = self._keys(pairs)
        starts = np.searchsorted(self._sorted_keys, keys)
        return starts, np.searchsorted(self._sorted_keys, keys, side="right") - starts

    def contains(
        self, pairs: Int32[np.ndarray, "pairs 2"], answers: Int32[np.ndarray, " pairs"]
    ) -> Bool[np.ndarray, " pairs"]:
        """Return whether `answers[i]` is a known answer to the query `pairs[i]`, for each index i."""
        codes = self._keys(pairs) * self.num_entities + answers
        return np.isin(codes, self._sorted_keys * self.num_entities + self.answers)

    def mask(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Bool[np.ndarray, "pairs entities"]:
        """Return, for each query in `pairs`, a mask that is True for its known answers."""
        rows, indices = expand_ranges(*self.ranges(pairs))
        mask = np.zeros((len(pairs), self.num_entities), bool)
        mask[rows, self.answers[indices]] = True
        return mask

    def _keys(self, pairs: np.ndarray) -> np.ndarray:
        return encode_tuples((pairs[:, 1], pairs[:, 0]), self.num_entities)
