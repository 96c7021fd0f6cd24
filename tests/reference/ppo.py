"""Reference implementation of PPO's loss on the short walk, for the entire batch at once.

It shares only the settings with `phalanx.training.ppo`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.training.ppo import PPOConfig
from phalanx.training.rollout import Rollout
from tests.helpers.short_walk import CELLS, Sight, WalkNetwork


def forward(net: WalkNetwork, sights: Sight) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of both moves, and values, for a flat batch."""
    here = jnp.concatenate([jnp.eye(CELLS)[sights.position], 0.1 * sights.clock[:, None]], axis=1)
    hidden = jnp.tanh(here @ net.hidden.weight + net.hidden.bias)
    logits = hidden @ net.policy.weight + net.policy.bias
    weights = jnp.exp(logits) * sights.action_mask
    return jnp.log(weights / weights.sum(1, keepdims=True) + 1e-30), (hidden @ net.value.weight)[
        :, 0
    ] + net.value.bias


def reference_advantages(rollout: Rollout, next_values: np.ndarray, config: PPOConfig) -> np.ndarray:
    """Compute the advantages with a backward loop over each environment."""
    gamma, steps = config.gamma, rollout.rewards.shape[0]
    result = np.zeros(rollout.rewards.shape)
    for b in range(rollout.rewards.shape[1]):
        later = 0.0
        for t in reversed(range(steps)):
            later *= not rollout.done[t, b]
            worth = 0.0 if rollout.terminated[t, b] else next_values[t, b]
            later = (
                rollout.rewards[t, b]
                + gamma * worth
                - rollout.values[t, b]
                + gamma * config.gae_lambda * later
            )
            result[t, b] = later
    return result


def reference_loss(
    net: WalkNetwork, rollout: Rollout, advantages: np.ndarray, entropy_weight: float, config: PPOConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    sights, actions = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (rollout.observations, rollout.actions)
    )
    old_logs, old_values = rollout.log_probs.reshape(-1), rollout.values.reshape(-1)
    targets, weights = advantages.reshape(-1) + old_values, advantages.reshape(-1)
    weights = (weights - weights.mean()) / weights.std()
    logs, values = forward(net, sights)
    ratio = jnp.exp(logs[jnp.arange(len(actions)), actions] - old_logs)
    gain = jnp.where(
        weights > 0,
        jnp.minimum(ratio, 1 + config.clip_eps) * weights,
        jnp.maximum(ratio, 1 - config.clip_eps) * weights,
    )
    limit = config.vf_clip_eps
    near = jnp.minimum(jnp.maximum(values, old_values - limit), old_values + limit)
    errors = jnp.maximum((values - targets) ** 2, (near - targets) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(logs) * logs * sights.action_mask, axis=1))
    policy_loss, value_loss = -jnp.mean(gain), jnp.mean(errors) / 2
    total = policy_loss + config.vf_coef * value_loss - entropy_weight * entropy
    parts = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "loss": total,
        "entropy": entropy,
        "approx_kl": jnp.mean(ratio - 1 - jnp.log(ratio)),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > config.clip_eps),
        "value_clipped": jnp.mean((near - targets) ** 2 > (values - targets) ** 2),
    }
    return total, parts
