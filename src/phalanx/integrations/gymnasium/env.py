"""Gymnasium environments: `GymnasiumVectorEnv`, `GymnasiumEnv`, and their registration.

Ids and their settings are those of `phalanx.make`; spaces are in `spaces`, the compiled calls in `stepping`.
"""

from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium.envs.registration import register, registry
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Bool, Int8, PyTree

from phalanx.core.autoreset import Mode as CoreMode
from phalanx.core.environment import Environment
from phalanx.integrations.environments import MASK, OBSERVATION, mask_size, whole_number
from phalanx.integrations.gymnasium import stepping
from phalanx.integrations.gymnasium.spaces import (
    action_space_of,
    arrays_of,
    column_sizes,
    flat_arrays_of,
    flat_space_of,
    given_actions,
    row_of,
    space_of,
)
from phalanx.registry import make, registered_environments

Legal = Bool[Array, "batch actions"] | Bool[np.ndarray, "batch actions"] | None

_CORE_MODES: dict[AutoresetMode, CoreMode] = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
}


class GymnasiumVectorEnv(gym.vector.VectorEnv):
    """A batch of a Phalanx environment that is stepped by one compiled call, with NumPy arrays in and out.

    - Observation: the fields of the environment's observation by name, one that is an array at `observation`;
      and for environments that have legal actions `action_mask`, int8, 1 where the action (of a record: its
      first field) is legal. With `flat`: the environment's observation as one float32 vector.
    - Action: `Discrete`, or `MultiDiscrete` for a record of whole numbers (of ARC [operation, row, col] or
      [operation, r1, c1, r2, c2]), or a dictionary. An illegal action changes nothing and costs a penalty.
    - Info: what the environment tells of a step, and `action_mask`, as after a reset.
    - `render_mode`: one of the environment's `render_modes`.
    - `autoreset_mode`: `NEXT_STEP`, `SAME_STEP` (with `final_obs` and `final_info`) or `DISABLED`; then
      `reset(options={"reset_mask": mask})` starts the environments that have ended. A member of
      `AutoresetMode` or its value, such as `"SameStep"`.

    `reset(seed=s)` gives environment i the seed s + i, a list gives each its own. An environment's episodes
    depend on its own seed only: not on the others, nor on how many there are.
    """

    def __init__(
        self,
        environment: Environment,
        num_envs: Any,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        flat: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.environment, self.num_envs = environment, whole_number(num_envs, "num_envs")
        self._mode, self._flat = _mode_named(autoreset_mode), flat
        modes = environment.render_modes
        if render_mode is not None and render_mode not in modes:
            there = ", ".join(modes) or "none"
            raise ValueError(f"render_mode must be None or one of: {there}; got {render_mode!r}")
        self.render_mode = render_mode
        self.metadata = {"render_modes": list(modes), "render_fps": 4, "autoreset_mode": self._mode}
        self._seen, self._acts = environment.observation_space, environment.action_space
        self.single_observation_space = self._observation_space()
        self.single_action_space = action_space_of(self._acts)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._running: stepping.Running | None = None
        self._ended = np.zeros(self.num_envs, bool)
        self._seeds = stepping.chance_seeds(self.num_envs)
        self._unsown = np.ones(self.num_envs, bool)

    @property
    def running(self) -> stepping.Running:
        """Where the environments stand."""
        if self._running is None:
            raise gym.error.ResetNeeded("the environments have not begun: call reset() first")
        return self._running

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment."""
        return tuple(self._seeds.tolist())

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all environments, or those of `options["reset_mask"]`.

        An environment that gets no seed goes on to its next episode.
        """
        chosen = stepping.reset_mask(options, self.num_envs)
        if self._running is None and not chosen.all():
            raise gym.error.ResetNeeded("the first reset must start all environments, reset_mask names some")
        seeds, given = stepping.seeds_of(seed, self.num_envs)
        given &= chosen
        self._seeds[given] = seeds[given]
        self._unsown |= given
        sown = self._unsown & chosen
        self._unsown &= ~chosen
        if self._running is None:
            self._running = stepping.not_begun(self.environment, self.num_envs)
        keys = stepping.keys_of(self._seeds)
        running = self._running = stepping.begin(self.environment, chosen, sown, keys, self._running)
        self._ended = self._ended & ~chosen
        infos = stepping.infos_of({MASK: _masks(running.legal)}, chosen)
        return self._arrays(running.observations, running.legal), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment: observations, rewards, terminations, truncations, infos."""
        running = self.running
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            raise gym.error.ResetNeeded(
                f"{_named(self._ended)} ended: reset with options={{'reset_mask': ended}} before you step, "
                "or choose an autoreset_mode that does it"
            )
        given = given_actions(self._acts, actions, self.num_envs)
        after, outcome = stepping.advance(self.environment, _CORE_MODES.get(self._mode), running, given)
        self._running = after
        terminated, truncated = np.array(outcome.terminated), np.array(outcome.truncated)
        done = terminated | truncated
        infos = self._infos(outcome, done)
        self._ended = np.zeros_like(done) if self._mode is AutoresetMode.SAME_STEP else done
        observations = self._arrays(after.observations, after.legal)
        return observations, np.array(outcome.rewards, np.float64), terminated, truncated, infos

    def _infos(self, outcome: stepping.Outcome, done: Bool[np.ndarray, " batch"]) -> dict[str, Any]:
        """What the step told of the environments that took it; the others have just been reset."""
        told = stepping.told_fields(outcome.info)
        legal = stepping.infos_of({MASK: _masks(self.running.legal)}, np.ones_like(done))
        if outcome.terminal is None:
            # Environments that had ended before were reset in this step, if they were not refused.
            return stepping.infos_of(told, ~self._ended) | legal
        infos = stepping.infos_of(told, ~done) | legal
        if done.any():
            infos["final_obs"], infos["_final_obs"] = self._terminal(outcome.terminal, done), done.copy()
            infos["final_info"] = stepping.infos_of({**told, MASK: _masks(outcome.terminal[1])}, done)
            infos["_final_info"] = done.copy()
        return infos

    def _terminal(self, terminal: tuple[PyTree, Legal], done: Bool[np.ndarray, " batch"]) -> np.ndarray:
        """The observations of the environments that have ended, as objects, with None for the others."""
        # Few end in a step, so only theirs are copied.
        ended = self._arrays(*jax.tree.map(lambda leaf: np.asarray(leaf)[done], terminal))
        final = np.full(self.num_envs, None, object)
        for row, index in enumerate(np.flatnonzero(done)):
            final[index] = jax.tree.map(np.array, row_of(ended, row))
        return final

    def action_masks(self) -> Bool[np.ndarray, "batch choices"]:
        """Which values are legal, for every number of an action one after the other.

        In the form of SB3-Contrib's `MaskablePPO`: for ARC's points those of operation, row and column.
        """
        masks = _masks(self.running.legal)
        if masks is None:
            raise TypeError(f"{type(self.environment).__name__} has no mask of legal actions")
        cells = sum((column_sizes(self._acts) or [0])[1:])
        return np.concatenate([masks.astype(bool), np.ones((self.num_envs, cells), bool)], axis=1)

    def render(self) -> tuple[Any, ...] | None:
        """A picture of each environment, in the `render_mode` that was chosen."""
        if self.render_mode is None:
            raise gym.error.Error(
                "choose a render_mode when you make the environment: "
                f"{', '.join(self.environment.render_modes) or 'none'}"
            )
        # On the host: taken apart by JAX, every leaf's part would be compiled on its own.
        states = jax.device_get(self.running.auto.states)
        rows = (jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(self.num_envs))
        return tuple(self.environment.render(row, self.render_mode) for row in rows)

    def _observation_space(self) -> gym.Space:
        if self._flat:
            return flat_space_of(self._seen)
        seen, size = space_of(self._seen), mask_size(self.environment)
        fields = dict(seen.spaces) if isinstance(seen, gym.spaces.Dict) else {OBSERVATION: seen}
        return gym.spaces.Dict(fields if size is None else {**fields, MASK: gym.spaces.MultiBinary(size)})

    def _arrays(self, observations: PyTree, legal: Legal) -> Any:
        if self._flat:
            return flat_arrays_of(self._seen, observations)
        seen = arrays_of(self._seen, observations)
        seen = seen if isinstance(seen, dict) else {OBSERVATION: seen}
        return seen if legal is None else {**seen, MASK: _masks(legal)}


def _masks(legal: Legal) -> Int8[np.ndarray, "batch actions"] | None:
    return None if legal is None else np.array(legal, np.int8)


class GymnasiumEnv(gym.Env):
    """A single environment: a `GymnasiumVectorEnv` of size one without auto-reset."""

    def __init__(
        self, environment: Environment, *, flat: bool = False, render_mode: str | None = None
    ) -> None:
        """The arguments are those of `GymnasiumVectorEnv`."""
        disabled = AutoresetMode.DISABLED
        self._batch = GymnasiumVectorEnv(
            environment, 1, autoreset_mode=disabled, flat=flat, render_mode=render_mode
        )
        self.environment, self.render_mode = environment, render_mode
        metadata = self._batch.metadata
        self.metadata = {name: metadata[name] for name in ("render_modes", "render_fps")}
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without a seed, the one that follows."""
        super().reset(seed=seed)
        observations, infos = self._batch.reset(seed=seed, options=options)
        return row_of(observations, 0), stepping.info_of_one(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step: observation, reward, terminated, truncated, info."""
        actions = jax.tree.map(lambda part: np.asarray(part)[None], action)
        observations, rewards, terminated, truncated, infos = self._batch.step(actions)
        ends = bool(terminated[0]), bool(truncated[0])
        return row_of(observations, 0), float(rewards[0]), *ends, stepping.info_of_one(infos)

    def action_masks(self) -> Bool[np.ndarray, " choices"]:
        """Which values are legal, for every number of an action one after the other."""
        return self._batch.action_masks()[0]

    def render(self) -> Any:
        """A picture, in the `render_mode` that was chosen."""
        frames = self._batch.render()
        return None if frames is None else frames[0]


def _named(mask: Bool[np.ndarray, " batch"]) -> str:
    numbers = np.flatnonzero(mask).tolist()
    if len(numbers) == 1:
        return f"environment {numbers[0]} has"
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return f"environments {shown} have"


def _mode_named(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = ", ".join(f"{one.name} ({one.value!r})" for one in AutoresetMode)
        raise ValueError(f"autoreset_mode must be one of {names}; got {mode!r}") from None


def register_environments() -> None:
    """Register `phalanx/<id>` for every id of `phalanx.make` that Gymnasium does not know yet.

    Importing the adapter does it; call it again after a `phalanx.register` of your own.
    """
    for found in registered_environments():
        if f"phalanx/{found.id}" not in registry:
            register(
                f"phalanx/{found.id}",
                entry_point=f"{__name__}:make_single",
                vector_entry_point=f"{__name__}:make_vector",
                kwargs={"phalanx_id": found.id},
            )


def make_single(
    phalanx_id: str, *, flat: bool = False, render_mode: str | None = None, **settings: Any
) -> GymnasiumEnv:
    """`gymnasium.make("phalanx/arc-v2", ...)`; settings are those of `phalanx.make`."""
    return GymnasiumEnv(make(phalanx_id, **settings), flat=flat, render_mode=render_mode)


def make_vector(
    phalanx_id: str,
    num_envs: Any,
    *,
    autoreset_mode: Any = "NextStep",
    flat: bool = False,
    render_mode: str | None = None,
    **settings: Any,
) -> GymnasiumVectorEnv:
    """`gymnasium.make_vec("phalanx/arc-v2", ...)`; settings are those of `phalanx.make`."""
    environment = make(phalanx_id, **settings)
    return GymnasiumVectorEnv(
        environment, num_envs, autoreset_mode=autoreset_mode, flat=flat, render_mode=render_mode
    )
