"""A uniform policy for searches."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32


class UniformPolicy(eqx.Module):
    """A policy that selects all actions with equal probability."""

    def embed_states(self, goals: Int32[Array, "*n goals atom"]) -> Float32[Array, "*n 1"]:
        return jnp.zeros((*goals.shape[:-2], 1), jnp.float32)

    def score(
        self, state: Float32[Array, "1"], successors: Float32[Array, "actions 1"]
    ) -> Float32[Array, " actions"]:
        return successors[:, 0]
