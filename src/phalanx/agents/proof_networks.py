"""Networks that choose among the successors of a proof's state, and value the state.

The vectors of states are made in `proof_embeddings`, the scores of many successors in `proof_scoring`.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32
from pydantic import Field, model_validator

from phalanx.agents.layers import Dense
from phalanx.agents.proof_embeddings import AtomKind, StateEmbedding, StateKind
from phalanx.agents.proof_scoring import successor_scores
from phalanx.core.config import Config
from phalanx.core.environment import Key
from phalanx.proofs.state import ProofObservation
from phalanx.proofs.vocabulary import IndexManager


class ProofNetworkConfig(Config):
    """How a policy for proofs is built."""

    atoms: AtomKind = "transe"
    """How an atom's vector is made of predicate and terms: as in TransE, ComplEx or RotatE, or learned."""
    states: StateKind = "mean"
    """How a state's vector is made of its atoms."""
    width: int = Field(default=64, ge=2)
    """Numbers in every vector; even for `complex` and `rotate`."""
    depth: int = Field(default=2, ge=1)
    """Layers of the actor, and of the critic before its value."""
    separate_critic: bool = True
    """Whether the critic has embeddings of its own; else it reads the actor's."""
    temperature: float | None = Field(default=None, gt=0)
    """What scores are divided by; none for the square root of the width."""

    @model_validator(mode="after")
    def _even(self) -> "ProofNetworkConfig":
        if self.atoms in ("complex", "rotate") and self.width % 2:
            raise ValueError(f"width must be even for atoms={self.atoms}, got {self.width}")
        return self


class Perceptron(eqx.Module):
    """Layers with a rectifier between them."""

    layers: tuple[Dense, ...]

    def __init__(self, widths: tuple[int, ...], *, key: Key, last_scale: float = 1.0) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        # A rectifier halves what passes it; the factor makes up for that.
        scales = [math.sqrt(2)] * (len(keys) - 1) + [last_scale]
        self.layers = tuple(
            Dense(inputs, outputs, key=layer_key, scale=scale)
            for inputs, outputs, layer_key, scale in zip(widths[:-1], widths[1:], keys, scales, strict=True)
        )

    def __call__(self, x: Float[Array, "*axes inputs"]) -> Float[Array, "*axes outputs"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


class ProofNetwork(eqx.Module):
    """Scores each successor against the current state, and values the state.

    It reads goals, successors and mask of an observation, and nothing else: label and depth are for
    bookkeeping.
    """

    embedding: StateEmbedding
    actor: Perceptron
    critic_embedding: StateEmbedding | None
    critic: Perceptron
    temperature: float = eqx.field(static=True)

    def __init__(self, config: ProofNetworkConfig, index: IndexManager, *, key: Key) -> None:
        keys = jax.random.split(key, 4)
        width, depth = config.width, config.depth
        kinds = config.atoms, config.states, width, index
        self.embedding = StateEmbedding(*kinds, key=keys[0])
        self.actor = Perceptron((width,) * (depth + 1), key=keys[1])
        self.critic_embedding = StateEmbedding(*kinds, key=keys[2]) if config.separate_critic else None
        self.critic = Perceptron((*(width,) * (depth + 1), 1), key=keys[3], last_scale=0.1)
        self.temperature = math.sqrt(width) if config.temperature is None else config.temperature

    def embed_states(self, goals: Int32[Array, "*states atoms 3"]) -> Float[Array, "*states width"]:
        """The vectors of some lists of goals, as the actor reads them."""
        return self.embedding(goals)

    def score(
        self, state: Float[Array, " width"], successors: Float[Array, "states width"]
    ) -> Float[Array, " states"]:
        """The logits of some successors of a state, from their vectors."""
        return successors @ self._wanted(state)

    def value(self, goals: Int32[Array, "atoms 3"]) -> Float[Array, ""]:
        """What is to be expected from a state on."""
        own = self.embedding if self.critic_embedding is None else self.critic_embedding
        return self.critic(own(goals))[0]

    def __call__(self, observation: ProofObservation) -> tuple[Float[Array, " states"], Float[Array, ""]]:
        """Logits of all actions, zero for those that are masked out, and the value of one observation."""
        goals = observation.sub_index[0]
        count = jnp.sum(observation.action_mask, dtype=jnp.int32)
        wanted = self._wanted(self.embed_states(goals))
        logits = successor_scores(self.embedding, wanted, observation.derived_sub_indices, count)
        return logits, self.value(goals)

    def _wanted(self, state: Float[Array, " width"]) -> Float[Array, " width"]:
        """What a successor's vector should point to."""
        return self.actor(state) / self.temperature


def create_proof_network(config: ProofNetworkConfig, index: IndexManager, key: Key) -> ProofNetwork:
    """A network with random weights, for the states that an `IndexManager` numbers."""
    return ProofNetwork(config, index, key=key)
