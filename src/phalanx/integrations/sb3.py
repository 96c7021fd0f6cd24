"""Stable-Baselines3 `VecEnv` with action masks for SB3-Contrib's `MaskablePPO`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.extras import require_extra

with require_extra(__name__, "sb3", "stable_baselines3", "gymnasium", "jax"):
    import jax as _jax  # noqa: F401
    from gymnasium.vector import AutoresetMode
    from stable_baselines3.common.vec_env import VecEnv

from phalanx.core.environment import Environment, mask_size
from phalanx.integrations.gymnasium.env import GymnasiumVectorEnv

_MASKS = "action_masks"


class SB3VecEnv(VecEnv):
    """A vectorized environment for Stable-Baselines3, as in `PPO("MlpPolicy", SB3VecEnv(environment, 256))`.

    - Observation: a float32 vector for `MlpPolicy`, or with `flatten=False` a dictionary of fields for
      `MultiInputPolicy`.
    - Action: `Discrete` or `MultiDiscrete`, as in `GymnasiumVectorEnv`.
    - Finished episodes are reset in the same step. Their info has `terminal_observation`,
      `TimeLimit.truncated` and the fields of the environment's info. The infos of all other episodes are
      empty.
    - `env_method("action_masks")` returns the mask of each environment in the format that `MaskablePPO`
      expects.

    Args:
        environment: Environment to vectorize.
        num_envs: Number of environments.
        flatten: Return each observation as one float32 vector.
        seed: Seed for the first reset. If None, random seeds are used.
        render_mode: One of the environment's `render_modes`. None disables rendering.
    """

    def __init__(
        self,
        environment: Environment,
        num_envs: int,
        *,
        flatten: bool = True,
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._batch = GymnasiumVectorEnv(
            environment,
            num_envs,
            autoreset_mode=AutoresetMode.SAME_STEP,
            flatten=flatten,
            render_mode=render_mode,
        )
        super().__init__(num_envs, self._batch.single_observation_space, self._batch.single_action_space)
        self._actions: Any = None
        if seed is not None:
            self.seed(seed)

    def reset(self) -> Any:
        """Reset all environments and return the observations.

        Seeds that were set with `seed` are used only for the next reset.
        """
        observations, _ = self._batch.reset(seed=self._seeds)
        self._reset_seeds()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step all environments and return observations, rewards, dones and infos."""
        observations, rewards, terminated, truncated, batch_infos = self._batch.step(self._actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(done):
            final_info = batch_infos["final_info"]
            fields = {name: v[index] for name, v in final_info.items() if not name.startswith("_")}
            infos[index] = {
                **fields,
                "terminal_observation": batch_infos["final_obs"][index],
                "TimeLimit.truncated": bool(truncated[index] and not terminated[index]),
            }
        return observations, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return the value of an attribute for each environment in `indices` (None means all).

        The value is the same for all environments, because it is an attribute of the vectorized environment.
        """
        if attr_name == _MASKS and mask_size(self._batch.environment) is None:
            raise AttributeError(f"{type(self._batch.environment).__name__} has no mask of legal actions")
        return [getattr(self._batch, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise `AttributeError`, because the environments of a batch have no attributes of their own."""
        raise AttributeError(
            f"cannot set {attr_name!r}: the environments of a batch have no attributes of their own"
        )

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call `action_masks` or `render`, and return the results of the environments in `indices`."""
        if method_name not in (_MASKS, "render"):
            raise AttributeError(f"only action_masks and render can be called, not {method_name!r}")
        rows = getattr(self._batch, method_name)(*method_args, **method_kwargs)
        return [rows[index] for index in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return False for every environment. Use `VecMonitor` to record episode statistics."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return an image of each environment. This requires the `rgb_array` render mode."""
        return self._batch.render() or []
