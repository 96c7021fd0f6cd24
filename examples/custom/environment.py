"""Write an environment, check it with the conformance suite, and train PPO on it.

The game is Lights Out on a 3x3 board: pressing a lamp switches it and its neighbors, and all lamps must be
off. Pressing the same lamp twice in a row would undo the first press, so the mask of legal actions excludes
it. The environment describes one state; batches, masks, the step limit, auto-reset and the policy network are
provided by Phalanx. A text interface lets language models play the same game.

python examples/custom/environment.py     (about a minute of CPU time)
"""

import argparse
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from phalanx import make, register
from phalanx.core import (
    Box,
    Composite,
    Discrete,
    Environment,
    EnvSpec,
    EpisodeState,
    TextInterface,
    record_episodes,
)
from phalanx.core.testing import check_environment
from phalanx.training import PPO, PPOConfig

SIDE = 3
LAMPS = SIDE * SIDE
_rows, _columns = np.divmod(np.arange(LAMPS), SIDE)
# Row i: which lamps pressing lamp i switches.
SWITCHES = abs(_rows[:, None] - _rows) + abs(_columns[:, None] - _columns) <= 1


class State(EpisodeState):
    """State of one episode. The base class adds the step count and the flags."""

    lamps: Array
    pressed: Array
    """Index of the last pressed lamp. -1 at the start."""


class Observation(eqx.Module):
    """Observation of the agent. The field `action_mask` is the mask of the legal actions."""

    lamps: Array
    action_mask: Array


class LightsOut(Environment[State, Observation, Array]):
    """- Observation: the lamps that are lit, and which presses are legal.
    - Action: the number of a lamp.
    - Reward: 1 when all are dark, -0.05 for any other press.
    - Termination: all dark; truncation after `max_episode_steps`.
    """

    max_episode_steps: int = 12
    illegal_action_reward = -0.05
    render_modes: ClassVar = ("ansi",)

    @property
    def observation_space(self) -> Composite:
        bits = Box(0, 1, (LAMPS,), np.bool_)
        return Composite.of(Observation, {"lamps": bits, "action_mask": bits})

    @property
    def action_space(self) -> Discrete:
        return Discrete(LAMPS)

    def initial_state(self, key: Array) -> State:
        """Start from a dark board and press random lamps. If the board is still dark, press lamp 0."""
        presses = jax.random.bernoulli(key, 0.4, (LAMPS,))
        presses = presses.at[0].set(presses[0] | ~presses.any())
        return State((presses @ SWITCHES.astype(jnp.int32)) % 2 == 1, jnp.int32(-1))

    def transition(self, state: State, action: Array) -> tuple[State, Array, Array]:
        lamps = state.lamps ^ jnp.asarray(SWITCHES)[action]
        dark = ~lamps.any()
        return State(lamps, action), jnp.where(dark, 1.0, -0.05), dark

    def observe(self, state: State) -> Observation:
        return Observation(state.lamps, jnp.arange(LAMPS) != state.pressed)

    def metrics(self, state: State) -> dict[str, Array]:
        return {"success": state.terminated}

    def render(self, state: State, mode: str = "ansi") -> str:
        """Draw the board, with # for lamps that are on."""
        rows = np.asarray(state.lamps).reshape(SIDE, SIDE)
        return "\n".join("".join(".#"[int(lamp)] + " " for lamp in row) for row in rows)


class LightsOutText(TextInterface[LightsOut]):
    """Boards and lamp numbers as text, for language models."""

    def prompt(self, state: State) -> str:
        legal = ", ".join(map(str, self._legal_lamps(state)))
        return (
            "Pressing a lamp switches it and the lamps above, below and beside it. Put out all (#).\n"
            f"{self.environment.render(state)}\n"
            f"Lamps count from 0 to {LAMPS - 1} in reading order. Press one of {legal}."
        )

    def parse(self, answer: str, state: State) -> Array:
        if not answer.strip().isdecimal() or int(answer) not in self._legal_lamps(state):
            raise ValueError(f"{answer!r} is not the number of a lamp that may be pressed")
        return jnp.int32(int(answer))

    def format(self, action: Array, state: State) -> str:
        return str(int(action))

    def _legal_lamps(self, state: State) -> list[int]:
        return np.flatnonzero(self.environment.legal_actions(state)).tolist()


SPEC = EnvSpec(make=LightsOut, text=LightsOutText)


def learn(environment: LightsOut, config: PPOConfig) -> Any:
    """Train with PPO and return the network, which was created from the environment's spaces."""
    ppo = PPO(config, environment)
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

    register("lights-out-v1", SPEC, "press lamps until all are dark")
    environment = make("lights-out-v1")
    print(check_environment(environment, spec=SPEC, num_steps=1000))

    config = PPOConfig(
        num_envs=arguments.num_envs,
        num_updates=arguments.updates,
        num_steps=24,
        update_epochs=4,
        microbatch_size=None,
    )
    network = learn(environment, config)
    steps = environment.max_episode_steps
    (episode,) = record_episodes(environment, network, jax.random.key(5), 1, steps, greedy=True)
    print(draw(environment, [episode["initial_state"], *episode["step_states"]]))
    print(f"solved in {episode['total_steps']} presses: {episode['success']}")


if __name__ == "__main__":
    main()
