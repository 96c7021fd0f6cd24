"""Training triples as an embedding learns from them: drawn into minibatches, each with what is known of it.

The loss that uses them is in `kge_losses`; nothing but training triples is known here.
"""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Int32

from phalanx.proofs.kge_config import KGEConfig

Numbers = Array | np.ndarray


class Minibatch(eqx.Module):
    """Some triples, each of which asks two questions: which tail, and which head? Rows count from 0.

    Questions 0 to B - 1 are for the tails of the B triples, the next B for their heads.
    """

    triples: Int32[Numbers, "*steps batch 3"]
    candidates: Int32[Numbers, "*steps negatives"]
    """Distinct entities that every question is asked about; none where it is asked about all."""
    known: Int32[Numbers, "*steps room 2"]
    """(question, column of a candidate) of true answers; padded with a column that no candidate has."""


class _Answers(NamedTuple):
    """For triple i, `entities[starts[i]:][:counts[i]]` are true answers of its question, its own included."""

    starts: np.ndarray
    counts: np.ndarray
    entities: np.ndarray


class Examples:
    """Training triples, and for every question of theirs all its answers among them."""

    def __init__(
        self, triples: Int32[np.ndarray, "triples 3"], num_relations: int, num_entities: int
    ) -> None:
        """From (relation, head, tail) with the numbers of an `IndexManager`, in any order, twice or not."""
        if len(triples) == 0:
            raise ValueError("an embedding needs at least one training triple, got none")
        limits = np.array([num_relations, num_entities, num_entities])
        if wrong := np.flatnonzero(np.any((triples < 1) | (triples > limits), axis=1)).tolist():
            raise ValueError(
                f"triple {wrong[0]} is {triples[wrong[0]].tolist()}; relations are 1..{num_relations} and "
                f"entities 1..{num_entities}"
            )
        self.rows = (np.unique(triples, axis=0) - 1).astype(np.int32)
        self.num_relations, self.num_entities = num_relations, num_entities
        self._answers = tuple(self._grouped(given, asked) for given, asked in ((1, 2), (2, 1)))
        self._room = 0

    def __len__(self) -> int:
        return len(self.rows)

    def epoch(self, config: KGEConfig, epoch: int) -> Minibatch:
        """The minibatches of an epoch, stacked; the seed and the epoch's number decide them."""
        generator = np.random.default_rng((config.seed, epoch))
        steps = -(-len(self) // config.batch_size)
        # A little smaller than asked for if that fills the last one; a few triples may then come twice.
        size = -(-len(self) // steps)
        order = np.resize(generator.permutation(len(self)), (steps, size))
        drawn = [
            generator.choice(self.num_entities, config.negatives, replace=False, shuffle=False)
            for _ in range(steps)
        ]
        candidates = np.array(drawn, np.int32).reshape(steps, config.negatives)
        known = [self.known(batch, wrong) for batch, wrong in zip(order, candidates, strict=True)]
        return Minibatch(self.rows[order], candidates, self._padded(known, config.negatives))

    def known(
        self, batch: Int32[np.ndarray, " batch"] | np.ndarray, candidates: Int32[np.ndarray, " negatives"]
    ) -> Int32[np.ndarray, "found 2"]:
        """(question, column) of every answer that is among the candidates, or among all without any."""
        columns = np.arange(self.num_entities)
        if len(candidates):
            columns = np.full(self.num_entities, -1)
            columns[candidates] = np.arange(len(candidates))
        found = []
        for side, answers in enumerate(self._answers):
            counts = answers.counts[batch]
            question = np.repeat(np.arange(len(batch)), counts)
            within = np.arange(len(question)) - np.repeat(np.cumsum(counts) - counts, counts)
            column = columns[answers.entities[answers.starts[batch][question] + within]]
            pairs = np.stack([question + side * len(batch), column], axis=1)
            found.append(pairs[column >= 0])
        return np.concatenate(found).astype(np.int32)

    def _grouped(self, given: int, asked: int) -> _Answers:
        cells = self.rows[:, 0].astype(np.int64) * self.num_entities + self.rows[:, given]
        _, group, sizes = np.unique(cells, return_inverse=True, return_counts=True)
        first = np.cumsum(sizes) - sizes
        return _Answers(first[group], sizes[group], self.rows[np.argsort(group, kind="stable"), asked])

    def _padded(self, known: list[np.ndarray], negatives: int) -> Int32[np.ndarray, "steps room 2"]:
        """All of one length, a power of two that is never less than before: few lengths are compiled."""
        most = max(len(pairs) for pairs in known)
        if most > self._room:
            self._room = 1 << (most + most // 4).bit_length()
        outside = np.array([0, negatives or self.num_entities], np.int32)
        padded = np.tile(outside, (len(known), self._room, 1))
        for row, pairs in zip(padded, known, strict=True):
            row[: len(pairs)] = pairs
        return padded
