"""Gymnasium adapters for a batch of environments and for a single environment, and their registration."""

import functools
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.registration import register, registry
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Bool, Float, PyTree, UInt32, UInt64

from phalanx.core.autoreset import AutoReset, AutoResetState, Mode
from phalanx.core.environment import Environment, info_fields, mask_size
from phalanx.core.spaces import discrete_sizes
from phalanx.core.vector import (
    VectorEnvState,
    initial_vector_state,
    positive_integer,
    reset_where,
    step_where,
)
from phalanx.integrations.gymnasium.spaces import (
    build_actions,
    check_actions,
    convert_action_space,
    convert_space,
    flat_space,
    take_row,
    to_arrays,
    to_flat_arrays,
)
from phalanx.registry import make, registered_environments

OBSERVATION, MASK = "observation", "action_mask"
"""Keys in an observation dictionary. `OBSERVATION` holds the environment's observation if it is a single
array, and `MASK` holds the mask of legal actions."""

Legal = Bool[Array, "batch actions"] | Bool[np.ndarray, "batch actions"] | None
Keys = UInt32[Array, "batch 2"]

_MAX_SEED = 2**64 - 1
_FLAGS = ("terminated", "truncated", "episode_done")
"""Fields of an environment's info that are left out of Gymnasium's infos, because `step` returns the same
values separately."""
_AUTORESET_MODES: dict[AutoresetMode, Mode] = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
}


@jax.jit
def _reset(
    environment: Environment, mask: Bool[Array, " batch"], keys: Keys, state: VectorEnvState
) -> tuple[VectorEnvState, Keys]:
    """Start new episodes where `mask` is True. Keys are split in the same way as in `AutoReset`."""
    split = jax.vmap(jax.random.split)(keys)
    next_keys = jnp.where(mask[:, None], split[:, 0], keys)
    return reset_where(environment, mask, split[:, 1], state), next_keys


@functools.partial(jax.jit, static_argnums=1)
def _step(
    environment: Environment, mode: Mode | None, keys: Keys, state: VectorEnvState, arrays: PyTree
) -> tuple[VectorEnvState, Keys, Float[Array, " batch"], Any, tuple[PyTree, Legal] | None]:
    """Step all environments, with auto-reset according to `mode`.

    Args:
        environment: The environment.
        mode: Auto-reset mode. None disables auto-reset.
        keys: One key per environment, from which its next episodes are drawn.
        state: State before the step.
        arrays: Actions, as arrays that `check_actions` returned.

    Returns:
        The new state (including whether each episode terminated or was truncated), the new keys, the rewards,
        the infos, and a pair of the observations and the masks of legal actions before any reset. The pair is
        None unless `mode` is "same_step".
    """
    actions = build_actions(environment.action_space, arrays)
    if mode == "next_step":
        auto, observations, rewards, _, auto_info = AutoReset(environment, mode).step(
            AutoResetState(state.states, keys), actions
        )
        info, flags, final = auto_info.info, (auto_info.terminated, auto_info.truncated), None
    else:
        after, rewards, info = step_where(environment, None, state, actions)
        if mode is None:
            return after, keys, rewards, info, None
        flags, final = (after.terminated, after.truncated), (after.observations, after.legal_actions)
        auto, observations = AutoReset(environment, mode).reset_where(
            after.terminated | after.truncated, AutoResetState(after.states, keys), after.observations
        )
    legal = jax.vmap(environment.legal_actions)(auto.states)
    return VectorEnvState(auto.states, observations, legal, *flags), auto.keys, rewards, info, final


class GymnasiumVectorEnv(gym.vector.VectorEnv):
    """A batch of environments that is stepped with one compiled call. It takes and returns NumPy arrays.

    - Observation: a dictionary with the fields of the environment's observation, or with the key
      `observation` if the observation is a single array. If the environment restricts the legal actions,
      there is also `action_mask` (int8, 1 for legal actions). If an action has several fields, the mask
      applies to the first field.
    - Action: an integer (`Discrete`), a vector if an action has several integer fields (`MultiDiscrete`; for
      ARC [operation, row, col] or [operation, r1, c1, r2, c2]), or a dictionary. An illegal action changes
      nothing and incurs a penalty.
    - Info: the fields of the environment's info, and `action_mask`. The info of a reset contains only
      `action_mask`.

    `reset(seed=s)` gives environment i the seed s + i, and a list gives each environment its own seed. The
    episodes of an environment depend only on its own seed, not on the rest of the batch.

    Args:
        environment: Environment to batch.
        num_envs: Number of environments.
        autoreset_mode: `NEXT_STEP`, `SAME_STEP` (with `final_obs` and `final_info`) or `DISABLED`, as a
            member of `AutoresetMode` or its value. With `DISABLED`, call `reset(options={"reset_mask":
            mask})` to reset the environments that have ended.
        flatten: Return each observation as one float32 vector, without `action_mask`.
        render_mode: One of the environment's `render_modes`. None disables rendering.
    """

    def __init__(
        self,
        environment: Environment,
        num_envs: Any,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        flatten: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.environment, self.num_envs = environment, positive_integer(num_envs, "num_envs")
        self._mode, self._flatten = _parse_mode(autoreset_mode), flatten
        modes = environment.render_modes
        if render_mode is not None and render_mode not in modes:
            names = ", ".join(modes) or "none"
            raise ValueError(f"render_mode must be None or one of: {names}; got {render_mode!r}")
        self.render_mode = render_mode
        self.metadata = {"render_modes": list(modes), "render_fps": 4, "autoreset_mode": self._mode}
        self.single_observation_space = self._single_observation_space()
        self.single_action_space = convert_action_space(environment.action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._state: VectorEnvState | None = None
        self._done = np.zeros(self.num_envs, bool)
        # One random seed per environment, as in Gymnasium.
        self._seeds = np.random.default_rng().integers(_MAX_SEED, size=self.num_envs, dtype=np.uint64)
        self._keys: Any = _keys_from_seeds(self._seeds)

    @property
    def state(self) -> VectorEnvState:
        """States, observations, legal actions and termination flags of all environments."""
        if self._state is None:
            raise gym.error.ResetNeeded("the environments have not been reset: call reset() first")
        return self._state

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Seed of each environment."""
        return tuple(self._seeds.tolist())

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or only those selected by the boolean array `options["reset_mask"]`.

        An environment without a new seed continues with its next episode.

        Args:
            seed: None, an integer s that gives environment i the seed s + i, or a list with a seed or None
                for each environment.
            options: None, or a dictionary with `reset_mask`.

        Returns:
            Observations and infos.
        """
        mask = _reset_mask(options, self.num_envs)
        if self._state is None and not mask.all():
            raise gym.error.ResetNeeded("the first reset must reset all environments; remove reset_mask")
        seeds, is_given = _parse_seeds(seed, self.num_envs)
        is_given &= mask
        self._seeds[is_given] = seeds[is_given]
        keys = np.where(is_given[:, None], _keys_from_seeds(self._seeds), self._keys)
        if self._state is None:
            self._state = initial_vector_state(self.environment, self.num_envs)
        self._state, self._keys = _reset(self.environment, mask, keys, self._state)
        state = self._state
        self._done = self._done & ~mask
        infos = _format_infos({MASK: state.legal_actions}, mask)
        return self._arrays(state.observations, state.legal_actions), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all environments and return observations, rewards, terminations, truncations and infos."""
        state = self.state
        if self._mode is AutoresetMode.DISABLED and self._done.any():
            raise gym.error.ResetNeeded(
                f"{self._done.sum()} of {self.num_envs} environments ended, starting with environment "
                f"{self._done.argmax()}: call reset(options={{'reset_mask': mask}}) before step(), or choose "
                "another autoreset_mode"
            )
        arrays = check_actions(self.environment.action_space, actions, self.num_envs)
        mode = _AUTORESET_MODES.get(self._mode)
        state, self._keys, rewards, info, final = _step(self.environment, mode, self._keys, state, arrays)
        self._state = state
        terminated, truncated = np.array(state.terminated), np.array(state.truncated)
        done = terminated | truncated
        infos = self._infos(info, final, done)
        self._done = np.zeros_like(done) if self._mode is AutoresetMode.SAME_STEP else done
        observations = self._arrays(state.observations, state.legal_actions)
        return observations, np.array(rewards, np.float64), terminated, truncated, infos

    def _infos(
        self, info: Any, final: tuple[PyTree, Legal] | None, done: Bool[np.ndarray, " batch"]
    ) -> dict[str, Any]:
        """Return the `infos` dictionary of a step.

        It omits the fields of `info` for environments that were reset in this step. In same-step mode, these
        fields are in `final_info`.

        Args:
            info: Info that the environment returned for the step.
            final: Observations and masks before any reset in same-step mode; None in the other modes.
            done: True for episodes that ended in the step.
        """
        fields = {name: value for name, value in info_fields(info).items() if name not in _FLAGS}
        legal = _format_infos({MASK: self.state.legal_actions}, np.ones_like(done))
        if final is None:
            # In next-step mode, environments that had ended before were reset in this step.
            return _format_infos(fields, ~self._done) | legal
        infos = _format_infos(fields, ~done) | legal
        if done.any():
            # Few episodes end in a step, so only their rows are copied.
            arrays = self._arrays(*jax.tree.map(lambda leaf: np.asarray(leaf)[done], final))
            observations = np.full(self.num_envs, None, object)
            for row, index in enumerate(np.flatnonzero(done)):
                observations[index] = jax.tree.map(np.array, take_row(arrays, row))
            infos["final_obs"], infos["_final_obs"] = observations, done.copy()
            infos["final_info"] = _format_infos({**fields, MASK: final[1]}, done)
            infos["_final_info"] = done.copy()
        return infos

    def action_masks(self) -> Bool[np.ndarray, "batch choices"]:
        """Return a mask of legal values for each integer in an action, concatenated along the last axis.

        This is the format that SB3-Contrib's `MaskablePPO` expects. For example, an ARC action [operation,
        row, col] has one mask for the operation, one for the row and one for the column. Only the mask of the
        first integer can contain False.
        """
        masks = self.state.legal_actions
        if masks is None:
            raise TypeError(f"{type(self.environment).__name__} has no mask of legal actions")
        num_unmasked = sum((discrete_sizes(self.environment.action_space) or [0])[1:])
        return np.pad(np.asarray(masks), ((0, 0), (0, num_unmasked)), constant_values=True)

    def render(self) -> tuple[Any, ...] | None:
        """Render each environment in the mode given by `render_mode`."""
        if self.render_mode is None:
            raise gym.error.Error(
                "pass a render_mode when you create the environment: "
                f"{', '.join(self.environment.render_modes) or 'none'}"
            )
        # On the host: indexing on a device would compile a program for every leaf.
        states = jax.device_get(self.state.states)
        rows = (jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(self.num_envs))
        return tuple(self.environment.render(row, self.render_mode) for row in rows)

    def _single_observation_space(self) -> gym.Space:
        if self._flatten:
            return flat_space(self.environment.observation_space)
        space, size = convert_space(self.environment.observation_space), mask_size(self.environment)
        fields = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {OBSERVATION: space}
        return gym.spaces.Dict(fields if size is None else {**fields, MASK: gym.spaces.MultiBinary(size)})

    def _arrays(self, observations: PyTree, legal: Legal) -> Any:
        space = self.environment.observation_space
        if self._flatten:
            return to_flat_arrays(space, observations)
        arrays = to_arrays(space, observations)
        arrays = arrays if isinstance(arrays, dict) else {OBSERVATION: arrays}
        return arrays if legal is None else {**arrays, MASK: np.array(legal, np.int8)}


class GymnasiumEnv(gym.Env):
    """Gymnasium environment that runs one episode at a time.

    It is a `GymnasiumVectorEnv` of size 1 without auto-reset.
    """

    def __init__(
        self, environment: Environment, *, flatten: bool = False, render_mode: str | None = None
    ) -> None:
        """Create the environment. The arguments are those of `GymnasiumVectorEnv`."""
        disabled = AutoresetMode.DISABLED
        self._batch = GymnasiumVectorEnv(
            environment, 1, autoreset_mode=disabled, flatten=flatten, render_mode=render_mode
        )
        self.environment, self.render_mode = environment, render_mode
        metadata = self._batch.metadata
        self.metadata = {name: metadata[name] for name in ("render_modes", "render_fps")}
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode and return the observation and the info.

        The seed determines a sequence of episodes. Without a seed, the next episode of the current sequence
        is started.
        """
        super().reset(seed=seed)
        observations, infos = self._batch.reset(seed=seed, options=options)
        return take_row(observations, 0), _first_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step and return observation, reward, terminated, truncated and info."""
        actions = jax.tree.map(lambda part: np.asarray(part)[None], action)
        observations, rewards, terminated, truncated, infos = self._batch.step(actions)
        flags = bool(terminated[0]), bool(truncated[0])
        return take_row(observations, 0), float(rewards[0]), *flags, _first_info(infos)

    def action_masks(self) -> Bool[np.ndarray, " choices"]:
        """Return the masks of legal values for all integers in an action, concatenated into one array.

        See `GymnasiumVectorEnv.action_masks`.
        """
        return self._batch.action_masks()[0]

    def render(self) -> Any:
        """Render the environment in the mode given by `render_mode`."""
        frames = self._batch.render()
        return None if frames is None else frames[0]


def register_environments() -> None:
    """Register every Phalanx environment with Gymnasium as `phalanx/<id>`.

    This is called when the package is imported. Call it again after `phalanx.register`.
    """
    for spec in registered_environments():
        if f"phalanx/{spec.id}" not in registry:
            register(
                f"phalanx/{spec.id}",
                entry_point=f"{__name__}:make_env",
                vector_entry_point=f"{__name__}:make_vector_env",
                kwargs={"phalanx_id": spec.id},
            )


def make_env(
    phalanx_id: str, *, flatten: bool = False, render_mode: str | None = None, **settings: Any
) -> GymnasiumEnv:
    """Create an environment for `gymnasium.make`. `settings` are passed to `phalanx.make`."""
    return GymnasiumEnv(make(phalanx_id, **settings), flatten=flatten, render_mode=render_mode)


def make_vector_env(
    phalanx_id: str,
    num_envs: Any,
    *,
    autoreset_mode: Any = "NextStep",
    flatten: bool = False,
    render_mode: str | None = None,
    **settings: Any,
) -> GymnasiumVectorEnv:
    """Create a vector environment for `gymnasium.make_vec`. `settings` are passed to `phalanx.make`."""
    environment = make(phalanx_id, **settings)
    return GymnasiumVectorEnv(
        environment, num_envs, autoreset_mode=autoreset_mode, flatten=flatten, render_mode=render_mode
    )


def _parse_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = ", ".join(f"{one.name} ({one.value!r})" for one in AutoresetMode)
        raise ValueError(f"autoreset_mode must be one of {names}; got {mode!r}") from None


def _format_infos(fields: Mapping[str, Any], mask: Bool[np.ndarray, " batch"]) -> dict[str, Any]:
    """Copy the infos of the environments where `mask` is True to NumPy arrays, in Gymnasium's format.

    Values of other environments are 0, and the mask is added under the name `_<field>`. Fields that are None
    are omitted.
    """
    if not mask.any():
        return {}
    infos: dict[str, Any] = {}
    for name, value in fields.items():
        if value is not None:
            infos[name] = np.array(value, np.int8 if name == MASK else None)
            infos[name][~mask] = 0
            infos[f"_{name}"] = mask.copy()
    return infos


def _first_info(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the infos of a batch of size 1 to those of a single environment."""
    first = {name: values[0] for name, values in infos.items() if not name.startswith("_")}
    return {name: value if value.ndim else value.item() for name, value in first.items()}


def _parse_seeds(seed: Any, num_envs: int) -> tuple[UInt64[np.ndarray, " batch"], Bool[np.ndarray, " batch"]]:
    """Return one seed per environment, and a mask of the environments for which a seed was given."""
    if seed is None:
        seed = [None] * num_envs
    if isinstance(seed, numbers.Integral):
        seed = range(int(seed), int(seed) + num_envs)
    if not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str):
        raise TypeError(f"seed must be None, an integer or a list of integers, got {seed!r}")
    if len(seed) != num_envs:
        raise ValueError(f"there are {num_envs} environments and {len(seed)} seeds; give one for each")
    for one in seed:
        if one is not None and not (isinstance(one, numbers.Integral) and 0 <= int(one) <= _MAX_SEED):
            raise ValueError(f"a seed must be None or an integer from 0 to 2**64 - 1, got {one!r}")
    is_given = np.array([one is not None for one in seed])
    return np.array([int(one or 0) for one in seed], np.uint64), is_given


def _keys_from_seeds(seeds: UInt64[np.ndarray, " batch"]) -> UInt32[np.ndarray, "batch 2"]:
    """Return the keys that `jax.random.PRNGKey` creates from the seeds."""
    halves = np.stack([seeds >> np.uint64(32), seeds & np.uint64(2**32 - 1)], axis=1)
    return halves.astype(np.uint32)


def _reset_mask(options: Mapping[str, Any] | None, num_envs: int) -> Bool[np.ndarray, " batch"]:
    """Return a mask of the environments selected by the options of `reset`.

    Without options, all environments are selected.
    """
    options = {} if options is None else options
    if unknown := [name for name in options if name != "reset_mask"]:
        raise ValueError(f"unknown option {unknown[0]!r}; reset takes only 'reset_mask'")
    if "reset_mask" not in options:
        return np.ones(num_envs, bool)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] must be a NumPy array of {num_envs} bool, got {mask!r}")
    if not mask.any():
        raise ValueError("options['reset_mask'] must select at least one environment")
    return mask.copy()
