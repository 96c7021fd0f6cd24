"""Index of the known answers of link-prediction queries.

It is used for filtered rankings, candidate lists and training labels.
"""

import numpy as np
from jaxtyping import Bool, Int32

from phalanx.kg.joins import encode_tuples, expand_ranges

HEAD, TAIL = 1, 2
"""Column indices of the head and the tail in a triple (relation, head, tail)."""


class TripleIndex:
    """Index of the known heads of (relation, ?, tail), or of the known tails of (relation, head, ?).

    Args:
        triples: Known triples (relation, head, tail).
        column: Column of the answers: `HEAD` or `TAIL`.
    """

    def __init__(self, triples: Int32[np.ndarray, "triples 3"], column: int) -> None:
        self._column = column
        self._size = 1 + int(triples[:, 3 - column].max(initial=0))
        keys = self._keys(triples)
        order = np.argsort(keys, kind="stable")
        self._sorted_keys, self.entities = keys[order], triples[order, column]

    def ranges(self, queries: Int32[np.ndarray, "queries 3"]) -> tuple[np.ndarray, np.ndarray]:
        """Return the start index in `entities` and the number of the known answers of each query.

        The column of the answers is ignored in `queries`.
        """
        keys = self._keys(queries)
        starts = np.searchsorted(self._sorted_keys, keys)
        counts = np.searchsorted(self._sorted_keys, keys, side="right") - starts
        return starts, np.where(queries[:, 3 - self._column] < self._size, counts, 0)

    def mask(
        self, queries: Int32[np.ndarray, "queries 3"], num_entities: int
    ) -> Bool[np.ndarray, "queries entities"]:
        """Return a mask of the entities that are known answers of each query."""
        rows, indices = expand_ranges(*self.ranges(queries))
        mask = np.zeros((len(queries), num_entities), bool)
        mask[rows, self.entities[indices]] = True
        return mask

    def _keys(self, triples: np.ndarray) -> np.ndarray:
        return encode_tuples((triples[:, 0], triples[:, 3 - self._column]), self._size)
