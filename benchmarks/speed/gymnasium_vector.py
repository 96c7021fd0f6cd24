"""Environment steps per second through Gymnasium's vector API.

The environment is ARC on generated tasks, created with `gym.make_vec`. It is stepped with random legal
actions and returns NumPy arrays. The rates show what reinforcement-learning libraries that use Gymnasium can
expect; `arc_env` measures the same environment in compiled loops.
"""

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

import phalanx.integrations.gymnasium
from benchmarks.suite import Suite, Workload

suite = Suite("gymnasium_vector", unit="steps/s", packages=("jax", "gymnasium", "numpy"))

gym.register_envs(phalanx.integrations.gymnasium)
ENV_ID = "phalanx/arc-v2"


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


def _prepare(num_envs: int, num_steps: int) -> Workload:
    steps = RandomSteps(gym.make_vec(ENV_ID, num_envs=num_envs), num_steps)
    # Long enough for episodes to end, which compiles the functions for resets.
    for _ in range(max(1, 30 // num_steps)):
        steps.run()
    return Workload(steps.run, num_envs * num_steps)


for _num_envs in (64, 1024):
    suite.case(
        f"phalanx-{_num_envs}", smoke={"num_envs": 2, "num_steps": 2}, num_envs=_num_envs, num_steps=8
    )(_prepare)
