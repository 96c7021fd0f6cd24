"""Torch policies on `BatchedVecEnv`: what they make of queries, and how they rank them among corruptions.

Ranking itself is in `phalanx.kg`; a policy in JAX, with search, is ranked in `phalanx.training`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int32, Int64
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import nn

from phalanx.compat.deepprooflog.batched_env import KGE_SCORE, STEPS, BatchedVecEnv
from phalanx.kg.candidates import Sides, Ties, make_candidates, usual_sides
from phalanx.kg.evaluation import (
    HybridConfig,
    LinkPredictionResult,
    Score,
    TripleScores,
    embedding_scorer,
    evaluate_ranking,
    hybrid_scorer,
)
from phalanx.kg.kge.embedding import KGE
from phalanx.kg.vocabulary import check_binary

Mode = Literal["rl", "kge", "hybrid"]
_LOG_PROBS = ("action_log_prob", "sample_log_prob")
"""Where actors of different versions of TorchRL write how probable their actions were."""


@dataclasses.dataclass(frozen=True)
class QueryEpisodes:
    """What a policy made of some queries, one episode each, in their order."""

    proved: Bool[np.ndarray, " queries"]
    log_prob: Float64[np.ndarray, " queries"]
    """Of all actions of the episode, and of the goals that an embedding closed."""
    length: Int64[np.ndarray, " queries"]
    reward: Float64[np.ndarray, " queries"]

    @property
    def scores(self) -> TripleScores:
        """As ranking reads them: unproved ones below all others."""
        log_prob = np.where(self.proved, self.log_prob, -math.inf)
        length = np.where(self.proved, self.length, -1)
        return TripleScores(score=log_prob, proved=self.proved, log_prob=log_prob, length=length)


def evaluate_policy_torchrl(
    actor: nn.Module, env: Any, queries: Any = None, *, labels: Any = None, deterministic: bool = True
) -> QueryEpisodes:
    """Let a TorchRL actor try each query once; by default those that the environment has.

    The actor takes and gives tensordicts, as `ProbabilisticActor` with `return_log_prob=True`.
    `deterministic` takes the most probable actions. A query without a label is taken for true: it may not
    serve as its own fact. The environment, transformed or not, keeps its own queries afterwards.
    """
    base = _batched(env)
    kept = base.queries, base.labels, base.query_depths, base.mode
    training = actor.training
    try:
        count = _configure_env_batch(env, kept[0] if queries is None else queries, labels)
        actor.eval()
        kind = InteractionType.DETERMINISTIC if deterministic else InteractionType.RANDOM
        with torch.no_grad(), set_interaction_type(kind):
            return _attempts(actor, env, base, count)
    finally:
        actor.train(training)
        base.queries, base.labels, base.query_depths, base.mode = kept


def evaluate_policy(
    actor: nn.Module | None,
    env: Any,
    queries: Any,
    *,
    mode: Mode = "rl",
    kge_engine: KGE | None = None,
    n_corruptions: int | None = 100,
    sides: Sides | None = None,
    ties: Ties = "random",
    hybrid: HybridConfig | None = None,
    deterministic: bool = True,
    seed: int = 0,
) -> LinkPredictionResult:
    """Rank true queries among corruptions of them, none of which is known, by a torch policy.

    `rl` ranks by the log-probability of the episode that proves a triple, `kge` by an embedding's score and
    `hybrid` by both with the weights of `HybridConfig`. `n_corruptions` are drawn for each query and side;
    None takes all there are.
    """
    if mode not in ("rl", "kge", "hybrid"):
        raise ValueError(f"mode must be rl, kge or hybrid, got {mode!r}")
    base = _batched(env)
    index, data = base.index_manager, base.data_handler
    check_binary(index, "rankings among corruptions")
    encoded = queries if isinstance(queries, np.ndarray) else index.encode_atoms(list(queries))
    candidates = make_candidates(
        encoded,
        index.encode_atoms(tuple(data.known)),
        index.num_constants,
        sides=sides or usual_sides(data),
        corruptions=n_corruptions,
        domains=index.constant_domains,
        seed=seed,
    )
    score = _scorer(mode, actor, env, kge_engine, hybrid, deterministic)
    return evaluate_ranking(score, candidates, ties=ties, index=index)


def _scorer(
    mode: Mode,
    actor: nn.Module | None,
    env: Any,
    kge: KGE | None,
    hybrid: HybridConfig | None,
    deterministic: bool,
) -> Score:
    if mode != "rl" and kge is None:
        raise ValueError(f"mode {mode!r} needs kge_engine, an embedding as load_kge(folder, names) reads it")
    if mode == "kge" and kge is not None:
        return embedding_scorer(kge)
    if actor is None:
        raise ValueError(f"mode {mode!r} needs an actor")

    def attempt(triples: Int32[np.ndarray, "triples atom"]) -> TripleScores:
        return evaluate_policy_torchrl(actor, env, triples, deterministic=deterministic).scores

    return attempt if mode == "rl" or kge is None else hybrid_scorer(attempt, embedding_scorer(kge), hybrid)


def _configure_env_batch(
    env: Any, queries: Any, labels: Sequence[int] | None = None, query_depths: Any = None
) -> int:
    """Let an environment start from these queries in their order; returns how many there are."""
    base = _batched(env)
    base.mode, base.queries, base.labels, base.query_depths = "eval", queries, labels, query_depths
    return len(queries)


def _batched(env: Any) -> BatchedVecEnv:
    base = getattr(env, "base_env", env)
    if not isinstance(base, BatchedVecEnv):
        raise TypeError(
            f"a policy is evaluated on a BatchedVecEnv, whose queries can be assigned, got "
            f"{type(base).__name__}; environments in worker processes are not reached from here"
        )
    return base


def _attempts(actor: nn.Module, env: Any, base: BatchedVecEnv, count: int) -> QueryEpisodes:
    """One episode of each query: an environment that ends takes the next one."""
    proved, length = np.zeros(count, bool), np.zeros(count, np.int64)
    log_prob, reward = np.zeros(count), np.zeros(count)
    left = np.ones(count, bool)
    size = base.batch_size[0]
    so_far, paid = np.zeros(size), np.zeros(size)
    step = env.reset()
    while left.any():
        asked = base.query_indices
        step = env.step(actor(step))
        after = step["next"]
        so_far += _log_prob(step)
        paid += after["reward"].reshape(size).double().cpu().numpy()
        done = after["done"].reshape(size).cpu().numpy().copy()
        # After the last query the first ones come again; their second attempts count for nothing.
        first = np.flatnonzero(done & left[asked])
        rows = asked[first]
        closed = after[KGE_SCORE].double().cpu().numpy() if KGE_SCORE in after else np.zeros(size)
        proved[rows] = after["proved"].cpu().numpy()[first]
        length[rows] = after[STEPS].cpu().numpy()[first]
        log_prob[rows], reward[rows] = (so_far + closed)[first], paid[first]
        left[rows] = False
        so_far[done], paid[done] = 0.0, 0.0
        step = _continued(env, after, done)
    return QueryEpisodes(proved, log_prob, length, reward)


def _continued(env: Any, after: TensorDictBase, done: np.ndarray) -> TensorDictBase:
    if not done.any():
        return after.exclude("reward")
    after = after.exclude("reward")
    after["_reset"] = torch.from_numpy(done).to(after.device or "cpu").unsqueeze(-1)
    return env.reset(after)


def _log_prob(step: TensorDictBase) -> np.ndarray:
    for name in _LOG_PROBS:
        if name in step:
            return step[name].reshape(step.batch_size[0]).double().cpu().numpy()
    raise ValueError(
        "the actor does not tell how probable its actions are; make it with "
        "ProbabilisticActor(..., return_log_prob=True)"
    )
