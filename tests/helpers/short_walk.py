"""A small environment with a mask of legal actions, termination and a time limit, and a network for it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.core.environment import Environment, EpisodeState, Key
from phalanx.core.spaces import Box, Composite, Discrete, Space
from phalanx.nn.distributions import MaskedCategorical
from phalanx.nn.layers import Dense

CELLS = 6
LEFT, RIGHT = 0, 1


class Sight(eqx.Module):
    """Observation: the complete state and the legal actions.

    The clock distinguishes the last observation of a truncated episode from any first observation.
    """

    position: Int32[Array, "*batch"]
    clock: Int32[Array, "*batch"]
    action_mask: Bool[Array, "*batch 2"]


class WalkState(EpisodeState):
    position: Int32[Array, "*batch"]


class ShortWalk(Environment[WalkState, Any, Array]):
    """Walk to the last cell of a line.

    An episode starts in cell 0 or 1. It terminates in the last cell, with reward 1, and is truncated after
    `max_episode_steps` steps. Other steps have the reward `step_reward`. Walking left in cell 0 is illegal.
    """

    max_episode_steps: int = 8
    num_cells: int = CELLS
    step_reward: float = -0.05

    @property
    def observation_space(self) -> Space:
        number = Box(0, 100, (), np.int32)
        mask = Box(0, 1, (2,), np.bool_)
        return Composite.of(Sight, {"position": number, "clock": number, "action_mask": mask})

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial_state(self, key: Key) -> WalkState:
        return WalkState((jax.random.key_data(key)[-1] % 2).astype(jnp.int32))

    def transition(
        self, state: WalkState, action: Int32[Array, ""]
    ) -> tuple[WalkState, Float[Array, ""], Bool[Array, ""]]:
        position = state.position + jnp.where(action == RIGHT, 1, -1)
        terminated = position == self.num_cells - 1
        return WalkState(position), jnp.where(terminated, 1.0, self.step_reward), terminated

    def observe(self, state: WalkState) -> Any:
        return Sight(state.position, state.step_count, jnp.stack([state.position > 0, jnp.bool_(True)]))

    def sample_action(self, key: Key, state: WalkState) -> Int32[Array, ""]:
        return jnp.int32(RIGHT)

    def metrics(self, state: WalkState) -> dict[str, Array]:
        return {"success": state.terminated}


class WalkNetwork(eqx.Module):
    """A policy network with one hidden layer."""

    hidden: Dense
    policy: Dense
    value: Dense

    def __init__(self, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.hidden = Dense(CELLS + 1, 8, key=keys[0])
        self.policy = Dense(8, 2, key=keys[1])
        self.value = Dense(8, 1, key=keys[2])

    def __call__(self, sight: Sight) -> tuple[MaskedCategorical, Float[Array, ""]]:
        features = jnp.append(jax.nn.one_hot(sight.position, CELLS), 0.1 * sight.clock)
        hidden = jnp.tanh(self.hidden(features))
        return MaskedCategorical(self.policy(hidden), sight.action_mask), self.value(hidden)[0]
