"""A small, correct environment: walk through a corridor of eight cells to its right end."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, UInt32

from phalanx.core.environment import Environment, EpisodeState
from phalanx.core.expert import ExpertLabels
from phalanx.core.spaces import Box, Discrete
from phalanx.core.spec import EnvSpec
from phalanx.core.text import TextInterface

CELLS = 8
LEFT, RIGHT, LEAP = range(3)
MOVES = ("left", "right", "leap")


class Walker(EpisodeState):
    position: Int[Array, "*batch"]
    key: UInt32[Array, "*batch 2"]


class Corridor(Environment[Walker, Array, Array]):
    """Walk to the right end of a corridor.

    Left and right move by one cell, a leap by two or three. A move into a wall is illegal. An episode starts
    in one of the cells 0 to 3, terminates in cell 7 with reward 1, and is truncated after `max_episode_steps`
    steps. Other steps have the reward -0.1, illegal ones -1. Randomness comes from arithmetic on the key,
    because compiling `jax.random` would take most of the time of a test.
    """

    max_episode_steps: int = 12
    illegal_action_reward = -1.0
    render_modes = ("svg", "ansi", "rgb_array")

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, (CELLS,), np.int8)

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def initial_state(self, key: UInt32[Array, "2"]) -> Walker:
        return Walker((key[0] % 4).astype(jnp.int32), scramble(key))

    def transition(self, state: Walker, action: Int[Array, ""]) -> tuple[Walker, Array, Array]:
        distance = jnp.array([-1, 1, 2])[action] + ((action == LEAP) & (state.key[0] % 2 == 1))
        position = state.position + distance
        terminated = position == CELLS - 1
        return Walker(position, scramble(state.key)), jnp.where(terminated, 1.0, -0.1), terminated

    def observe(self, state: Walker) -> Int8[Array, " cells"]:
        return (jnp.arange(CELLS) == state.position).astype(jnp.int8)

    def legal_actions(self, state: Walker) -> Bool[Array, "*batch 3"] | None:
        left, right, leap = state.position > 0, state.position < CELLS - 1, state.position < CELLS - 3
        return jnp.stack([left, right, leap], axis=-1)

    def sample_action(self, key: UInt32[Array, "2"], state: Walker) -> Int[Array, ""]:
        legal = self.legal_actions(state)
        assert legal is not None
        chosen = key[0] % jnp.sum(legal, dtype=jnp.uint32)
        return jnp.argmax(jnp.cumsum(legal, dtype=jnp.uint32) > chosen).astype(jnp.int32)

    def render(self, state: Walker, mode: str = "svg") -> Any:
        position = int(state.position)
        if mode == "ansi":
            return "." * position + "@" + "." * (CELLS - 1 - position)
        if mode == "svg":
            return f'<svg xmlns="http://www.w3.org/2000/svg"><circle cx="{position}" cy="0" r="1"/></svg>'
        return np.where(np.arange(CELLS)[None, :, None] == position, np.uint8(255), np.zeros(3, np.uint8))


def scramble(key: UInt32[Array, "2"]) -> UInt32[Array, "2"]:
    """Return the next key: a step of two linear congruential generators whose high bits are mixed in."""
    key = key * jnp.uint32(1664525) + jnp.uint32(1013904223)
    return key ^ (key >> 16)


class CorridorText(TextInterface[Corridor]):
    """Moves by name."""

    def prompt(self, state: Walker) -> str:
        moves = [MOVES[move] for move in np.flatnonzero(self.environment.legal_actions(state))]
        return f"You stand in cell {int(state.position)} of {CELLS}. Moves: {', '.join(moves)}."

    def parse(self, answer: str, state: Walker) -> Int[Array, ""]:
        legal = np.asarray(self.environment.legal_actions(state))
        if answer not in MOVES or not legal[MOVES.index(answer)]:
            raise ValueError(f"{answer!r} is no legal move")
        return jnp.int32(MOVES.index(answer))

    def format(self, action: Int[Array, ""], state: Walker) -> str:
        return MOVES[int(action)]


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


SPEC = EnvSpec(
    make=Corridor,
    expert=lambda environment: RightExpert(),
    text=CorridorText,
    task_name=lambda environment, state: "corridor",
)


def walker(position: int, step_count: int = 0) -> Walker:
    """Create a single state."""
    flags = {"step_count": np.int32(step_count), "terminated": np.False_, "truncated": np.False_}
    return jax.device_put(Walker(np.int32(position), np.zeros(2, np.uint32), **flags))
