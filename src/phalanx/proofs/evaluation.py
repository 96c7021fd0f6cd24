"""Evaluation of provers by the fractions of true and false queries that the greedy policy proves.

A positive is a true query, and a negative is a corruption of a true query.
"""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from phalanx.core.episodes import map_batches, rollout_episodes
from phalanx.nn.policy_network import PolicyNetwork, select_action
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.queries import SampledQuery, corrupt

_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True)
class ProverEvaluationResult:
    """Results of the greedy policy on a set of queries, with one episode per query."""

    episodes: int
    """Number of episodes, which is the number of queries."""
    success_rate: float
    """Fraction of episodes in which a positive was proved or a negative was not proved."""
    success_rate_se: float | None
    """Standard error of the success rate, or None if there is only one query."""
    proved_rate: float | None
    """Fraction of positives that were proved, or None if there are no positives."""
    false_proof_rate: float | None
    """Fraction of negatives that were proved, or None if there are no negatives. It is usually not 0, because
    rules are not always correct."""
    overflow_rate: float
    """Fraction of queries whose initial state has more successors than `max_actions`."""
    mean_proof_length: float | None
    """Mean number of steps in the episodes in which a positive was proved, or None if none was proved."""
    groups: dict[str, dict[str, float]]
    """For each group of queries, its number of `episodes` and its `success_rate`. Positives are grouped by
    proof depth: `depth 1`, `depth 2`, and so on, or `no proof` if a query has no proof or its depth is not
    known. All negatives are in the group `corrupted`."""
    split: str = ""
    """Split of the queries."""

    def as_record(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values."""
        values = dataclasses.asdict(self)
        return {"split": values.pop("split"), "mode": "greedy", **values}

    def describe(self) -> list[str]:
        """Return the results as lines of text: one line for all queries, followed by one line per group."""
        total = f"{self.split}, {self.episodes} queries: {self.success_rate:.1%} correct"
        if self.proved_rate is not None:
            total += f", {self.proved_rate:.1%} of true queries proved"
        if self.false_proof_rate is not None:
            total += f", {self.false_proof_rate:.1%} of false queries proved"
        width = max(map(len, self.groups))
        return [total] + [
            f"  {name:<{width}}  {group['episodes']:5d}: {group['success_rate']:.1%}"
            for name, group in self.groups.items()
        ]


@functools.lru_cache(maxsize=8)
def sample_held_out_queries(environment: ProofEnvironment, max_queries: int | None) -> SampledQuery:
    """Sample positives from an environment's queries, and one corruption of each positive.

    The same arguments always give the same sample.

    Args:
        environment: The environment with the queries.
        max_queries: Maximum number of positives. If None, all positives of the environment are used.

    Returns:
        The positives, followed by their corruptions. If every corruption of a positive is a known triple, the
        positive has no corruption in the result.
    """
    queries = environment.queries
    rows = np.arange(len(queries))
    generator = np.random.default_rng(0)
    if max_queries is not None and max_queries < len(rows):
        rows = np.sort(generator.choice(len(rows), max_queries, replace=False))
    positives, depths = queries.positives[rows], queries.depths[rows]
    bits = generator.integers(0, 2**32, (len(rows), 3), dtype=np.uint32)
    negatives, possible = jax.device_get(_corrupt_batch(environment, *jax.device_put((positives, bits))))
    negatives = negatives[possible]
    return SampledQuery(
        jax.device_put(np.concatenate([positives, negatives])),
        jax.device_put(np.arange(len(positives) + len(negatives)) < len(positives)),
        jax.device_put(np.concatenate([depths, np.full(len(negatives), -1, np.int32)])),
    )


def query_groups(queries: SampledQuery) -> list[str]:
    """Return the group of each query; see `ProverEvaluationResult.groups`."""
    pairs = zip(np.asarray(queries.label).tolist(), np.asarray(queries.depth).tolist(), strict=True)
    return [
        "corrupted" if not label else "no proof" if depth < 0 else f"depth {depth}" for label, depth in pairs
    ]


@eqx.filter_jit
def _corrupt_batch(environment: ProofEnvironment, positives: Array, bits: Array) -> tuple[Array, Array]:
    corruption, known = environment.config.queries.corruption, environment.known.arrays
    return jax.vmap(lambda positive, row: corrupt(known, corruption, positive, row))(positives, bits)


def evaluate_prover(
    environment: ProofEnvironment,
    network: PolicyNetwork,
    queries: SampledQuery,
    *,
    batch_size: int = _BATCH_SIZE,
) -> ProverEvaluationResult:
    """Evaluate a policy by running one greedy episode per query.

    Args:
        environment: The environment in which the episodes run. The environment's own queries are not used.
        network: Policy network.
        queries: Positives and negatives with their proof depths.
        batch_size: Number of episodes that run at a time.
    """
    count = queries.label.shape[0]
    if count == 0:
        raise ValueError("there are no queries to evaluate")

    # Rows are selected on the host, because a device would run one program per array.
    queries = jax.device_get(queries)

    def attempt(rows: Int[np.ndarray, " batch"]) -> tuple[Array, ...]:
        return _attempt(environment, network, jax.tree.map(lambda leaf: leaf[rows], queries))

    proved, lengths, overflow = map_batches(attempt, count, batch_size)
    label, depth = np.asarray(queries.label), np.asarray(queries.depth)
    correct = proved == label
    names = query_groups(queries)
    ordered = [f"depth {d}" for d in np.unique(depth[label]).tolist() if d >= 0] + ["no proof", "corrupted"]
    masks = {name: np.array([own == name for own in names]) for name in ordered}

    def mean(values: np.ndarray, mask: np.ndarray) -> float | None:
        return float(values[mask].mean()) if mask.any() else None

    rate = float(correct.mean())
    return ProverEvaluationResult(
        episodes=count,
        success_rate=rate,
        success_rate_se=math.sqrt(rate * (1 - rate) / (count - 1)) if count > 1 else None,
        proved_rate=mean(proved, label),
        false_proof_rate=mean(proved, ~label),
        overflow_rate=float(overflow.mean()),
        mean_proof_length=mean(lengths, label & proved),
        groups={
            name: {"episodes": int(mask.sum()), "success_rate": float(correct[mask].mean())}
            for name, mask in masks.items()
            if mask.any()
        },
        split=environment.config.split,
    )


@eqx.filter_jit
def _attempt(
    environment: ProofEnvironment, network: PolicyNetwork, queries: SampledQuery
) -> tuple[Bool[Array, " batch"], Int32[Array, " batch"], Bool[Array, " batch"]]:
    """Run one greedy episode per query.

    Returns:
        For each query, whether it was proved, the number of steps in the episode, and whether successors of
        the initial state were cut off.
    """
    states, observations = environment.reset_to(*queries)
    limit = environment.config.max_episode_steps
    results = rollout_episodes(
        environment, eqx.Partial(select_action, network), states, observations, None, limit
    )
    return results.episode_metrics["success_mask"] == queries.label, results.lengths, states.node.overflow
