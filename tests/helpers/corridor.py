"""A small, correct environment: walk through a corridor of eight cells to its right end."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int8, UInt32

from phalanx.core.environment import Environment
from phalanx.core.expert import ExpertLabels
from phalanx.core.spaces import Box, Discrete

CELLS = 8
LEFT, RIGHT, LEAP = range(3)
MOVES = ("left", "right", "leap")


class Walker(eqx.Module):
    position: Int[Array, "*batch"]
    clock: Int[Array, "*batch"]
    key: UInt32[Array, "*batch 2"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]


class WalkInfo(eqx.Module):
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    invalid: Bool[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Corridor(Environment[Walker, Array, Array]):
    """Walk to the right end of a corridor.

    Left and right move by one cell, a leap by two or three. A move into a wall is illegal. An episode starts
    in one of the cells 0 to 3, terminates in cell 7 with reward 1, and is truncated after `max_steps` steps.
    Other steps have the reward -0.1, illegal ones -1. Randomness comes from arithmetic on the key, because
    compiling `jax.random` would take most of the time of a test.
    """

    max_steps: int = 12

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, (CELLS,), np.int8)

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def reset(self, key: UInt32[Array, "2"]) -> tuple[Walker, Int8[Array, " cells"]]:
        off = jnp.array(False)
        state = Walker((key[0] % 4).astype(jnp.int32), jnp.int32(0), scramble(key), off, off)
        return state, self.observe(state)

    def legal(self, state: Walker) -> Bool[Array, "*batch 3"]:
        left, right, leap = state.position > 0, state.position < CELLS - 1, state.position < CELLS - 3
        return jnp.stack([left, right, leap], axis=-1)

    def step(
        self, state: Walker, action: Int[Array, ""]
    ) -> tuple[Walker, Int8[Array, " cells"], Float[Array, ""], Bool[Array, ""], WalkInfo]:
        over = state.terminated | state.truncated
        legal = (action >= 0) & (action < 3) & self.legal(state)[jnp.clip(action, 0, 2)]
        distance = jnp.array([-1, 1, 2])[jnp.clip(action, 0, 2)]
        distance += (action == LEAP) & (state.key[0] % 2 == 1)
        position = jnp.where(legal, state.position + distance, state.position)
        terminated = position == CELLS - 1
        truncated = ~terminated & (state.clock + 1 >= self.max_steps)
        key = jnp.where(legal, scramble(state.key), state.key)
        moved = Walker(position, state.clock + 1, key, terminated, truncated)
        state = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, moved)
        reward = jnp.where(over, 0.0, jnp.where(legal, jnp.where(terminated, 1.0, -0.1), -1.0))
        info = WalkInfo(state.terminated, state.truncated, ~legal)
        return state, self.observe(state), reward, self.is_done(state), info

    def observe(self, state: Walker) -> Int8[Array, " cells"]:
        return (jnp.arange(CELLS) == state.position).astype(jnp.int8)

    def is_done(self, state: Walker) -> Bool[Array, "*batch"]:
        return state.terminated | state.truncated

    def sample_action(self, key: UInt32[Array, "2"], state: Walker) -> Int[Array, ""]:
        legal = self.legal(state)
        chosen = key[0] % jnp.sum(legal, dtype=jnp.uint32)
        return jnp.argmax(jnp.cumsum(legal, dtype=jnp.uint32) > chosen).astype(jnp.int32)

    def invalid_action(self, key: UInt32[Array, "2"], state: Walker) -> Int[Array, ""] | None:
        """Return an illegal move, or an integer that is not a move if all moves are legal."""
        legal = self.legal(state)
        outside = jnp.where(key[0] % 2 == 0, 3, -1)
        return jnp.where(jnp.all(legal), outside, jnp.argmin(legal)).astype(jnp.int32)

    def comparable_state(self, state: Walker) -> tuple[Array, Array]:
        return state.position, state.key

    def legal_actions(self, state: Walker) -> Bool[Array, "*batch 3"] | None:
        return self.legal(state)

    @property
    def render_modes(self) -> tuple[str, ...]:
        return ("svg", "ansi", "rgb_array")

    def render(self, state: Walker, mode: str = "svg") -> Any:
        position = int(state.position)
        if mode == "ansi":
            return "." * position + "@" + "." * (CELLS - 1 - position)
        if mode == "svg":
            return f'<svg xmlns="http://www.w3.org/2000/svg"><circle cx="{position}" cy="0" r="1"/></svg>'
        return np.where(np.arange(CELLS)[None, :, None] == position, np.uint8(255), np.zeros(3, np.uint8))

    def task_name(self, state: Walker) -> str:
        return "corridor"

    @property
    def has_text(self) -> bool:
        return True

    def observation_text(self, state: Walker) -> str:
        moves = [name for name, legal in zip(MOVES, self.legal(state), strict=True) if legal]
        return f"You stand in cell {int(state.position)} of {CELLS}. Moves: {', '.join(moves)}."

    def parse_action(self, text: str, state: Walker) -> Int[Array, ""]:
        if text not in MOVES or not self.legal(state)[MOVES.index(text)]:
            raise ValueError(f"{text!r} is no legal move")
        return jnp.int32(MOVES.index(text))

    def action_text(self, action: Int[Array, ""], state: Walker) -> str:
        return MOVES[int(action)]

    def expert(self) -> "RightExpert | None":
        return RightExpert()


def scramble(key: UInt32[Array, "2"]) -> UInt32[Array, "2"]:
    """Return the next key: a step of two linear congruential generators whose high bits are mixed in."""
    key = key * jnp.uint32(1664525) + jnp.uint32(1013904223)
    return key ^ (key >> 16)


class RightExpert:
    """Walks right. Its memory is the number of steps that each environment has taken with it."""

    def init(self, states: Walker) -> np.ndarray:
        return np.zeros(len(states.position), np.int64)

    def label(self, states: Walker, memory: np.ndarray) -> ExpertLabels:
        return ExpertLabels(np.full((len(memory), 1), RIGHT, np.int32), np.ones((len(memory), 1), bool))

    def must_act(self, actions: Array, labels: ExpertLabels) -> np.ndarray:
        return np.zeros(len(actions), bool)

    def advance(
        self, memory: np.ndarray, labels: ExpertLabels, actions: Array, reset: np.ndarray
    ) -> np.ndarray:
        return np.where(reset, 0, memory + (np.asarray(actions) == RIGHT))


def walker(position: int, clock: int = 0) -> Walker:
    """Create a single state."""
    numbers = np.int32(position), np.int32(clock), np.zeros(2, np.uint32)
    return Walker(*jax.device_put((*numbers, np.False_, np.False_)))
