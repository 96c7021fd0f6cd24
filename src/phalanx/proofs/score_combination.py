"""A learned combination of proofs and an embedding: a conditional logit, fitted to rank positives first.

Fixed weights are in `rank`. What it is fitted to must be no test data: use the validation split.
"""

import dataclasses
import os

import numpy as np
from jaxtyping import Float64, Int

from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import CorruptFileError, read_verified_json, write_json
from phalanx.kg.candidates import CandidateLists
from phalanx.kg.evaluation import Score, TripleScores
from phalanx.kg.vocabulary import IndexManager

FEATURES = ("log_belief", "kge_score", "proved", "log_prob", "length")
"""The embedding's two scores, whether there is a proof, and its log-probability and length (0 without)."""
_LEAST_LOG_BELIEF = -30.0
_STEPS = 50
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class ScoreCombination:
    """Weights of the features of a triple: some for all predicates, and what each predicate adds to them."""

    predicates: tuple[str, ...]
    """Names of the predicates 1, 2, ..."""
    mean: Float64[np.ndarray, " features"]
    scale: Float64[np.ndarray, " features"]
    """A feature is taken from its mean, over its scale."""
    shared: Float64[np.ndarray, " features"]
    own: Float64[np.ndarray, "predicates features"]

    def score(
        self, predicate: Int[np.ndarray, " triples"], features: Float64[np.ndarray, "triples features"]
    ) -> Float64[np.ndarray, " triples"]:
        """Greater is better."""
        weights = self.shared + self.own[predicate - 1]
        return np.sum((features - self.mean) / self.scale * weights, axis=1)

    def scorer(self, search: Score, embedding: Score) -> Score:
        """A scorer that asks both and combines them."""

        def score(triples: np.ndarray) -> TripleScores:
            found, believed = search(triples), embedding(triples)
            total = self.score(triples[:, 0], features_of(found, believed))
            return dataclasses.replace(found, score=total, log_belief=believed.log_belief)

        return score

    def save(self, path: str | os.PathLike[str]) -> None:
        """As JSON."""
        record = {
            "version": _VERSION,
            "features": FEATURES,
            "predicates": self.predicates,
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "shared": self.shared.tolist(),
            "own": self.own.tolist(),
        }
        with atomic_write(path, "w", checksum=True) as file:
            write_json(file, record, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str], index: IndexManager) -> "ScoreCombination":
        """From JSON; the predicates must be those of the index."""
        try:
            record = read_verified_json(path, "fit it again")
            names, features, version = tuple(record["predicates"]), record["features"], record["version"]
            arrays = [np.array(record[name], np.float64) for name in ("mean", "scale", "shared", "own")]
        except CorruptFileError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a combination that was saved here: {error!r}") from error
        if version != _VERSION or tuple(features) != FEATURES:
            raise ValueError(
                f"{path} is of version {version} with features {features}; this is version {_VERSION} with "
                f"{list(FEATURES)}: fit it again"
            )
        if names != index.predicates:
            raise ValueError(f"{path} was fitted for other predicates than {', '.join(index.predicates)}")
        shapes = [(len(FEATURES),)] * 3 + [(len(names), len(FEATURES))]
        if [array.shape for array in arrays] != shapes:
            raise ValueError(f"{path} has {[array.shape for array in arrays]} numbers instead of {shapes}")
        return cls(names, *arrays)


def features_of(search: TripleScores, embedding: TripleScores) -> Float64[np.ndarray, "triples features"]:
    """The columns of `FEATURES`."""
    proved, log_prob, length, log_belief = search.proved, search.log_prob, search.length, embedding.log_belief
    if proved is None or length is None or log_belief is None:
        raise ValueError("a combination needs a search that proves and an embedding that believes")
    # The exact prover gives proofs no probability; its length says as much.
    log_prob = np.zeros(len(proved)) if log_prob is None else log_prob
    columns = (
        np.maximum(log_belief, _LEAST_LOG_BELIEF),
        embedding.score,
        proved,
        np.where(proved, log_prob, 0.0),
        np.where(proved, length, 0),
    )
    return np.stack(columns, axis=1).astype(np.float64)


def fit_combination(
    candidates: CandidateLists,
    features: Float64[np.ndarray, "candidates features"],
    index: IndexManager,
    *,
    shared_penalty: float = 1e-2,
    own_penalty: float = 3.0,
) -> ScoreCombination:
    """The most likely weights: a positive is first in its list with its softmax probability.

    Each predicate's own weights are held near 0 by `own_penalty`, half of it times their squares, so that one
    with few queries keeps to what holds for all. The problem is convex, and Newton's method solves it.
    """
    mean, scale = features.mean(axis=0), features.std(axis=0)
    # Rounding gives a column of equal numbers a deviation too.
    scale = np.where(scale > 1e-9 * (1 + np.abs(mean)), scale, 1.0)
    problem = _Logit(candidates, (features - mean) / scale, index.num_predicates, shared_penalty, own_penalty)
    weights = problem.solve()
    return ScoreCombination(index.predicates, mean, scale, weights[0], weights[1:])


class _Logit:
    """The penalized likelihood of positives at the head of their lists, all of a list of one predicate."""

    def __init__(
        self, candidates: CandidateLists, x: np.ndarray, num_predicates: int, shared: float, own: float
    ) -> None:
        self.x, self.starts, self.list_of = x, candidates.starts, candidates.list_of
        self.first = candidates.starts[:-1]
        self.predicate = candidates.triples[:, 0].astype(np.int64) - 1
        self.penalty = np.full((num_predicates + 1, 1), own)
        self.penalty[0] = shared

    def _shares(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss, and each candidate's softmax share of its list."""
        value = np.einsum("cf,cf->c", self.x, (weights[0] + weights[1:])[self.predicate])
        value -= np.maximum.reduceat(value, self.first)[self.list_of]
        power = np.exp(value)
        total = np.add.reduceat(power, self.first)
        loss = float(np.sum(np.log(total) - value[self.first]))
        return loss + float(np.sum(self.penalty * weights**2)) / 2, power / total[self.list_of]

    def solve(self) -> np.ndarray:
        """Row 0 for all predicates, then one for each."""
        rows, width = self.penalty.shape[0], self.x.shape[1]
        weights = np.zeros((rows, width))
        loss, share = self._shares(weights)
        for _ in range(_STEPS):
            gradient, curvature = self._derivatives(weights, share)
            step = np.linalg.solve(curvature, gradient.reshape(-1)).reshape(rows, width)
            decrease = float(np.sum(step * gradient))
            if decrease < 1e-9 * (1 + abs(loss)):
                break
            size = 1.0
            while True:
                new_loss, new_share = self._shares(weights - size * step)
                if new_loss <= loss - 1e-4 * size * decrease or size < 1e-6:
                    break
                size /= 2
            weights, loss, share = weights - size * step, new_loss, new_share
        return weights

    def _derivatives(self, weights: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, width = weights.shape
        gradient = self.penalty * weights
        curvature = np.zeros((rows, width, rows, width))
        expected = np.add.reduceat(self.x * share[:, None], self.first, axis=0)
        for number in np.unique(self.predicate).tolist():
            mine, lists = self.predicate == number, self.predicate[self.first] == number
            slope = np.sum(expected[lists] - self.x[self.first[lists]], axis=0)
            x = self.x[mine]
            bend = (x * share[mine, None]).T @ x - expected[lists].T @ expected[lists]
            gradient[0] += slope
            gradient[number + 1] += slope
            for one in (0, number + 1):
                for other in (0, number + 1):
                    curvature[one, :, other] += bend
        flat = curvature.reshape(rows * width, rows * width)
        flat[np.diag_indices_from(flat)] += np.repeat(self.penalty[:, 0], width)
        return gradient, flat
