"""Environment steps per second through Gymnasium's vector API.

All cases step the same Phalanx environment, ARC on generated tasks, with random legal actions, and return
NumPy arrays. `GymnasiumVectorEnv` steps all environments in one compiled call, whereas Gymnasium's
`SyncVectorEnv` and `AsyncVectorEnv` step single environments one by one. The comparison shows what a user of
Phalanx gains from `gym.make_vec`. It does not compare Phalanx with other environments.
"""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

import phalanx.integrations.gymnasium
from benchmarks.suite import Suite, Workload

suite = Suite("gymnasium_vector", unit="steps/s", packages=("jax", "gymnasium", "numpy"))

gym.register_envs(phalanx.integrations.gymnasium)
ENV_ID = "phalanx/arc-v2"


def make_vector_env(kind: str, num_envs: int) -> VectorEnv:
    """Create a vector environment.

    Args:
        kind: `phalanx`, `sync` or `async`.
        num_envs: Number of environments.
    """
    if kind == "phalanx":
        return gym.make_vec(ENV_ID, num_envs=num_envs)
    # JAX does not support fork.
    makers = [make_env] * num_envs
    return SyncVectorEnv(makers) if kind == "sync" else AsyncVectorEnv(makers, context="spawn")


def make_env() -> gym.Env:
    """Create a single environment without Gymnasium's checker, which validates every step."""
    return gym.make(ENV_ID, disable_env_checker=True)


class RandomSteps:
    """Steps a vector environment with random legal actions."""

    def __init__(self, envs: VectorEnv, num_steps: int) -> None:
        self._envs, self._num_steps = envs, num_steps
        self._rng = np.random.default_rng(0)
        self._observations, _ = envs.reset(seed=0)
        self._sizes = envs.single_action_space.nvec

    def run(self) -> None:
        """Step all environments `num_steps` times."""
        for _ in range(self._num_steps):
            mask = self._observations["action_mask"]
            operations = (self._rng.random(mask.shape, np.float32) * mask).argmax(-1)
            cells = self._rng.integers(self._sizes[1:], size=(len(mask), len(self._sizes) - 1))
            actions = np.concatenate([operations[:, None], cells], axis=1)
            self._observations, *_ = self._envs.step(actions)


def _prepare(kind: str, num_envs: int, num_steps: int) -> Workload:
    steps = RandomSteps(make_vector_env(kind, num_envs), num_steps)
    # Long enough for episodes to end, which compiles the functions for resets.
    for _ in range(max(1, 30 // num_steps)):
        steps.run()
    return Workload(steps.run, num_envs * num_steps)


for _kind, _num_envs in (("phalanx", 64), ("phalanx", 1024), ("sync", 64), ("async", 2), ("async", 8)):
    suite.case(
        f"{_kind}-{_num_envs}",
        group="arc",
        smoke={"num_envs": 2, "num_steps": 2},
        kind=_kind,
        num_envs=_num_envs,
        num_steps=8,
    )(_prepare)
