"""A small environment with a mask of legal actions, termination and a time limit, and a network for it."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.core.environment import Environment, Key
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
    legal: Bool[Array, "*batch 2"]


class WalkState(eqx.Module):
    position: Int32[Array, "*batch"]
    clock: Int32[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class ShortWalk(Environment[WalkState, Any, Array]):
    """Walk to the last cell of a line.

    An episode starts in cell 0 or 1. It terminates in the last cell, with reward 1, and is truncated after
    `max_steps` steps. Other steps have the reward `step_reward`. Walking left in cell 0 has no effect.
    """

    max_steps: int = 8
    num_cells: int = CELLS
    step_reward: float = -0.05

    @property
    def observation_space(self) -> Space:
        number = Box(0, 100, (), np.int32)
        return Composite.of(Sight, {"position": number, "clock": number, "legal": Box(0, 1, (2,), np.bool_)})

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def reset(self, key: Key) -> tuple[WalkState, Any]:
        start = (jax.random.key_data(key)[-1] % 2).astype(jnp.int32)
        state = WalkState(start, jnp.int32(0), jnp.bool_(False), jnp.bool_(False))
        return state, self.observe(state)

    def step(
        self, state: WalkState, action: Int32[Array, ""]
    ) -> tuple[WalkState, Any, Float[Array, ""], Bool[Array, ""], WalkState]:
        done = self.is_done(state)
        position = jnp.maximum(state.position + jnp.where(action == RIGHT, 1, -1), 0)
        terminated = position == self.num_cells - 1
        moved = WalkState(
            position, state.clock + 1, terminated, ~terminated & (state.clock + 1 >= self.max_steps)
        )
        state = jax.tree.map(lambda old, new: jnp.where(done, old, new), state, moved)
        reward = jnp.where(done, 0.0, jnp.where(terminated, 1.0, self.step_reward))
        return state, self.observe(state), reward, self.is_done(state), state

    def observe(self, state: WalkState) -> Any:
        return Sight(state.position, state.clock, jnp.stack([state.position > 0, jnp.bool_(True)]))

    def is_done(self, state: WalkState) -> Bool[Array, "*batch"]:
        return state.terminated | state.truncated

    def sample_action(self, key: Key, state: WalkState) -> Int32[Array, ""]:
        return jnp.int32(RIGHT)

    def episode_metrics(self, info: WalkState) -> dict[str, Array]:
        return {"success_mask": info.terminated}


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
        return MaskedCategorical(self.policy(hidden), sight.legal), self.value(hidden)[0]


class NamedWalk(ShortWalk):
    """A short walk with a default network, so that the command line can train on it."""

    @classmethod
    def default_network(cls, settings: Any, config: Any, key: Key) -> WalkNetwork:
        return WalkNetwork(key)
