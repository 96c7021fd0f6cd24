"""A training timed whole and in parts: stepping environments, choosing actions, learning from them.

Any PPO can be timed, whatever it plays. Which training is measured and what must come out is in `training`
and `proof_learning`.
"""

import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree
from measuring.timing import calls_lasting, seconds_of, timed

from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.environment import Key
from phalanx.training.algorithm import UpdateResult
from phalanx.training.ppo import PPO, PPOState
from phalanx.training.rollout import RolloutState, collect_rollout

_SECONDS_A_REPEAT = 1.0


class Parts(NamedTuple):
    """Seconds of one update; the first two are compiled on their own, the last is the whole."""

    environment: float
    """Stepping through a rollout's actions, with auto-reset."""
    rollout: float
    """The same steps, with the network choosing the actions and valuing what it sees."""
    whole: float
    """Rollout, advantages and gradient steps in one call."""

    @property
    def policy(self) -> float:
        """What the network adds to the environment in a rollout, by difference."""
        return self.rollout - self.environment

    @property
    def update(self) -> float:
        """What learning adds to the rollout, by difference."""
        return self.whole - self.rollout

    def shares(self) -> dict[str, float]:
        """Of the whole; they add up to 1."""
        parts = {"environment": self.environment, "policy": self.policy, "update": self.update}
        return {f"{name}_share": round(seconds / self.whole, 4) for name, seconds in parts.items()}


class TimedTraining:
    """Runs the updates of a PPO run one at a time and waits for each."""

    def __init__(self, ppo: PPO, seed: int = 0) -> None:
        self.ppo = ppo
        self.state: PPOState = ppo.init(jax.random.key(seed))
        _, first = timed(self.update)
        _, second = timed(self.update)
        self.compile_seconds = first - second
        """Time to trace and compile the programs of an update."""

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update."""
        return self.ppo.config.steps_per_update

    def update(self) -> UpdateResult:
        """Run one update and wait for it."""
        self.state, result = self.ppo.update(self.state)
        return jax.block_until_ready((self.state, result))[1]

    def updates_per_repeat(self) -> int:
        """How many updates make a repeat long enough to time."""
        return calls_lasting(_SECONDS_A_REPEAT, self.update)


class TimedParts:
    """Compiled beside a training: its rollout, and its environments alone, on the same steps."""

    def __init__(self, training: TimedTraining) -> None:
        self.training = training
        self._rollout = jax.jit(self._play, donate_argnums=1)
        self._replay = jax.jit(self._step_through, donate_argnums=0)
        self.time(1)

    def time(self, updates: int) -> Parts:
        """Mean seconds of an update and of its parts over a few updates.

        The environments replay the actions of the rollouts from the same states, so that they do the very
        same steps and start the very same episodes.
        """
        state = self.training.state
        keys = jax.random.split(jax.random.fold_in(state.key, 1), updates)
        rollouts, actions = _copied(state.rollout), []
        rollout = 0.0
        for key in keys:
            began = time.perf_counter()
            rollouts, played = jax.block_until_ready(self._rollout(state.params, rollouts, key))
            rollout += time.perf_counter() - began
            actions.append(played[0].actions)
        states = _copied(state.rollout.environments)
        environment = 0.0
        for chosen in actions:
            began = time.perf_counter()
            states, _ = jax.block_until_ready(self._replay(states, chosen))
            environment += time.perf_counter() - began
        whole = seconds_of(self.training.update, updates)
        return Parts(environment / updates, rollout / updates, whole / updates)

    def _play(self, network: PyTree, start: RolloutState, key: Key) -> tuple[RolloutState, Any]:
        ppo = self.training.ppo
        end, *played = collect_rollout(
            ppo.environment, ppo.network(network), start, key, ppo.config.num_steps
        )
        return end, played

    def _step_through(self, states: AutoResetState, actions: PyTree) -> tuple[AutoResetState, Any]:
        environment = self.training.ppo.environment
        auto_reset = AutoReset(environment, "same_step")

        def step(states: AutoResetState, chosen: PyTree) -> tuple[AutoResetState, Any]:
            states, observations, rewards, done, info = auto_reset.step(states, chosen)
            # All that a rollout keeps of a step is written here too.
            kept = (observations, info.final_observation, rewards, done, info.terminated)
            return states, (*kept, environment.episode_metrics(info.info))

        return jax.lax.scan(step, states, actions)


def median_parts(repeats: list[Parts]) -> Parts:
    """The median of each."""
    return Parts(*(statistics.median(column) for column in zip(*repeats, strict=True)))


def count_parameters(network: PyTree) -> int:
    """Numbers that a network learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(network))


def _copied(tree: PyTree) -> PyTree:
    """The same values in memory of their own, which may be given away."""
    return jax.block_until_ready(jax.tree.map(jnp.copy, tree))
