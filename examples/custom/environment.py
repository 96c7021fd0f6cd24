"""Write an environment, check it with the conformance suite, and train PPO on it.

The game is Lights Out on a 3x3 board: pressing a lamp switches it and its neighbors, and all lamps must be
off. Pressing the same lamp twice in a row would undo the first press, so the mask of legal actions excludes
it. `reset` and `step` are pure functions of one state; batching, auto-reset and rollouts are provided by
Phalanx. The optional methods (legal actions, rendering, text) are used by adapters, agents and language
models.

python examples/custom/environment.py     (about a minute of CPU time)
"""

import argparse
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from phalanx import make, register
from phalanx.core import Box, Composite, Discrete, Environment, record_episodes
from phalanx.core.testing import check_environment
from phalanx.nn import MaskedCategorical
from phalanx.training import PPO, PPOConfig

SIDE = 3
LAMPS = SIDE * SIDE
_rows, _columns = np.divmod(np.arange(LAMPS), SIDE)
# Row i: which lamps pressing lamp i switches.
SWITCHES = abs(_rows[:, None] - _rows) + abs(_columns[:, None] - _columns) <= 1


class State(eqx.Module):
    """State of one episode, or of a batch of episodes with a leading axis."""

    lamps: Array
    pressed: Array
    """Index of the last pressed lamp. -1 at the start."""
    clock: Array
    terminated: Array
    truncated: Array


class Sight(eqx.Module):
    """Observation of the agent."""

    lamps: Array
    legal: Array


@dataclasses.dataclass(frozen=True)
class LightsOut(Environment[State, Sight, Array]):
    """- Observation: the lamps that are lit, and which presses are legal.
    - Action: the number of a lamp.
    - Reward: 1 when all are dark, -0.05 for any other step.
    - Termination: all dark; truncation after `max_steps`.
    """

    max_steps: int = 12

    @property
    def observation_space(self) -> Composite:
        bits = Box(0, 1, (LAMPS,), np.bool_)
        return Composite.of(Sight, {"lamps": bits, "legal": bits})

    @property
    def action_space(self) -> Discrete:
        return Discrete(LAMPS)

    def reset(self, key: Array) -> tuple[State, Sight]:
        """Start from a dark board and press random lamps. If the board is still dark, press lamp 0."""
        presses = jax.random.bernoulli(key, 0.4, (LAMPS,))
        presses = presses.at[0].set(presses[0] | ~presses.any())
        lamps = (presses @ SWITCHES.astype(jnp.int32)) % 2 == 1
        off = jnp.bool_(False)
        state = State(lamps, jnp.int32(-1), jnp.int32(0), off, off)
        return state, self.observe(state)

    def step(self, state: State, action: Array) -> tuple[State, Sight, Array, Array, State]:
        over = self.is_done(state)
        legal = (action >= 0) & (action < LAMPS) & (action != state.pressed)
        lamps = state.lamps ^ (jnp.asarray(SWITCHES)[jnp.clip(action, 0, LAMPS - 1)] & legal)
        pressed = jnp.where(legal, action, state.pressed).astype(jnp.int32)
        dark = ~lamps.any()
        moved = State(lamps, pressed, state.clock + 1, dark, ~dark & (state.clock + 1 >= self.max_steps))
        # A finished state stays as it is and pays nothing.
        state = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, moved)
        reward = jnp.where(over, 0.0, jnp.where(dark, 1.0, -0.05))
        return state, self.observe(state), reward, self.is_done(state), state

    def observe(self, state: State) -> Sight:
        return Sight(state.lamps, self.legal_actions(state))

    def is_done(self, state: State) -> Array:
        return state.terminated | state.truncated

    def sample_action(self, key: Array, state: State) -> Array:
        drawn = jax.random.randint(key, (), 0, LAMPS - 1)
        return (drawn + ((drawn >= state.pressed) & (state.pressed >= 0))).astype(jnp.int32)

    def invalid_action(self, key: Array, state: State) -> Array:
        """Return the excluded press, or -1, which is not a lamp, at the start."""
        return state.pressed

    def comparable_state(self, state: State) -> tuple[Array, Array]:
        """Return the part of the state that an invalid action must not change."""
        return state.lamps, state.pressed

    def legal_actions(self, state: State) -> Array:
        """Return the mask of legal actions, for one state or a batch."""
        return jnp.arange(LAMPS) != state.pressed[..., None]

    @property
    def render_modes(self) -> tuple[str, ...]:
        return ("ansi",)

    def render(self, state: State, mode: str = "ansi") -> str:
        """Draw the board, with # for lamps that are on."""
        rows = np.asarray(state.lamps).reshape(SIDE, SIDE)
        return "\n".join("".join(".#"[int(lamp)] + " " for lamp in row) for row in rows)

    @property
    def has_text(self) -> bool:
        return True

    def observation_text(self, state: State) -> str:
        legal = ", ".join(map(str, np.flatnonzero(self.legal_actions(state))))
        return (
            "Pressing a lamp switches it and the lamps above, below and beside it. Put out all (#).\n"
            f"{self.render(state)}\nLamps count from 0 to {LAMPS - 1} in reading order. Press one of {legal}."
        )

    def parse_action(self, text: str, state: State) -> Array:
        if not text.strip().isdecimal() or int(text) not in np.flatnonzero(self.legal_actions(state)):
            raise ValueError(f"{text!r} is not the number of a lamp that may be pressed")
        return jnp.int32(int(text))

    def action_text(self, action: Array, state: State) -> str:
        return str(int(action))

    def episode_metrics(self, info: State) -> dict[str, Array]:
        """Return the metrics of finished episodes."""
        return {"success_mask": info.terminated}


class Network(eqx.Module):
    """Maps an observation to a distribution over lamps and a value."""

    policy: eqx.nn.MLP
    value: eqx.nn.MLP

    def __init__(self, key: Array) -> None:
        one, other = jax.random.split(key)
        self.policy = eqx.nn.MLP(LAMPS, LAMPS, 64, 2, jnp.tanh, key=one)
        self.value = eqx.nn.MLP(LAMPS, "scalar", 64, 2, jnp.tanh, key=other)

    def __call__(self, sight: Sight) -> tuple[MaskedCategorical, Array]:
        seen = 2.0 * sight.lamps - 1.0
        return MaskedCategorical(self.policy(seen), sight.legal), self.value(seen)


def learn(environment: LightsOut, config: PPOConfig) -> Any:
    """Train with PPO and return the network."""
    ppo = PPO(config, environment, Network)
    state = ppo.init(jax.random.key(0))
    for number in range(1, config.num_updates + 1):
        state, result = ppo.update(state)
        if number == 1 or number % max(1, config.num_updates // 8) == 0:
            ended = result.episodes["episode_mask"]
            solved = jnp.mean(result.episodes["success_mask"], where=ended)
            steps = jnp.mean(result.episodes["episode_lengths"], where=ended)
            print(f"update {number:3}: {solved:6.1%} solved, {steps:4.1f} steps an episode")
    return ppo.policy(state)


def draw(environment: LightsOut, states: list[State]) -> str:
    """Draw boards next to each other."""
    boards = [environment.render(state).splitlines() for state in states]
    return "\n".join("   ".join(rows) for rows in zip(*boards, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--num-envs", type=int, default=256)
    arguments = parser.parse_args()

    register("lights-out-v1", LightsOut, "press lamps until all are dark")
    environment = make("lights-out-v1")
    print(check_environment(environment, num_steps=40))

    config = PPOConfig(
        num_envs=arguments.num_envs,
        num_updates=arguments.updates,
        num_steps=24,
        update_epochs=4,
        microbatch_size=None,
    )
    network = learn(environment, config)
    steps = environment.max_steps
    (episode,) = record_episodes(environment, network, jax.random.key(5), 1, steps, greedy=True)
    print(draw(environment, [episode["initial_state"], *episode["step_states"]]))
    print(f"solved in {episode['total_steps']} presses: {episode['success']}")


if __name__ == "__main__":
    main()
