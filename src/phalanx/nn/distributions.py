"""Action distributions: the `Distribution` protocol and the masked categorical distribution."""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Key as KeyArray, PRNGKeyArray, UInt32

Key = PRNGKeyArray
"""A JAX PRNG key, either typed (`jax.random.key`) or raw (`jax.random.PRNGKey`)."""
Keys = KeyArray[Array, " batch"] | UInt32[Array, "batch 2"]
"""A batch of JAX PRNG keys, either typed or raw."""


@runtime_checkable
class Distribution(Protocol):
    """Distribution over the actions of one environment. Use `jax.vmap` for a batch."""

    def sample(self, key: Key) -> Any:
        """Sample an action."""

    def mode(self) -> Any:
        """Return the action that a greedy policy takes."""

    def log_prob(self, action: Any) -> Float[Array, ""]:
        """Return the exact log-probability of an action."""

    def entropy(self) -> Float[Array, ""]:
        """Return the exact entropy in nats."""


class MaskedCategorical(eqx.Module):
    """Categorical distribution in which masked-out choices have probability zero.

    >>> distribution = MaskedCategorical(jnp.zeros(3), jnp.array([True, False, True]))
    >>> float(jnp.exp(distribution.log_prob(jnp.int32(2))))
    0.5
    """

    logits: Float[Array, " choices"]
    mask: Bool[Array, " choices"] | None = None
    """True for choices that may be sampled. None means that all choices may be sampled."""

    def sample(self, key: Key) -> Int32[Array, ""]:
        return sample_by_uniform(jax.random.uniform(key), self.log_probs())

    def mode(self) -> Int32[Array, ""]:
        return jnp.argmax(self.log_probs()).astype(jnp.int32)

    def log_prob(self, action: Int32[Array, ""]) -> Float[Array, ""]:
        return self.log_probs()[action]

    def entropy(self) -> Float[Array, ""]:
        return entropy(self.log_probs())

    def log_probs(self) -> Float[Array, " choices"]:
        """Return the log-probabilities of all choices. They are minus infinity for masked-out choices."""
        return masked_log_softmax(self.logits, self.mask)


def masked_log_softmax(
    logits: Float[Array, "*kinds choices"], mask: Bool[Array, "*#kinds choices"] | None
) -> Float[Array, "*kinds choices"]:
    """Compute the log-softmax over the choices for which `mask` is True, along the last axis.

    Where the mask is False, the result is minus infinity and its gradient is zero. If the mask is None, all
    choices are allowed.
    """
    if mask is None:
        return jax.nn.log_softmax(logits)
    # With infinity instead of a large number, the gradient of the softmax would be NaN.
    log_probs = jax.nn.log_softmax(jnp.where(mask, logits, -1e30))
    return jnp.where(mask, log_probs, -jnp.inf)


def entropy(log_probs: Float[Array, "*kinds choices"]) -> Float[Array, "*kinds"]:
    """Compute the entropy of normalized log-probabilities over the last axis.

    Choices with probability zero contribute nothing to the entropy or its gradient.
    """
    possible = log_probs > -jnp.inf
    finite = jnp.where(possible, log_probs, 0.0)
    return -jnp.sum(jnp.where(possible, jnp.exp(finite) * finite, 0.0), axis=-1)


def sample_by_uniform(uniform: Float[Array, ""], log_probs: Float[Array, " choices"]) -> Int32[Array, ""]:
    """Sample a choice by inverse transform sampling.

    This method needs only one random number, whereas the Gumbel trick needs one per choice. On the CPU,
    generating that many random numbers would take longer than evaluating the network. A choice with
    probability zero is never returned.

    Args:
        uniform: Random number in [0, 1).
        log_probs: Normalized log-probabilities.
    """
    probs = jnp.exp(log_probs)
    cumulative = jax.lax.associative_scan(jnp.add, probs)
    # The scan adds in tree order. Because of rounding, the cumulative probability may increase at a choice
    # with probability zero, so counting the sums below `uniform` could return such a choice.
    indices = jnp.arange(probs.shape[0], dtype=jnp.int32)
    last = jnp.max(jnp.where(probs > 0, indices, 0))
    return jnp.min(jnp.where((probs > 0) & (cumulative > uniform * cumulative[-1]), indices, last))
