"""The ARC environment."""

import dataclasses
import functools
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int8, Int32

from phalanx.arc import backends, evaluation_mode, reward as rewards, task_sampling
from phalanx.arc.actions import Action, action_space, encode_action, legal_operations, random_action
from phalanx.arc.bitplanes import pack_grid, trim
from phalanx.arc.config import ArcConfig
from phalanx.arc.datasets import fitting_tasks
from phalanx.arc.evaluation_mode import HiddenTestOutputs
from phalanx.arc.observation import ArcObservation, Observation, create_observation, observation_space
from phalanx.arc.operations import Operation
from phalanx.arc.reward import RewardFunction, RewardWeights
from phalanx.arc.state import (
    NUM_BOARDS,
    ArcState,
    RegisterIndex,
    StepInfo,
    blank_states,
    replace_fields,
    vmap_batch,
)
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer, Tasks, as_buffer, with_answers
from phalanx.arc.task_sampling import EpisodeStart
from phalanx.arc.tasks import as_grid
from phalanx.core.backends import resolve_backend
from phalanx.core.environment import Environment, Key, array_field, host_field
from phalanx.core.spaces import Space
from phalanx.core.vector import map_where, select_rows
from phalanx.native import native_unavailable_reason

Env = TypeVar("Env", bound="ArcEnvironment")
ResetResult = tuple[ArcState, Observation]
"""State and observation at the start of an episode."""
StepResult = tuple[ArcState, Observation, Float32[Array, "*batch"], Bool[Array, "*batch"], StepInfo]
"""New state, observation, reward, done flag and info of a step."""


class ArcEnvironment(Environment[ArcState, Observation, Action]):
    """ARC tasks as a grid-editing environment. An episode starts with the input of an input-output pair,
    which the agent changes step by step into the output.

    Grids of different sizes are stored in the top-left corner of a canvas, which has the same size for all
    tasks (`config.grid_shape`).

    - Observation: the working grid, int8 [rows, columns] with -1 outside the grid, and any
      optional fields that `config.observation` enables.
    - Action: one of 42 operations on a point, a bounding box or a mask of cells.
    - Reward: change in similarity to the target, a step penalty and a success bonus (see `RewardConfig`), or
      a custom function.
    - Termination: when the grid is submitted or solved. Truncation: after `max_episode_steps` steps.

    In evaluation mode, an episode consists of a complete task. The agent edits one grid per test pair and
    submits all grids together. States and backends contain the tasks without their test outputs, and nothing
    about the answers is revealed before the last submission.

    Use `create` or `phalanx.make("arc")` to create an environment, and `with_tasks`, `with_task_weights` and
    `with_reward` to create modified copies. Tasks, task weights and reward weights are arrays. If an
    environment is an argument of a compiled function, these arrays are traced, so passing a modified copy
    does not recompile the function. If the environment is a static argument or captured in a closure, the
    arrays are constants of the program.
    """

    config: ArcConfig
    task_arrays: TaskArrays = array_field()
    """Grids of the tasks as arrays. In evaluation mode, they do not contain the test outputs."""
    task_weights: Float32[Array, "*groups tasks"] | None = array_field()
    """Sampling weight of each task. If None, tasks are sampled uniformly. The `groups` axes are those of
    `TaskArrays`."""
    reward_weights: RewardWeights = array_field()
    """Weights of the default reward, in the order of `REWARD_WEIGHTS`. Initially, these are the values in
    `config.reward`."""
    tasks: TaskBuffer | None = host_field(default=None)
    """The tasks with their ids and grids. None inside a compiled function that takes the environment as a
    traced argument."""
    reward_function: RewardFunction | None = array_field(default=None)
    """Custom reward function. If None, the default reward is used."""
    answers: HiddenTestOutputs | None = array_field(default=None)
    """Hidden test outputs in evaluation mode, or None in training mode."""

    render_modes: ClassVar[tuple[str, ...]] = ("svg", "ansi", "rgb_array")

    @classmethod
    def create(cls: type[Env], config: ArcConfig, task: Tasks | None = None) -> Env:
        """Create an environment with uniform task sampling and the default reward. Use `with_task_weights`
        and `with_reward` to change these.

        Args:
            config: Settings. If the backend is `auto`, it is replaced by the backend that is actually used.
            task: A task, several tasks or a task buffer. If None, the tasks of `config.dataset` are used.
        """
        buffer = None if task is None else with_answers(as_buffer(task))
        environment: Env = _create(cls, config, buffer, native_unavailable_reason())
        return environment

    def with_tasks(self: Env, tasks: Tasks | TaskArrays) -> Env:
        """Return a copy of the environment with new tasks. If the environment has task weights, they are
        reset to equal weights.

        If the new tasks fit in the arrays of the current tasks, they are padded to the same shape, so that
        compiled functions are not recompiled. `TaskBuffer.from_tasks` can reserve space for this. States of
        running episodes refer to the old tasks and cannot be used with the copy.
        """
        if isinstance(tasks, TaskArrays):
            buffer, arrays, answers = None, tasks, self.answers
            if answers is not None:
                num_tests, rows = answers.sizes.shape[-2], self.config.grid_shape[0]
                arrays, answers = evaluation_mode.split_answers(tasks, num_tests, rows)
        else:
            buffer = with_answers(as_buffer(tasks))
            buffer.check(self.config)
            buffer = buffer.pad_to(self.task_arrays)
            arrays, answers = evaluation_mode.hide_answers(self.config, buffer)
        weights = None if self.task_weights is None else jnp.ones(arrays.table.shape[-2], jnp.float32)
        return dataclasses.replace(
            self, tasks=buffer, task_arrays=arrays, task_weights=weights, answers=answers
        )

    def with_task_weights(self: Env, weights: object) -> Env:
        """Return a copy of the environment with new sampling weights, one per task. If `weights` is None,
        tasks are sampled uniformly."""
        if weights is None:
            return dataclasses.replace(self, task_weights=None)
        padded_tasks = self.task_arrays.table.shape[-2]
        num_tasks = padded_tasks if self.tasks is None else len(self.tasks)
        valid = task_sampling.validate_task_weights(weights, num_tasks, padded_tasks)
        return dataclasses.replace(self, task_weights=valid)

    def with_reward(self: Env, function: RewardFunction | None = None, **weights: Any) -> Env:
        """Return a copy of the environment with a different reward. Pass either a function or weights.

        Args:
            function: Custom reward function, which maps one `RewardInput` to a scalar. If it is an Equinox
                module, its arrays are traced. If None, the default reward is used.
            weights: New weights of the default reward, such as `step_penalty=-0.1`. Other weights keep their
                values. Weights may be traced.
        """
        if function is not None and weights:
            raise ValueError("pass either a reward function or weights of the default reward, not both")
        if function is not None:
            return dataclasses.replace(self, reward_function=rewards.as_reward_function(function))
        changed = rewards.replace_reward_weights(self.reward_weights, weights)
        return dataclasses.replace(self, reward_weights=changed, reward_function=None)

    @property
    def max_episode_steps(self) -> int:  # type: ignore[override]
        return self.config.episode.max_episode_steps

    @property
    def task_buffer(self) -> TaskBuffer:
        """The tasks with their ids and grids. Raises `ValueError` inside a compiled function that takes the
        environment as a traced argument."""
        if self.tasks is None:
            raise ValueError(
                "this environment was an argument of a compiled program (or of jax.tree.map), so it has only "
                "the arrays of its tasks. Use the environment that was passed to the program"
            )
        return self.tasks

    @property
    def observation_space(self) -> Space:
        return observation_space(self.config)

    @property
    def action_space(self) -> Space:
        return action_space(self.config)

    def initial_state(self, key: Key) -> ArcState:
        return self.reset(key)[0]

    def transition(self, state: ArcState, action: Action) -> tuple[ArcState, Any, Any]:
        state, _, reward, _, _ = self.step(state, action)
        return state, reward, state.terminated

    def kernel(self) -> "ArcKernel":
        return ArcKernel(self)

    def batch_reset_to(self, tasks: Int32[Array, "*batch"], pairs: Int32[Array, "*batch"]) -> ResetResult:
        """Start one episode on each of the given pairs, instead of sampling tasks and pairs.

        Args:
            tasks: Index of each episode's task.
            pairs: Index of each episode's first pair. In evaluation mode, and for tasks without
                demonstrations, it is an index of a test pair; otherwise, it is an index of a demonstration
                pair. Indices that are too large are taken modulo the number of these pairs.
        """
        return self._start(task_sampling.start_at(tasks, pairs, self.task_arrays))

    def state_from_grid(self, grid: object, task: int | str = 0, pair: int = 0) -> ArcState:
        """Create the first state of an episode that starts with the given working grid.

        Args:
            grid: Working grid, as rows of colors or an array. It may be padded with -1 at the bottom and on
                the right, as in observations.
            task: Index or id of the task.
            pair: Index of the pair, as in `batch_reset_to`.
        """
        rows, columns = self.config.grid_shape
        cells = as_grid(trim(grid), "state_from_grid")
        if cells.shape[0] > rows or cells.shape[1] > columns:
            raise ValueError(f"a grid of {cells.shape} does not fit a canvas of {(rows, columns)}")
        index = self.task_buffer.index_of(task) if isinstance(task, str) else task
        if not 0 <= index < len(self.task_buffer):
            raise ValueError(f"task {index} does not exist: there are {len(self.task_buffer)} tasks")
        state, _ = self.batch_reset_to(jnp.int32(index), jnp.int32(pair))
        planes, size = pack_grid(cells, rows), np.array(cells.shape)
        changed: Any = backends.replace_grid(self.config, self.task_arrays, state.detach(), planes, size)
        return replace_fields(changed, tasks=state.tasks, submission=state.submission)

    def observe(self, state: ArcState) -> Observation:
        return self._observe(state, None)

    def sample_action(self, key: Key, state: ArcState) -> Action:
        """Sample a uniformly random action, with an allowed operation and cells of the working grid."""
        return random_action(key, self.config, self.config.action.operations, state.height, state.width)

    def legal_actions(self, state: ArcState) -> Bool[Array, "*batch 42"]:
        """Return the mask of legal operations. The cells need no mask, because all cells of the canvas may be
        selected."""
        return legal_operations(state, self.config)

    def metrics(self, state: ArcState) -> dict[str, Any]:
        return {"success": state.solved, "similarity": state.similarity}

    def render(self, state: ArcState, mode: str = "svg") -> Any:
        """Draw the input, the working grid and, in training mode, the target of a state.

        Args:
            state: A single state.
            mode: One of `render_modes`.
        """
        if mode not in self.render_modes:
            raise ValueError(f"ARC can be rendered as {', '.join(self.render_modes)}, got {mode!r}")
        state, show_target = self.attach_names(state), self.answers is None
        if mode == "svg":
            from phalanx.arc.rendering.svg_task import draw_state

            return draw_state(state, show_target=show_target).as_svg()
        if mode == "ansi":
            from phalanx.arc.rendering.terminal import format_state

            return format_state(state, show_target=show_target)
        from phalanx.arc.rendering.pixels import draw_pixels

        return draw_pixels(state, show_target=show_target)

    def attach_names(self, states: ArcState) -> ArcState:
        """Attach the tasks to states, which makes the states easier to read and to render.

        If a compiled program takes the environment as an argument, the states that it returns have no tasks.
        """
        return replace_fields(states, tasks=self.task_arrays if self.tasks is None else self._visible_tasks)

    def detach_names(self, states: ArcState) -> ArcState:
        """Remove the tasks from states. All states with the same shapes then share one compiled program.

        Raises:
            ValueError: If the states belong to other tasks.
        """
        self._check_tasks(states)
        return replace_fields(states, tasks=None)

    def with_answers(self, states: ArcState) -> ArcState:
        """Return the states with the complete tasks attached, including the test outputs, which evaluation
        mode hides from agents."""
        return replace_fields(states, tasks=self.task_buffer)

    def __repr__(self) -> str:
        rows, columns = self.config.grid_shape
        parts = [f"canvas {rows}x{columns}", self.config.action.selection_format, self.config.episode.mode]
        parts += [f"backend {self.config.backend}", str(self.tasks or self.task_arrays)]
        parts += ["weighted"] * (self.task_weights is not None)
        parts += ["custom reward"] * (self.reward_function is not None)
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def _visible_tasks(self) -> TaskBuffer | None:
        """Tasks that are attached to states. In evaluation mode, they have no test outputs. None if `tasks`
        is None."""
        return self.tasks if self.tasks is None or self.answers is None else self.tasks.without_answers

    @property
    def _cumulative_weights(self) -> Float32[Array, " tasks"] | None:
        if self.task_weights is None:
            return None
        return task_sampling.cumulative_weights(self.task_weights, self.task_arrays)

    def _sample_start(self, key: Key, cumulative: Float32[Array, " tasks"] | None) -> EpisodeStart:
        bits = task_sampling.sample_start(key, self.task_arrays, cumulative)
        # In evaluation mode, an episode starts with the first test pair.
        return bits if self.answers is None else bits.at[1].set(0)

    def _start(self, start_bits: EpisodeStart) -> ResetResult:
        bits = start_bits
        if self.answers is not None:
            bits = evaluation_mode.start_bits_per_test(start_bits, self.answers.sizes.shape[-2])
        batch = bits.shape[:-1]
        blank = blank_states(batch, self.config.grid_shape)
        grid_shape = self.config.grid_shape if self.config.observation.working_grid else (0, 0)
        grid = jnp.zeros((*batch, *grid_shape), jnp.int8)
        state, grid = backends.reset(self.config, self.task_arrays, jnp.ones(batch, bool), bits, blank, grid)
        if self.answers is not None:
            state = evaluation_mode.start(self.config, self.task_arrays, start_bits, state)
        state = replace_fields(state, tasks=self._visible_tasks)
        return state, self._observe(state, grid if self.answers is None else None)

    def _observe(self, state: ArcState, grid: Int8[Array, "*batch rows columns"] | None) -> Observation:
        with_tasks = state if self.config.observation.is_single_array else self.attach_names(state)
        return create_observation(with_tasks, self.config, grid)

    def _check(self, states: ArcState) -> None:
        """Raise an error if the states do not match the environment's shapes, dtypes, mode or tasks."""
        rows, columns = self.config.grid_shape
        if states.grid_shape != (rows, columns):
            raise ValueError(
                f"the states have a canvas of {states.grid_shape}, the environment of {(rows, columns)}"
            )
        batch = states.batch_shape
        for name, shape, dtype in (
            ("boards", (*batch, NUM_BOARDS, rows), jnp.uint32),
            ("registers", (*batch, len(RegisterIndex)), jnp.int32),
            ("similarity", batch, jnp.float32),
        ):
            leaf = getattr(states, name)
            if jnp.shape(leaf) != shape or jnp.result_type(leaf) != dtype:
                raise ValueError(
                    f"a state's {name} must be {jnp.dtype(dtype).name} of shape {shape} on a canvas of "
                    f"{rows}x{columns}, got {jnp.result_type(leaf)} of shape {jnp.shape(leaf)}"
                )
        if (states.submission is None) != (self.answers is None):
            raise ValueError("the states belong to another mode (training or evaluation): start new episodes")
        self._check_tasks(states)

    def _check_tasks(self, states: ArcState) -> None:
        """Raise an error if the states refer to different tasks than this environment. The check is skipped
        if no `TaskBuffer` is attached to the states or the environment's `tasks` is None. The backends always
        check the task indices."""
        own = self._visible_tasks
        if isinstance(states.tasks, TaskBuffer) and own is not None and states.tasks != own:
            raise ValueError(
                f"the states belong to other tasks than the environment: they refer to {states.tasks}, the "
                f"environment has {own}; start new episodes after changing the tasks"
            )


@dataclasses.dataclass(frozen=True)
class ArcKernel:
    """Resets and steps batches of ARC environments with the native or XLA backend."""

    environment: ArcEnvironment

    def reset(self, keys: Any) -> ResetResult:
        env = self.environment
        sample = functools.partial(env._sample_start, cumulative=env._cumulative_weights)
        batch = jax.random.key_data(keys).shape[:-1]
        return env._start(vmap_batch(sample, batch)(keys))

    def reset_where(
        self, mask: Bool[Array, " batch"], keys: Any, states: ArcState, observations: Observation
    ) -> ResetResult:
        env = self.environment
        env._check(states)
        if env.answers is not None:
            states = replace_fields(states, tasks=env._visible_tasks)
            selected: ResetResult = select_rows(mask, self.reset(keys), (states, observations))
            return selected
        zeros = jnp.zeros((mask.shape[0], 3), jnp.uint32)
        shared = (env.task_arrays, env._cumulative_weights)
        start_bits = map_where(task_sampling.sample_start, mask, keys, zeros, shared=shared)
        grid = observations.working_grid if isinstance(observations, ArcObservation) else observations
        state, grid = backends.reset(env.config, env.task_arrays, mask, start_bits, states.detach(), grid)
        state = replace_fields(state, tasks=states.tasks)
        return state, env._observe(state, grid)

    def step(self, states: ArcState, actions: Action) -> StepResult:
        env = self.environment
        env._check(states)
        encoded = encode_action(actions, states.batch_shape, states.grid_shape)
        new, grid, info = backends.step(env.config, env.task_arrays, encoded, states.detach())
        if env.answers is not None:
            before = replace_fields(states, tasks=None)
            new, info = evaluation_mode.step(env.config, env.task_arrays, env.answers, before, new, info)
        reward = rewards.compute_reward(env.config, env.reward_weights, env.reward_function, states, info)
        new = replace_fields(new, tasks=states.tasks)
        # In evaluation mode, the backend's unpacked grid may be that of another test pair.
        observation = env._observe(new, grid if env.answers is None else None)
        return new, observation, reward, jnp.asarray(info.episode_done), info


# Cached because `batch_step(states, actions, config)` creates the environment on every call.
@functools.lru_cache(maxsize=128)
def _create(cls: type[Any], config: ArcConfig, tasks: TaskBuffer | None, native_unavailable: str) -> Any:
    config = config.model_copy(update={"backend": resolve_backend(config.backend)})
    tasks = fitting_tasks(config.dataset) if tasks is None else tasks
    tasks.check(config)
    if config.episode.mode == "evaluation" and Operation.SUBMIT not in config.action.operations:
        raise ValueError(
            "evaluation mode requires submissions: action.allowed_operations must contain "
            f"{int(Operation.SUBMIT)} (Submit)"
        )
    arrays, answers = evaluation_mode.hide_answers(config, tasks)
    with jax.ensure_compile_time_eval():
        weights = jnp.asarray(rewards.reward_weights_from_config(config.reward))
    return cls(config, arrays, None, weights, tasks, answers=answers)
