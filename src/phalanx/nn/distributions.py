"""Action distributions: the `Distribution` protocol and the masked categorical distribution."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Key as KeyArray, PRNGKeyArray, UInt32

_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
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

    def top_k(self, k: int) -> tuple[Int32[Array, " k"], Float[Array, " k"]]:
        """Return the `k` most probable choices and their log-probabilities, most probable first. If there are
        fewer than `k` choices, all of them are returned. Masked-out choices come last."""
        (choices,), log_probs = joint_top_k([self.log_probs()], k)
        return choices, log_probs

    def log_probs(self) -> Float[Array, " choices"]:
        """Return the log-probabilities of all choices. They are minus infinity for masked-out choices."""
        return masked_log_softmax(self.logits, self.mask)


class DiagonalGaussian(eqx.Module):
    """Independent normal distributions, for continuous actions."""

    mean: Float[Array, "*shape"]
    log_std: Float[Array, "*shape"]

    def sample(self, key: Key) -> Float[Array, "*shape"]:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> Float[Array, "*shape"]:
        return self.mean

    def log_prob(self, action: Float[Array, "*shape"]) -> Float[Array, ""]:
        deviations = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(jnp.square(deviations) / 2 + self.log_std + _LOG_SQRT_2_PI)

    def entropy(self) -> Float[Array, ""]:
        return jnp.sum(self.log_std + _LOG_SQRT_2_PI + 0.5)


class Factored(eqx.Module):
    """Independent distributions of the fields of an action."""

    parts: dict[str, Any]
    """Distribution of each field by name."""
    constructor: Callable[..., Any] = eqx.field(static=True)
    """Class of the actions, which is called with the fields as keyword arguments."""

    def sample(self, key: Key) -> Any:
        keys = jax.random.split(key, len(self.parts))
        samples = {name: part.sample(k) for (name, part), k in zip(self.parts.items(), keys, strict=True)}
        return self.constructor(**samples)

    def mode(self) -> Any:
        return self.constructor(**{name: part.mode() for name, part in self.parts.items()})

    def log_prob(self, action: Any) -> Float[Array, ""]:
        fields = action if isinstance(action, dict) else vars(action)
        return sum((part.log_prob(fields[name]) for name, part in self.parts.items()), jnp.zeros(()))

    def entropy(self) -> Float[Array, ""]:
        return sum((part.entropy() for part in self.parts.values()), jnp.zeros(()))

    def top_k(self, k: int) -> tuple[Any, Float[Array, " k"]]:
        """Return the `k` most probable actions and their log-probabilities, most probable first. All parts
        need a method `top_k`."""
        actions, log_probs = zip(*(part.top_k(k) for part in self.parts.values()), strict=True)
        rows, total = joint_top_k(log_probs, k)
        best = [
            jax.tree.map(lambda leaf, row=row: leaf[row], a) for a, row in zip(actions, rows, strict=True)
        ]
        fields = dict(zip(self.parts, best, strict=True))
        return jax.vmap(lambda fields: self.constructor(**fields))(fields), total


def joint_top_k(
    log_probs: Sequence[Float[Array, " choices"]], k: int
) -> tuple[list[Int32[Array, " k"]], Float[Array, " k"]]:
    """Find the `k` most probable combinations of independent choices, most probable first.

    Args:
        log_probs: Log-probabilities of the choices of each variable.
        k: Number of combinations. If there are fewer, all of them are returned.

    Returns:
        For each variable, its choice in each combination, and the log-probabilities of the combinations.
    """
    rows: list[Int32[Array, " k"]] = []
    total = jnp.zeros(1)
    for part in log_probs:
        # The best combinations contain only the `k` best choices of each variable.
        best, choices = jax.lax.top_k(part, min(k, part.shape[-1]))
        sums = (total[:, None] + best).ravel()
        total, index = jax.lax.top_k(sums, min(k, sums.shape[0]))
        rows = [row[index // best.shape[0]] for row in rows] + [choices[index % best.shape[0]]]
    return rows, total


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
