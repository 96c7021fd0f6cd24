"""What a policy may choose from: the `Distribution` protocol and the masked categorical one.

Distributions over ARC's actions are in `arc_distributions`; networks give the logits.
"""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Key as KeyArray, PRNGKeyArray, UInt32

Key = PRNGKeyArray
"""A JAX random key, typed or raw."""
Keys = KeyArray[Array, " batch"] | UInt32[Array, "batch 2"]
"""One random key per row of a batch."""


@runtime_checkable
class Distribution(Protocol):
    """Over the actions of one environment; `jax.vmap` makes a batch of it."""

    def sample(self, key: Key) -> Any:
        """An action."""

    def mode(self) -> Any:
        """The action of the greedy policy."""

    def log_prob(self, action: Any) -> Float[Array, ""]:
        """The natural logarithm of an action's probability, exactly."""

    def entropy(self) -> Float[Array, ""]:
        """In nats, exactly."""


class MaskedCategorical(eqx.Module):
    """One of n choices, of which the mask names those that are legal; the others have probability zero.

    >>> choice = MaskedCategorical(jnp.zeros(3), jnp.array([True, False, True]))
    >>> float(jnp.exp(choice.log_prob(jnp.int32(2))))
    0.5
    """

    logits: Float[Array, " choices"]
    mask: Bool[Array, " choices"] | None = None

    def sample(self, key: Key) -> Int32[Array, ""]:
        return sample_by_uniform(jax.random.uniform(key), self.log_probs())

    def mode(self) -> Int32[Array, ""]:
        return jnp.argmax(self.log_probs()).astype(jnp.int32)

    def log_prob(self, action: Int32[Array, ""]) -> Float[Array, ""]:
        return self.log_probs()[action]

    def entropy(self) -> Float[Array, ""]:
        return entropy(self.log_probs())

    def log_probs(self) -> Float[Array, " choices"]:
        """Of all choices; minus infinity for those that the mask leaves out."""
        return masked_log_softmax(self.logits, self.mask)


def masked_log_softmax(
    logits: Float[Array, "*kinds choices"], mask: Bool[Array, "*#kinds choices"] | None
) -> Float[Array, "*kinds choices"]:
    """Normalized over the last axis; minus infinity, with a gradient of zero, where the mask is False."""
    if mask is None:
        return jax.nn.log_softmax(logits)
    # A large number in place of infinity inside the softmax, whose gradient would be NaN otherwise.
    kept = jax.nn.log_softmax(jnp.where(mask, logits, -1e30))
    return jnp.where(mask, kept, -jnp.inf)


def entropy(log_probs: Float[Array, "*kinds choices"]) -> Float[Array, "*kinds"]:
    """Of normalized log-probabilities, over the last axis; an impossible choice adds nothing."""
    possible = log_probs > -jnp.inf
    finite = jnp.where(possible, log_probs, 0.0)
    return -jnp.sum(jnp.where(possible, jnp.exp(finite) * finite, 0.0), axis=-1)


def sample_by_uniform(uniform: Float[Array, ""], log_probs: Float[Array, " choices"]) -> Int32[Array, ""]:
    """The choice at which the cumulated probability passes `uniform`, a number in [0, 1).

    One random number serves any number of choices, where Gumbel's way draws one for each choice; on the CPU
    that would cost more than the network. A choice of probability zero is never returned.
    """
    probs = jnp.exp(log_probs)
    cumulated = jax.lax.associative_scan(jnp.add, probs)
    # The scan adds in the order of a tree, so that by rounding a sum may be above the one before it although
    # its choice has probability zero: to count the sums passed would now and then return such a choice.
    places = jnp.arange(probs.shape[0], dtype=jnp.int32)
    last = jnp.max(jnp.where(probs > 0, places, 0))
    return jnp.min(jnp.where((probs > 0) & (cumulated > uniform * cumulated[-1]), places, last))
