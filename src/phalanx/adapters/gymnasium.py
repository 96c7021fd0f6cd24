"""Phalanx environments for Gymnasium: `PhalanxVectorEnv` steps many in one call, `PhalanxEnv` is one alone.

Importing this registers `phalanx/Arc-v0` and `phalanx/Proof-v0`, which `gymnasium_making` makes. The parts
are in the modules beside: `gymnasium_spaces`, `_resets`, `_steps`, `_infos` and `_rendering`.
"""

from typing import Any, Literal, get_args

try:
    import gymnasium as gym
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "gymnasium":
        raise
    raise ModuleNotFoundError(
        f'phalanx.adapters.gymnasium needs {error.name}: pip install "phalanx[gym]"', name=error.name
    ) from error

import jax
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Int8, PyTree

from phalanx.adapters import gymnasium_resets as resets
from phalanx.adapters.batch_environment import (
    MASK,
    OBSERVATION,
    has_own_mask,
    legal_operations,
    whole_number,
)
from phalanx.adapters.gymnasium_infos import fields_of, info_of_one, told_of
from phalanx.adapters.gymnasium_registration import register_environments
from phalanx.adapters.gymnasium_rendering import Renderers, renderers_of
from phalanx.adapters.gymnasium_spaces import (
    action_space_of,
    arrays_of,
    column_sizes,
    flat_arrays_of,
    flat_space_of,
    given_actions,
    row_of,
    space_of,
)
from phalanx.adapters.gymnasium_steps import Outcome, Running, advance, begin, not_begun
from phalanx.core.autoreset import Mode as CoreMode
from phalanx.core.environment import Environment

ObservationForm = Literal["dict", "flat"]
"""A dictionary of the observation's fields and the mask, or one vector of all fields without the mask."""

_CORE_MODES: dict[AutoresetMode, CoreMode] = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
}


class PhalanxVectorEnv(gym.vector.VectorEnv):
    """A batch of a Phalanx environment that is stepped by one compiled call, with NumPy arrays in and out.

    - Observation (`observation="dict"`): the fields of the environment's observation by name, one that is an
      array at `observation`, and `action_mask`, int8, 1 where an action (of ARC: an operation) is legal. With
      `observation="flat"`: all of it but the mask as one float32 vector.
    - Action: for ARC `MultiDiscrete`, [operation, row, col] or [operation, r1, c1, r2, c2], or with masks of
      cells a dictionary; for proofs `Discrete`. An illegal action changes nothing and costs a penalty.
    - Info: what the environment tells of a step, and `action_mask`, as after a reset.
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
        observation: str = "dict",
        render_mode: str | None = None,
        renderers: Renderers | None = None,
    ) -> None:
        """`renderers` draw one state, by render mode; ARC environments have some of their own."""
        self.environment, self.num_envs = environment, whole_number(num_envs, "num_envs")
        self._mode = _mode_named(autoreset_mode)
        if observation not in get_args(ObservationForm):
            raise ValueError(f"observation must be 'dict' or 'flat', got {observation!r}")
        self._renderers = renderers_of(environment) if renderers is None else renderers
        if render_mode is not None and render_mode not in self._renderers:
            there = ", ".join(self._renderers) or "none"
            raise ValueError(f"render_mode must be None or one of: {there}; got {render_mode!r}")
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": list(self._renderers), "render_fps": 4, "autoreset_mode": self._mode
        }  # fmt: skip
        self._has_own_mask, self._legal = has_own_mask(environment), legal_operations(environment)
        self._seen, self._acts, self._flat = (
            environment.observation_space,
            environment.action_space,
            observation == "flat",
        )
        self.single_observation_space = self._observation_space()
        self.single_action_space = action_space_of(self._acts)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._running: Running | None = None
        self._ended = np.zeros(self.num_envs, bool)
        self._seeds = resets.chance_seeds(self.num_envs)
        self._unsown = np.ones(self.num_envs, bool)

    @property
    def running(self) -> Running:
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
        chosen = resets.reset_mask(options, self.num_envs)
        if self._running is None and not chosen.all():
            raise gym.error.ResetNeeded("the first reset must start all environments, reset_mask names some")
        seeds, given = resets.seeds_of(seed, self.num_envs)
        given &= chosen
        self._seeds[given] = seeds[given]
        self._unsown |= given
        sown = self._unsown & chosen
        self._unsown &= ~chosen
        if self._running is None:
            self._running = not_begun(self.environment, self.num_envs)
        self._running = begin(self.environment, chosen, sown, resets.keys_of(self._seeds), self._running)
        self._ended = self._ended & ~chosen
        observations = self._running.observations
        return self._arrays(observations), told_of({MASK: self._masks(observations)}, chosen)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment: observations, rewards, terminations, truncations, infos."""
        running = self.running
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            raise gym.error.ResetNeeded(
                f"{_named(self._ended)} ended: reset with options={{'reset_mask': ended}} before you step, "
                "or choose an autoreset_mode that does it"
            )
        given = given_actions(self._acts, actions, self.num_envs)
        after, outcome = advance(self.environment, _CORE_MODES.get(self._mode), running, given)
        self._running = after
        terminated, truncated = np.array(outcome.terminated), np.array(outcome.truncated)
        done = terminated | truncated
        infos = self._infos(outcome, done)
        self._ended = np.zeros_like(done) if self._mode is AutoresetMode.SAME_STEP else done
        observations = self._arrays(after.observations)
        return observations, np.array(outcome.rewards, np.float64), terminated, truncated, infos

    def _infos(self, outcome: Outcome, done: Bool[np.ndarray, " batch"]) -> dict[str, Any]:
        """What the step told of the environments that took it; the others have just been reset."""
        told = fields_of(outcome.info)
        everywhere = np.ones_like(done)
        legal = told_of({MASK: self._masks(self.running.observations)}, everywhere)
        if self._mode is not AutoresetMode.SAME_STEP:
            # Environments that had ended before were reset in this step, if they were not refused.
            return told_of(told, ~self._ended) | legal
        infos = told_of(told, ~done) | legal
        if done.any():
            infos["final_obs"], infos["_final_obs"] = self._terminal(outcome.terminal, done), done.copy()
            infos["final_info"] = told_of({**told, MASK: self._masks(outcome.terminal)}, done)
            infos["_final_info"] = done.copy()
        return infos

    def _terminal(self, observations: PyTree, done: Bool[np.ndarray, " batch"]) -> np.ndarray:
        """The observations of the environments that have ended, as objects, with None for the others."""
        # Few end in a step, so only theirs are copied.
        ended = self._arrays(jax.tree.map(lambda leaf: np.asarray(leaf)[done], observations))
        final = np.full(self.num_envs, None, object)
        for row, index in enumerate(np.flatnonzero(done)):
            final[index] = jax.tree.map(np.array, row_of(ended, row))
        return final

    def action_masks(self) -> Bool[np.ndarray, "batch choices"]:
        """Which values are legal, for every number of an action one after the other.

        In the form of SB3-Contrib's `MaskablePPO`: for ARC's points those of operation, row and column.
        """
        masks = self._masks(self.running.observations)
        if masks is None:
            raise TypeError(f"{type(self.environment).__name__} has no mask of legal actions")
        cells = sum((column_sizes(self._acts) or [0])[1:])
        return np.concatenate([masks.astype(bool), np.ones((self.num_envs, cells), bool)], axis=1)

    def render(self) -> tuple[Any, ...] | None:
        """A picture of each environment, in the `render_mode` that was chosen."""
        if self.render_mode is None:
            raise gym.error.Error(
                f"choose a render_mode when you make the environment: {', '.join(self._renderers) or 'none'}"
            )
        # On the host: taken apart by JAX, every leaf's part would be compiled on its own.
        states, draw = jax.device_get(self.running.auto.states), self._renderers[self.render_mode]
        return tuple(draw(jax.tree.map(lambda leaf, i=i: leaf[i], states)) for i in range(self.num_envs))

    def _observation_space(self) -> gym.Space:
        if self._flat:
            return flat_space_of(self._seen, MASK)
        seen = space_of(self._seen)
        fields = dict(seen.spaces) if isinstance(seen, gym.spaces.Dict) else {OBSERVATION: seen}
        if self._legal is not None:
            fields[MASK] = gym.spaces.MultiBinary(len(self._legal))
        return gym.spaces.Dict(fields)

    def _arrays(self, observations: PyTree) -> Any:
        if self._flat:
            return flat_arrays_of(self._seen, observations, MASK)
        seen = arrays_of(self._seen, observations)
        seen = seen if isinstance(seen, dict) else {OBSERVATION: seen}
        return seen if self._legal is None else {**seen, MASK: self._masks(observations)}

    def _masks(self, observations: PyTree) -> Int8[np.ndarray, "batch actions"] | None:
        if self._has_own_mask:
            return np.array(getattr(observations, MASK), np.int8)
        if self._legal is None:
            return None
        count = len(jax.tree.leaves(observations)[0])
        return np.repeat(self._legal.astype(np.int8)[None], count, axis=0)


class PhalanxEnv(gym.Env):
    """One Phalanx environment as Gymnasium knows it: a `PhalanxVectorEnv` of one that never resets itself."""

    def __init__(
        self,
        environment: Environment,
        *,
        observation: str = "dict",
        render_mode: str | None = None,
        renderers: Renderers | None = None,
    ) -> None:
        """The arguments are those of `PhalanxVectorEnv`."""
        self._batch = PhalanxVectorEnv(
            environment,
            1,
            autoreset_mode=AutoresetMode.DISABLED,
            observation=observation,
            render_mode=render_mode,
            renderers=renderers,
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
        return row_of(observations, 0), info_of_one(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step: observation, reward, terminated, truncated, info."""
        actions = jax.tree.map(lambda part: np.asarray(part)[None], action)
        observations, rewards, terminated, truncated, infos = self._batch.step(actions)
        ends = bool(terminated[0]), bool(truncated[0])
        return row_of(observations, 0), float(rewards[0]), *ends, info_of_one(infos)

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


register_environments()
