"""Phalanx environments for Stable-Baselines3: `BatchedVecEnv` steps a whole batch in one compiled call.

Action masks are in the form that SB3-Contrib's `MaskablePPO` asks for. What it stands on, Gymnasium's vector
environment, is in `phalanx.integrations.gymnasium`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "stable_baselines3":
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.sb3 needs {error.name}: pip install "phalanx[sb3]"', name=error.name
    ) from error

from gymnasium.vector import AutoresetMode

from phalanx.core.environment import Environment
from phalanx.integrations.environments import mask_size
from phalanx.integrations.gymnasium.env import GymnasiumVectorEnv

_MASKS = "action_masks"


class SB3VecEnv(VecEnv):
    """A batch of a Phalanx environment as Stable-Baselines3 trains on it: `PPO("MlpPolicy", venv)`.

    - Observation: one float32 vector, for `MlpPolicy`; with `flat=False` the fields by name, for
      `MultiInputPolicy`.
    - Action: `Discrete` or `MultiDiscrete`, as `GymnasiumVectorEnv` has them.
    - An environment that ends starts anew in the same step. Its info has `terminal_observation`,
      `TimeLimit.truncated` and what the environment told of the last step; those of the others are empty.
    - `env_method("action_masks")`: for each environment which values of its action are legal.
    """

    def __init__(
        self,
        environment: Environment,
        num_envs: int,
        *,
        flat: bool = True,
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._batch = GymnasiumVectorEnv(
            environment, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, flat=flat, render_mode=render_mode
        )
        super().__init__(num_envs, self._batch.single_observation_space, self._batch.single_action_space)
        self._actions: Any = None
        if seed is not None:
            self.seed(seed)

    def reset(self) -> Any:
        """New episodes everywhere, from the seeds that `seed` was given; the observations."""
        observations, _ = self._batch.reset(seed=self._seeds)
        self._reset_seeds()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Take the actions; `step_wait` takes the step."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """One step of all: observations, rewards, which ended, infos."""
        observations, rewards, terminated, truncated, told = self._batch.step(self._actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(done):
            last = told["final_info"]
            own = {name: values[index] for name, values in last.items() if not name.startswith("_")}
            infos[index] = {
                **own,
                "terminal_observation": told["final_obs"][index],
                "TimeLimit.truncated": bool(truncated[index] and not terminated[index]),
            }
        return observations, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """There is nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the batch, once for each environment."""
        if attr_name == _MASKS and mask_size(self._batch.environment) is None:
            raise AttributeError(f"{type(self._batch.environment).__name__} has no mask of legal actions")
        return [getattr(self._batch, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Environments of a batch are alike: nothing can be set for some."""
        raise AttributeError(f"the environments of a batch have no {attr_name!r} of their own to set")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """A method of every environment: `action_masks` or `render`."""
        if method_name not in (_MASKS, "render"):
            raise AttributeError(f"environments of a batch have action_masks and render, not {method_name!r}")
        rows = getattr(self._batch, method_name)(*method_args, **method_kwargs)
        return [rows[index] for index in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """They never are; `VecMonitor` counts episodes."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Pictures, with the render mode `rgb_array`."""
        return self._batch.render() or []
