"""How often a policy answers a query right: positives proved, corruptions not, by depth.

Playing the episodes is in `evaluation`. How a policy ranks true triples among corruptions, with search, is in
`search.ranking`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from phalanx.core.episodes import map_batches, rollout_episodes
from phalanx.nn.policy_network import PolicyNetwork, select_action
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.queries import SampledQueries, corrupt

_BATCH_SIZE = 256
"""Episodes played together at most."""
NEGATIVE, UNPROVABLE = "corrupted", "no proof"
"""What negatives and positives without a proof are told under; others are `depth 1`, `depth 2`, ..."""


@dataclasses.dataclass(frozen=True)
class ProverEvaluation:
    """What a policy made of some queries."""

    episodes: int
    success_rate: float
    """Share of right answers: positives that were proved, negatives that were not."""
    success_rate_se: float | None
    """Its standard error; none for a single query."""
    proved_share: float | None
    """Of the positives."""
    false_proof_share: float | None
    """Of the negatives; rules that are not always right prove some."""
    overflow_share: float
    """Queries that had more successors than fit."""
    steps_to_solve: float | None
    """Mean over the proved positives."""
    families: dict[str, dict[str, float]]
    """Episodes and share of right answers: of the positives of each depth, and of the negatives."""

    def as_record(self, split: str) -> dict[str, Any]:
        """A line of a run's `evaluations.jsonl`; when it was made, the run adds."""
        return {"split": split, "mode": "greedy", **dataclasses.asdict(self)}


def held_out_queries(environment: ProofEnvironment, most: int | None, seed: int = 0) -> SampledQueries:
    """Positives of an environment, at most so many by the seed, and a corruption of each that has one."""
    queries = environment.queries
    rows = np.arange(len(queries))
    random = np.random.default_rng(seed)
    if most is not None and most < len(rows):
        rows = np.sort(random.choice(len(rows), most, replace=False))
    positives, depths = queries.positives[rows], queries.depths[rows]
    words = random.integers(0, 2**32, (len(rows), 3), dtype=np.uint32)
    negatives, possible = jax.device_get(_corrupted(environment, *jax.device_put((positives, words))))
    negatives = negatives[possible]
    return SampledQueries(
        jax.device_put(np.concatenate([positives, negatives])),
        jax.device_put(np.arange(len(positives) + len(negatives)) < len(positives)),
        jax.device_put(np.concatenate([depths, np.full(len(negatives), -1, np.int32)])),
    )


@eqx.filter_jit
def _corrupted(environment: ProofEnvironment, positives: Array, words: Array) -> tuple[Array, Array]:
    kind, known = environment.config.queries.corruption, environment.known.arrays
    return jax.vmap(lambda positive, drawn: corrupt(known, kind, positive, drawn))(positives, words)


def evaluate_prover(
    environment: ProofEnvironment,
    network: PolicyNetwork,
    drawn: SampledQueries,
    batch_size: int = _BATCH_SIZE,
) -> ProverEvaluation:
    """Let the greedy policy try to prove some queries, in batches of one size."""
    count = drawn.label.shape[0]
    if count == 0:
        raise ValueError("there are no queries to evaluate")

    # Rows are taken on the host: a device would run a program for each leaf.
    drawn = jax.device_get(drawn)

    def attempt(rows: Int[np.ndarray, " batch"]) -> tuple[Array, ...]:
        return _attempt(environment, network, jax.tree.map(lambda leaf: leaf[rows], drawn))

    proved, lengths, overflow = map_batches(attempt, count, batch_size)
    return _scores(proved, lengths, overflow, np.asarray(drawn.label), np.asarray(drawn.depth))


@eqx.filter_jit
def _attempt(
    environment: ProofEnvironment, network: PolicyNetwork, drawn: SampledQueries
) -> tuple[Bool[Array, " batch"], Int32[Array, " batch"], Bool[Array, " batch"]]:
    """Whether proved, length, and whether successors of the query were cut."""
    states, observations = environment.reset_to(*drawn)
    limit = environment.config.max_depth
    played = rollout_episodes(
        environment, eqx.Partial(select_action, network), states, observations, None, limit
    )
    return played.episode_metrics["success_mask"] == drawn.label, played.lengths, states.overflow


def _scores(
    proved: Bool[np.ndarray, " queries"],
    lengths: Int[np.ndarray, " queries"],
    overflow: Bool[np.ndarray, " queries"],
    label: Bool[np.ndarray, " queries"],
    depth: Int[np.ndarray, " queries"],
) -> ProverEvaluation:
    right = proved == label
    named: dict[str, Bool[np.ndarray, " queries"]] = {
        f"depth {d}": label & (depth == d) for d in np.unique(depth[label]).tolist() if d >= 0
    }
    named |= {UNPROVABLE: label & (depth < 0), NEGATIVE: ~label}

    def share(of: Callable[[], np.ndarray], among: np.ndarray) -> float | None:
        return float(of()[among].mean()) if among.any() else None

    rate = float(right.mean())
    spread = math.sqrt(rate * (1 - rate) / (len(right) - 1)) if len(right) > 1 else None
    return ProverEvaluation(
        episodes=len(right),
        success_rate=rate,
        success_rate_se=spread,
        proved_share=share(lambda: proved, label),
        false_proof_share=share(lambda: proved, ~label),
        overflow_share=float(overflow.mean()),
        steps_to_solve=share(lambda: lengths, label & proved),
        families={
            name: {"episodes": int(mine.sum()), "success_rate": float(right[mine].mean())}
            for name, mine in named.items()
            if mine.any()
        },
    )
