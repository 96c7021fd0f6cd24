"""What an episode pays at its end: the six reward types.

When an episode ends, and the penalty of invalid actions, is in `environment`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from phalanx.proofs.config import ProofRewardConfig


def payoffs(config: ProofRewardConfig) -> tuple[float, float, float, float]:
    """What TP, FN, FP and TN pay: a positive that is proved or not, a negative that is proved or not.

    - 0: a proved positive pays 1, all else nothing;
    - 1: and a proved negative costs 1;
    - 2: a right verdict pays 1;
    - 3: 1, -0.5, -1.5, 1;
    - 4: 1, -1, -1 and `true_negative`;
    - 5: as 4, and `given_up_bonus` for a negative that is given up by the end action.

    >>> payoffs(ProofRewardConfig(type=3))
    (1.0, -0.5, -1.5, 1.0)
    """
    graded = (1.0, -1.0, -1.0, config.true_negative)
    table: tuple[tuple[float, float, float, float], ...] = (
        (1.0, 0.0, 0.0, 0.0),
        (1.0, 0.0, -1.0, 0.0),
        (1.0, 0.0, 0.0, 1.0),
        (1.0, -0.5, -1.5, 1.0),
        graded,
        graded,
    )
    return table[config.type]


def final_reward(
    config: ProofRewardConfig,
    label: Bool[Array, "*batch"],
    proved: Bool[Array, "*batch"],
    given_up: Bool[Array, "*batch"],
) -> Float32[Array, "*batch"]:
    """The reward of an episode that ends now."""
    true_positive, false_negative, false_positive, true_negative = payoffs(config)
    positive = jnp.where(proved, true_positive, false_negative)
    negative = jnp.where(proved, false_positive, true_negative)
    bonus = config.given_up_bonus if config.type == 5 else 0.0
    negative = negative + jnp.where(given_up, bonus, 0.0)
    return jnp.where(label, positive, negative).astype(jnp.float32)
