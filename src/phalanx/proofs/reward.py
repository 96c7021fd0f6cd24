"""Rewards for proof episodes."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from phalanx.proofs.config import ProofConfig, ProofRewardConfig


def final_reward(
    config: ProofRewardConfig,
    label: Bool[Array, "*batch"],
    proved: Bool[Array, "*batch"],
    gave_up: Bool[Array, "*batch"],
) -> Float32[Array, "*batch"]:
    """Return the final reward of each episode, ignoring the probabilities of goals closed by an embedding.

    Args:
        config: The reward settings.
        label: True for true queries.
        proved: True for episodes that ended with a proof.
        gave_up: True for episodes that ended with the end action.
    """
    true_positive, false_negative, false_positive, true_negative = config.payoffs
    positive = jnp.where(proved, true_positive, false_negative)
    negative = jnp.where(proved, false_positive, true_negative)
    bonus = config.give_up_bonus if config.type == 5 else 0.0
    negative = negative + jnp.where(gave_up, bonus, 0.0)
    return jnp.where(label, positive, negative).astype(jnp.float32)


def episode_reward(
    config: ProofConfig,
    label: Bool[Array, "*batch"],
    proved: Bool[Array, "*batch"],
    gave_up: Bool[Array, "*batch"],
    log_score: Float32[Array, "*batch"] | None,
) -> Float32[Array, "*batch"]:
    """Return the final reward of each episode.

    If there is an embedding and `config.kge_reward` is `probability`, a proof is valid with probability
    p = exp(log_score). The reward of a proof is then its expected value: p times the reward for proving the
    query, plus 1 - p times the reward for not proving it.

    Args:
        config: The environment settings.
        label: True for true queries.
        proved: True for episodes that ended with a proof.
        gave_up: True for episodes that ended with the end action.
        log_score: Sum of the log-probabilities of the goals that the embedding closed. None if there is no
            embedding.
    """
    reward = final_reward(config.reward, label, proved, gave_up)
    if log_score is None or config.kge_reward == "log":
        return reward
    without_proof = final_reward(config.reward, label, jnp.zeros_like(proved), gave_up)
    return jnp.where(proved, without_proof + jnp.exp(log_score) * (reward - without_proof), reward)
