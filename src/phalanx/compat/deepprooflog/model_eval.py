"""Evaluation of PyTorch policies: success per query, and link prediction."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from phalanx.extras import require_extra

with require_extra(__name__, "torch", "torch", "tensordict", "torchrl"):
    import torch
    from tensordict import TensorDictBase
    from tensordict.nn import InteractionType, set_interaction_type
    from torch import nn
    from torchrl.envs import ParallelEnv, SerialEnv

from phalanx.compat.deepprooflog.batched_env import KGE_SCORE_KEY, STEP_COUNT_KEY, BatchedVecEnv
from phalanx.kg.evaluation import (
    DEFAULT_TIES,
    LinkPredictionResult,
    Sides,
    TieRule,
    TripleScores,
    evaluate_candidates,
)
from phalanx.kg.kge.embedding import KGE
from phalanx.proofs.link_prediction import LinkPredictionConfig, ProofLinkPredictionTask, embedding_scorer
from phalanx.proofs.score_combination import HybridConfig, hybrid_scorer

Mode = Literal["rl", "kge", "hybrid"]
_LOG_PROB_KEYS = ("action_log_prob", "sample_log_prob")
"""Keys of the actions' log-probabilities in different versions of TorchRL."""


@dataclasses.dataclass(frozen=True)
class QueryEpisodes:
    """Results of one episode per query, in the order of the queries."""

    proved: Bool[np.ndarray, " queries"]
    """True for queries that were proved."""
    log_prob: Float64[np.ndarray, " queries"]
    """Sum of the log-probabilities of the episode's actions and of the goals that the embedding closed."""
    length: Int64[np.ndarray, " queries"]
    """Number of steps in the episode."""
    reward: Float64[np.ndarray, " queries"]
    """Sum of the rewards in the episode."""

    @property
    def scores(self) -> TripleScores:
        """Scores for link prediction. Queries that were not proved have a score of minus infinity."""
        log_prob = np.where(self.proved, self.log_prob, -math.inf)
        length = np.where(self.proved, self.length, -1)
        return TripleScores(score=log_prob, proved=self.proved, log_prob=log_prob, length=length)


def evaluate_policy_torchrl(
    actor: nn.Module, env: Any, queries: Any = None, *, labels: Any = None, deterministic: bool = True
) -> QueryEpisodes:
    """Run one episode of a TorchRL actor for each query.

    Args:
        actor: Module that maps tensordicts to tensordicts, such as a `ProbabilisticActor` with
            `return_log_prob=True`.
        env: A `BatchedVecEnv`, possibly transformed, or a `SerialEnv` or `ParallelEnv` of such environments.
            In the latter two cases, the first factory creates the environment that is used. The environment's
            own queries are restored afterward.
        queries: Queries to evaluate. Defaults to those of the environment.
        labels: Whether each query is true. None means that all are true. A true query is not used as a fact
            in its own proof.
        deterministic: Take the most probable actions instead of sampling them.
    """
    env, base = _find_batched_env(env)
    saved = base.queries, base.labels, base.query_depths, base.mode
    was_training = actor.training
    try:
        count = _configure_env_batch(env, saved[0] if queries is None else queries, labels)
        actor.eval()
        kind = InteractionType.DETERMINISTIC if deterministic else InteractionType.RANDOM
        with torch.no_grad(), set_interaction_type(kind):
            return _run_episodes(actor, env, base, count)
    finally:
        actor.train(was_training)
        base.queries, base.labels, base.query_depths, base.mode = saved


def evaluate_policy(
    actor: Any,
    env: Any,
    queries: Any,
    *,
    mode: Mode = "rl",
    kge_engine: KGE | None = None,
    n_corruptions: int | None = 100,
    sides: Sides | None = None,
    ties: TieRule = DEFAULT_TIES,
    hybrid: HybridConfig | None = None,
    deterministic: bool = True,
    seed: int = 0,
) -> LinkPredictionResult:
    """Rank true queries among corruptions that are not known triples.

    Args:
        actor: The policy. It is not needed in `kge` mode.
        env: A `BatchedVecEnv`, possibly transformed, or a `SerialEnv` or `ParallelEnv` of such environments.
        queries: True queries.
        mode: How triples are scored. `rl` is the log-probability of the episode that proves a triple, `kge`
            is the score of an embedding, and `hybrid` combines both with the weights of `hybrid`.
        kge_engine: The embedding, which is required in `kge` and `hybrid` mode.
        n_corruptions: Number of corruptions per query and side. If None, all corruptions are used.
        sides: Arguments that corruptions replace: `head`, `tail` or `both`. Defaults to `tail` if the
            knowledge base has several domains, and to `both` otherwise.
        ties: How to rank triples with equal scores.
        hybrid: Weights for `hybrid` mode. If None, the defaults are used.
        deterministic: Take the most probable actions instead of sampling them.
        seed: Seed for sampling corruptions and for the `random` tie rule.
    """
    if mode not in ("rl", "kge", "hybrid"):
        raise ValueError(f"mode must be rl, kge or hybrid, got {mode!r}")
    env, base = _find_batched_env(env)
    if mode != "rl" and kge_engine is None:
        raise ValueError(f"mode {mode!r} needs kge_engine, an embedding loaded by load_kge(run)")
    if mode != "kge" and actor is None:
        raise ValueError(f"mode {mode!r} needs an actor")

    def score_by_episode(triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores:
        queries = triples + np.int32(1)
        return evaluate_policy_torchrl(actor, env, queries, deterministic=deterministic).scores

    embedding = embedding_scorer(kge_engine)
    scorers = {
        "rl": score_by_episode,
        "kge": embedding,
        "hybrid": hybrid_scorer(score_by_episode, embedding, hybrid),
    }
    vocabulary = base.index_manager
    config = LinkPredictionConfig(num_candidates=n_corruptions, sides=sides, seed=seed)
    task = ProofLinkPredictionTask(base.data_handler, vocabulary, base.environment.config, config)
    encoded = queries if isinstance(queries, np.ndarray) else vocabulary.encode(list(queries))
    candidates = task.candidates(encoded - np.int32(1))
    return evaluate_candidates(scorers[mode], candidates, ties=ties, vocabulary=vocabulary.kg)


def _configure_env_batch(
    env: Any, queries: Any, labels: Sequence[int] | None = None, query_depths: Any = None
) -> int:
    """Configure an environment to use `queries`, in order, for its next episodes.

    Returns the number of queries.
    """
    _, base = _find_batched_env(env)
    base.mode, base.queries, base.labels, base.query_depths = "eval", queries, labels, query_depths
    return len(queries)


def _find_batched_env(env: Any) -> tuple[Any, BatchedVecEnv]:
    """Return the environment on which `step` must be called, and the `BatchedVecEnv` inside it.

    Queries cannot be assigned to the workers of a `SerialEnv` or `ParallelEnv`. If `env` is or wraps one of
    these, its first factory is called to create an equivalent environment in this process.
    """
    if isinstance(env, SerialEnv | ParallelEnv):
        return _find_batched_env(env.create_env_fn[0](**env.create_env_kwargs[0]))
    base = env if isinstance(env, BatchedVecEnv) else getattr(env, "base_env", env)
    if isinstance(base, SerialEnv | ParallelEnv):
        return _find_batched_env(base)
    if not isinstance(base, BatchedVecEnv):
        name = type(base).__name__
        raise TypeError(
            f"a policy is evaluated on a BatchedVecEnv, whose queries can be assigned, got {name}"
        )
    return env, base


def _run_episodes(actor: nn.Module, env: Any, base: BatchedVecEnv, count: int) -> QueryEpisodes:
    """Run one episode per query. An environment whose episode ends continues with the next query."""
    proved, length = np.zeros(count, bool), np.zeros(count, np.int64)
    log_prob, reward = np.zeros(count), np.zeros(count)
    remaining = np.ones(count, bool)
    size = base.batch_size[0]
    episode_log_prob, episode_reward = np.zeros(size), np.zeros(size)
    step = env.reset()
    while remaining.any():
        query = base.query_indices
        step, following = env.step_and_maybe_reset(actor(step))
        after = step["next"]
        episode_log_prob += _read_log_prob(step)
        episode_reward += after["reward"].reshape(size).double().cpu().numpy()
        done = after["done"].reshape(size).cpu().numpy().copy()
        # After the last query, the first ones are repeated; their second episodes do not count.
        first = np.flatnonzero(done & remaining[query])
        rows = query[first]
        kge_score = after[KGE_SCORE_KEY].double().cpu().numpy() if KGE_SCORE_KEY in after else np.zeros(size)
        proved[rows] = after["proved"].cpu().numpy()[first]
        length[rows] = after[STEP_COUNT_KEY].cpu().numpy()[first]
        log_prob[rows], reward[rows] = (episode_log_prob + kge_score)[first], episode_reward[first]
        remaining[rows] = False
        episode_log_prob[done], episode_reward[done] = 0.0, 0.0
        step = following
    return QueryEpisodes(proved, log_prob, length, reward)


def _read_log_prob(step: TensorDictBase) -> np.ndarray:
    for key in _LOG_PROB_KEYS:
        if key in step:
            return step[key].reshape(step.batch_size[0]).double().cpu().numpy()
    raise ValueError(
        "the actor does not return the log-probabilities of its actions; create it with "
        "ProbabilisticActor(..., return_log_prob=True)"
    )
