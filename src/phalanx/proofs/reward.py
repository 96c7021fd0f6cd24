"""What an episode of proof search pays at its end.

What a config may say about it is in `phalanx.proofs.config`; penalties and steps are in `environment`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from phalanx.proofs.config import ProofConfig, ProofRewardConfig


def final_reward(
    config: ProofRewardConfig,
    label: Bool[Array, "*batch"],
    proved: Bool[Array, "*batch"],
    given_up: Bool[Array, "*batch"],
) -> Float32[Array, "*batch"]:
    """The reward of an episode that ends now."""
    true_positive, false_negative, false_positive, true_negative = config.payoffs
    positive = jnp.where(proved, true_positive, false_negative)
    negative = jnp.where(proved, false_positive, true_negative)
    bonus = config.given_up_bonus if config.type == 5 else 0.0
    negative = negative + jnp.where(given_up, bonus, 0.0)
    return jnp.where(label, positive, negative).astype(jnp.float32)


def episode_reward(
    config: ProofConfig,
    label: Bool[Array, "*batch"],
    proved: Bool[Array, "*batch"],
    given_up: Bool[Array, "*batch"],
    log_score: Float32[Array, "*batch"] | None,
) -> Float32[Array, "*batch"]:
    """The same, where an embedding may have closed goals: the mean over the proof holding and not holding."""
    paid = final_reward(config.reward, label, proved, given_up)
    if log_score is None or config.kge_reward == "log":
        return paid
    refuted = final_reward(config.reward, label, jnp.zeros_like(proved), given_up)
    return jnp.where(proved, refuted + jnp.exp(log_score) * (paid - refuted), paid)
