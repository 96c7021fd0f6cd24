"""Heuristics for best-first search: breadth-first, uniform, random, rule confidence and learned."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32
from pydantic import Field

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.nn.layers import Dense
from phalanx.proofs.search.best_first import Heuristic as Heuristic, SuccessorBatch
from phalanx.proofs.search.goal_features import (
    ATOM_FEATURES,
    STATE_FEATURES,
    GoalFeatureExtractor,
    GoalFeatures,
)

ROWS_PER_BATCH = 4096
"""Number of states that the network scores at a time. Smaller batches are padded to avoid recompilation."""
_SMALL_BATCH = 512
"""Batches with at most this number of states are padded to this size instead of `ROWS_PER_BATCH`."""
_NUM_GOAL_POSITIONS = 3
"""Size of the one-hot encoding of a goal's position in its state. The last entry stands for all positions
from the third on."""


class HeuristicNetworkConfig(Config):
    """Settings for the heuristic network."""

    hidden_dim: int = Field(default=32, ge=1)
    """Size of the predicate embeddings and of the hidden layers."""


class BreadthFirstHeuristic:
    """Heuristic that expands nodes with fewer steps first.

    Nodes with the same number of steps are expanded in the order in which they were found.
    """

    def costs(self, batch: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        ones = np.ones(len(batch.goals), np.float32)
        return ones, np.zeros_like(ones)


class UniformPolicyHeuristic:
    """Heuristic that expands the most probable paths under a uniform policy first.

    Ties are broken at random. Breaking them by program order would favor mined rules with a higher
    confidence, because these rules come first in the program.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def costs(self, batch: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        count = np.bincount(batch.owner, minlength=len(batch.parents))
        cost = np.log(np.maximum(count, 1))[batch.owner].astype(np.float32)
        return cost, 1e-3 * self._random.random(len(cost), np.float32)


class RandomHeuristic:
    """Heuristic that assigns a random cost to each node, so that the search order is random."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def costs(self, batch: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        cost_to_go = self._random.random(len(batch.goals), np.float32)
        return np.zeros_like(cost_to_go), cost_to_go


class ConfidenceHeuristic:
    """Heuristic that expands paths with the largest product of rule confidences first.

    Steps that use a fact have confidence 1. If two products are equal, the shorter path comes first.

    Args:
        confidence: Function that returns the confidence of the rule that led to each successor, such as
            `GoalFeatureExtractor.confidence`.
    """

    def __init__(self, confidence: Callable[[SuccessorBatch], Float32[np.ndarray, " successors"]]) -> None:
        self._confidence = confidence

    def costs(self, batch: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        cost = -np.log(np.maximum(self._confidence(batch), 1e-6)) + 1e-4
        return cost.astype(np.float32), np.zeros(len(cost), np.float32)


class HeuristicNetwork(eqx.Module):
    """Network that computes a policy logit and a value logit for each state.

    The probabilities of a node's successors are the softmax of their policy logits. The sigmoid of the value
    logit is the estimated probability that the state leads to a proof.
    """

    predicates: Float[Array, "predicates dim"]
    queries: Float[Array, "predicates dim"]
    atoms: Dense
    hidden: Dense
    last: Dense

    def __init__(self, num_predicates: int, hidden_dim: int, *, key: Key) -> None:
        keys = jax.random.split(key, 5)
        shape = (num_predicates + 1, hidden_dim)
        self.predicates = 0.3 * jax.random.normal(keys[0], shape)
        self.queries = 0.3 * jax.random.normal(keys[1], shape)
        self.atoms = Dense(hidden_dim + ATOM_FEATURES + _NUM_GOAL_POSITIONS, hidden_dim, key=keys[2])
        self.hidden = Dense(3 * hidden_dim + STATE_FEATURES, hidden_dim, key=keys[3])
        self.last = Dense(hidden_dim, 2, key=keys[4])

    def __call__(self, features: Any) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        is_goal = features.predicates > 0
        positions = jnp.minimum(jnp.arange(is_goal.shape[1]), _NUM_GOAL_POSITIONS - 1)
        position = jnp.broadcast_to(
            jax.nn.one_hot(positions, _NUM_GOAL_POSITIONS), (*is_goal.shape, _NUM_GOAL_POSITIONS)
        )
        parts = [self.predicates[features.predicates], features.atoms, position]
        goals = jax.nn.relu(self.atoms(jnp.concatenate(parts, axis=-1)))
        goals = jnp.where(is_goal[..., None], goals, 0.0)
        query = self.queries[features.queries]
        # The product makes the value of a goal depend on the query.
        state = [jnp.sum(goals, axis=1), goals[:, 0] * query, query, features.states]
        logit, value = self.last(jax.nn.relu(self.hidden(jnp.concatenate(state, axis=-1)))).T
        return logit, value


class LearnedHeuristic:
    """Heuristic that is computed by a `HeuristicNetwork`.

    The cost of a step is the negative log-probability of the successor. The estimated remaining cost is the
    negative log-probability that the successor leads to a proof, multiplied by `heuristic_weight`.

    Args:
        network: The network.
        features: Computes the inputs of the network.
        heuristic_weight: Weight of the estimated remaining cost.
    """

    def __init__(
        self, network: HeuristicNetwork, features: GoalFeatureExtractor, heuristic_weight: float
    ) -> None:
        self.network, self._features, self._remaining_cost_weight = network, features, heuristic_weight

    def costs(
        self, batch: SuccessorBatch
    ) -> tuple[Float32[np.ndarray, " successors"], Float32[np.ndarray, " successors"]]:
        logits, values = score_successors(self.network, self._features(batch))
        largest = np.full(len(batch.parents), -np.inf)
        np.maximum.at(largest, batch.owner, logits)
        shifted = logits - largest[batch.owner]
        total = np.bincount(batch.owner, weights=np.exp(shifted), minlength=len(largest))
        cost = np.log(np.maximum(total, 1e-30))[batch.owner] - shifted
        return cost.astype(np.float32), (self._remaining_cost_weight * np.logaddexp(0, -values)).astype(
            np.float32
        )


def score_successors(network: HeuristicNetwork, features: GoalFeatures) -> tuple[np.ndarray, np.ndarray]:
    """Compute the policy logits and the value logits of the successors that `features` describes.

    The network processes at most `ROWS_PER_BATCH` successors at a time.
    """
    parts = []
    for start in range(0, len(features.predicates), ROWS_PER_BATCH):
        batch = GoalFeatures(*(leaf[start : start + ROWS_PER_BATCH] for leaf in features))
        count = len(batch.predicates)
        found = _forward(network, pad_features(batch, _SMALL_BATCH if count <= _SMALL_BATCH else None))
        parts.append([np.asarray(leaf)[:count] for leaf in found])
    logits, values = (np.concatenate(leaves) for leaves in zip(*parts, strict=True))
    return logits.astype(np.float64), values.astype(np.float64)


_forward = eqx.filter_jit(HeuristicNetwork.__call__)


def pad_features(features: GoalFeatures, num_rows: int | None = None) -> GoalFeatures:
    """Pad features with zeros to `num_rows` states. If it is None, `ROWS_PER_BATCH` is used."""
    missing = (ROWS_PER_BATCH if num_rows is None else num_rows) - len(features.predicates)
    return GoalFeatures(*(np.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)) for leaf in features))
