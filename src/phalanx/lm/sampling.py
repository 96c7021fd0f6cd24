"""Token sampling with temperature, top-k and top-p."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32
from pydantic import Field

from phalanx.config import Config

MASKED_LOGIT = -1e30
"""Value that replaces the logit of a token that must not be sampled. It is finite, so that the softmax is not
NaN if all tokens of a row are masked."""


class SamplingConfig(Config):
    """Parameters for sampling the next token."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature, by which the logits are divided. If 0, the most likely token is always
    selected."""
    top_k: int = Field(default=0, ge=0)
    """Sample only from the `top_k` most likely tokens. 0 means all tokens."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the smallest set of most likely tokens whose total probability reaches `top_p`. 1
    means all tokens."""


def sample_tokens(
    logps: Float[Array, "batch vocab"],
    temperature: Float[Array, ""],
    top_k: int,
    top_p: Float[Array, ""] | None,
    uniform: Float[Array, " batch"],
) -> Int32[Array, " batch"]:
    """Sample one token per row, or take the most likely token if the temperature is 0.

    Args:
        logps: Log-probabilities at the sampling temperature.
        temperature: If 0, the most likely token is taken. All other values have the same effect, because
            `logps` already depend on the temperature.
        top_k: Number of most likely tokens to sample from. 0 means all tokens.
        top_p: Total probability of the most likely tokens to sample from. None means all tokens.
        uniform: One random number in [0, 1) per row, which selects a token by inverse transform sampling.
    """
    candidates = logps
    if top_k and top_k < logps.shape[-1]:
        threshold = jax.lax.top_k(candidates, top_k)[0][:, -1:]
        candidates = jnp.where(candidates < threshold, MASKED_LOGIT, candidates)
    if top_p is not None:
        ordered = jax.lax.top_k(candidates, candidates.shape[-1])[0]
        probs = jax.nn.softmax(ordered)
        # Always keeps the most likely token, and includes the one that crosses `top_p`.
        keep = jnp.cumsum(probs, axis=-1) - probs < top_p
        threshold = jnp.min(jnp.where(keep, ordered, jnp.inf), axis=-1, keepdims=True)
        candidates = jnp.where(candidates < threshold, MASKED_LOGIT, candidates)
    probs = jax.nn.softmax(candidates)
    cumulative = jnp.cumsum(probs, axis=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    sampled = jnp.argmax((cumulative > target) & (probs > 0), axis=-1)
    return jnp.where(temperature > 0, sampled, jnp.argmax(logps, axis=-1)).astype(jnp.int32)
