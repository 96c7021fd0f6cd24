"""The ARC environment: reset, step, what an agent sees, and which operations are legal.

How operations work is in the engines; tasks are in `tasks`, `buffer` and `readers`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree, UInt32

from phalanx.arc import text as words
from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction
from phalanx.arc.buffer import TaskBuffer
from phalanx.arc.config import ArcConfig
from phalanx.arc.engines import transition
from phalanx.arc.engines.interface import Packed, fields_of
from phalanx.arc.observation import Observation, observation_of, observation_space
from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.arc.state import NUM_BOARDS, NUM_REGISTERS, STATUS, STEP_COUNT, ArcState
from phalanx.arc.tasks import ArcTask
from phalanx.core import engine as native
from phalanx.core.batching import map_where
from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.spaces import Box, Discrete, Record, Space

Tasks = ArcTask | TaskBuffer | Sequence[ArcTask]


class StepInfo(eqx.Module):
    """What a step tells besides state, observation, reward and done."""

    similarity: Float32[Array, "*batch"] | float
    """Similarity after the step."""
    similarity_improvement: Float32[Array, "*batch"] | float
    """Its change in this step."""
    operation_type: Int32[Array, "*batch"] | int
    """The operation that was carried out; -1 where the action was invalid or the episode over."""
    step_count: Int32[Array, "*batch"] | int
    """Steps taken in this episode."""
    episode_done: Bool[Array, "*batch"] | bool
    """Whether the episode has ended."""
    terminated: Bool[Array, "*batch"] | bool = False
    """Whether it ended by submission or solution."""
    truncated: Bool[Array, "*batch"] | bool = False
    """Whether it ran out of steps."""
    solved: Bool[Array, "*batch"] | bool = False
    """Whether it ended with the working grid equal to the target."""


@dataclasses.dataclass(frozen=True)
class ArcEnvironment(Environment[ArcState, Observation, Action]):
    """ARC puzzles: an agent edits a working grid until it equals the pair's output.

    - Observation: the working grid, int8 [rows, columns], -1 outside its area; more by `config.observation`.
    - Action: one of 42 operations on a point, a box or a mask of cells.
    - Reward: change of similarity, a step penalty, a success bonus; see `RewardConfig`.
    - Termination: submission or solution; truncation at `max_episode_steps`.

    Make it with `ArcEnvironment.create`, which settles the engine and checks that the tasks fit.
    """

    config: ArcConfig
    tasks: TaskBuffer | None

    @classmethod
    def create(cls, config: ArcConfig, task: Tasks | None = None) -> "ArcEnvironment":
        """The environment over a task, several tasks or a buffer; None takes the config's own, when reset."""
        if task is not None and not isinstance(task, TaskBuffer):
            task = _packed_tasks(task if isinstance(task, ArcTask) else tuple(task))
        return _environment(config, task, native.reason())

    @property
    def task_buffer(self) -> TaskBuffer:
        """The tasks that `reset` draws from."""
        return _default_tasks(self.config) if self.tasks is None else self.tasks

    @property
    def observation_space(self) -> Space:
        return observation_space(self.config)

    @property
    def action_space(self) -> Space:
        rows, columns = self.config.grid_shape
        operation = Discrete(NUM_OPERATIONS)
        row, column = Discrete(rows), Discrete(columns)
        match self.config.action.selection_format:
            case "point":
                return Record.of(PointAction, {"operation": operation, "row": row, "col": column})
            case "bbox":
                corners = {"r1": row, "c1": column, "r2": row, "c2": column}
                return Record.of(BboxAction, {"operation": operation, **corners})
            case "mask":
                cells = Box(0, 1, (rows, columns), np.bool_)
                return Record.of(MaskAction, {"operation": operation, "selection": cells})

    def reset(self, key: Key) -> tuple[ArcState, Observation]:
        return self._start(_draw(key))

    def batch_reset(self, keys: Keys) -> tuple[ArcState, Observation]:
        return self._start(jax.vmap(_draw)(keys))

    def batch_reset_to(
        self, tasks: Int32[Array, " batch"], pairs: Int32[Array, " batch"]
    ) -> tuple[ArcState, Observation]:
        """Start the given pairs of the given tasks, for evaluations that leave none out.

        Pairs count from 0 among those that the mode starts from: the tests in evaluation and for a task
        without demonstrations, the demonstrations otherwise. After the last comes the first again.
        """
        return self._start(jnp.stack([tasks, pairs], axis=-1).astype(jnp.uint32))

    def _start(self, bits: Array) -> tuple[ArcState, Observation]:
        batch = bits.shape[:-1]
        rows, columns = self.config.grid_shape
        seen = (rows, columns) if self.config.observation.working_grid else (0, 0)
        empty = Packed(
            jnp.zeros((*batch, NUM_BOARDS, rows), jnp.uint32),
            jnp.zeros((*batch, NUM_REGISTERS), jnp.int32),
            jnp.zeros(batch, jnp.float32),
        )
        packed, working = transition.reset(
            self.config,
            self.task_buffer.arrays,
            jnp.ones(batch, bool),
            bits,
            empty,
            jnp.zeros((*batch, *seen), jnp.int8),
        )
        state = ArcState(*packed, self.task_buffer, columns)
        return state, observation_of(state, self.config, working)

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: ArcState, observations: Observation
    ) -> tuple[ArcState, Observation]:
        bits = map_where(_draw, mask, keys, jnp.zeros((mask.shape[0], 2), jnp.uint32))
        packed, working = transition.reset(
            self.config, self.task_buffer.arrays, mask, bits, packed_of(states), _working_of(observations)
        )
        state = ArcState(*packed, states.tasks, states.columns)
        return state, observation_of(state, self.config, working)

    def step(
        self, state: ArcState, action: Action
    ) -> tuple[ArcState, Observation, Float32[Array, "*batch"], Bool[Array, "*batch"], StepInfo]:
        if state.grid_shape != self.config.grid_shape:
            raise ValueError(
                f"a state of {state.grid_shape} does not fit a canvas of {self.config.grid_shape}"
            )
        packed, outcome = transition.step(
            self.config, state.tasks.arrays, fields_of(action, state.grid_shape), packed_of(state)
        )
        new = ArcState(*packed, state.tasks, state.columns)
        info = StepInfo(
            similarity=new.similarity,
            similarity_improvement=outcome.improvement,
            operation_type=outcome.operation_type,
            step_count=outcome.step_count,
            episode_done=outcome.done,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            solved=outcome.solved,
        )
        return new, observation_of(new, self.config, outcome.observation), outcome.reward, outcome.done, info

    def batch_step(
        self, states: ArcState, actions: Action
    ) -> tuple[ArcState, Observation, Float32[Array, " batch"], Bool[Array, " batch"], StepInfo]:
        return self.step(states, actions)

    def observe(self, state: ArcState) -> Observation:
        return observation_of(state, self.config, None)

    def is_done(self, state: ArcState) -> Bool[Array, "*batch"]:
        return state.episode_done

    def sample_action(self, key: Key, state: ArcState) -> Action:
        """A random legal operation on random cells of the area."""
        from_key, row_key, column_key = jax.random.split(key, 3)
        operation = jnp.asarray(legal_ids(self.config))[
            jax.random.randint(from_key, (), 0, len(legal_ids(self.config)))
        ]
        rows = jax.random.randint(row_key, (2,), 0, state.height)
        columns = jax.random.randint(column_key, (2,), 0, state.width)
        box = BboxAction(operation, rows[0], columns[0], rows[1], columns[1])
        match self.config.action.selection_format:
            case "point":
                return PointAction(operation, box.r1, box.c1)
            case "bbox":
                return box
            case "mask":
                return MaskAction(operation, box.to_selection_mask(state.grid_shape))

    def invalid_action(self, key: Key, state: ArcState) -> Action:
        """A legal action's cells with an operation that does not exist or is not allowed."""
        illegal = sorted({-1, NUM_OPERATIONS, 99, *range(NUM_OPERATIONS)} - set(legal_ids(self.config)))
        choice = jax.random.randint(key, (), 0, len(illegal))
        action = self.sample_action(key, state)
        return eqx.tree_at(lambda a: a.operation, action, jnp.asarray(illegal, jnp.int32)[choice])

    def content(self, state: ArcState) -> PyTree:
        return state.boards, state.registers.at[..., jnp.array([STEP_COUNT, STATUS])].set(0), state.similarity

    def legal_actions(self, state: ArcState) -> Bool[Array, "*batch 42"]:
        """Which operations are legal; cells may be any of the canvas."""
        return legal_operations(state, self.config)

    @property
    def render_modes(self) -> tuple[str, ...]:
        return ("svg", "ansi", "rgb_array")

    def render(self, state: ArcState, mode: str = "svg") -> Any:
        """Input, working grid and, but in evaluation, the target."""
        from phalanx.arc.render.picture import render_picture

        show_target = self.config.environment.mode == "training"
        return render_picture(self.bind(state), mode, show_target=show_target)

    def task_name(self, state: ArcState) -> str:
        return words.task_of(self.bind(state)).id

    @property
    def has_text(self) -> bool:
        return True

    def observation_text(self, state: ArcState) -> str:
        return words.observation_text(self.config, self.bind(state), self._legal_here(state))

    def parse_action(self, text: str, state: ArcState) -> Action:
        return words.parse_action(self.config, text, self._legal_here(state))

    def action_text(self, action: Action, state: ArcState) -> str:
        return words.action_text(action)

    def _legal_here(self, state: ArcState) -> list[int]:
        return np.flatnonzero(np.asarray(self.legal_actions(state))).tolist()


def _draw(key: Key) -> UInt32[Array, "2"]:
    """The random words that choose a task and a pair."""
    return jax.random.bits(key, (2,), jnp.uint32)


def packed_of(state: ArcState) -> Packed:
    """A state's leaves."""
    return Packed(state.boards, state.registers, state.similarity)


def _working_of(observation: Observation) -> Array:
    return observation if isinstance(observation, jax.Array) else observation.working_grid


def legal_ids(config: ArcConfig) -> tuple[int, ...]:
    """The operations that a config allows."""
    return config.action.allowed_operations or tuple(range(NUM_OPERATIONS))


@functools.lru_cache(maxsize=128)
def _environment(config: ArcConfig, tasks: TaskBuffer | None, why_not_native: str) -> ArcEnvironment:
    """Made once for equal arguments: `batch_step(states, actions, config)` asks for it at every call."""
    config = transition.resolve_engine(config, why_not_native)
    if tasks is not None:
        _check_tasks(config, tasks)
    return ArcEnvironment(config, tasks)


@functools.lru_cache(maxsize=128)
def _packed_tasks(tasks: ArcTask | tuple[ArcTask, ...]) -> TaskBuffer:
    return TaskBuffer.from_tasks(tasks)


@functools.lru_cache(maxsize=16)
def _default_tasks(config: ArcConfig) -> TaskBuffer:
    from phalanx.arc.readers import load_tasks

    data = config.dataset
    tasks = load_tasks(
        data.source,
        data.split,
        families=data.families,
        max_size=config.grid_shape,
        num_tasks=data.num_tasks,
        seed=data.seed,
    )
    buffer = TaskBuffer.from_tasks(tasks)
    _check_tasks(config, buffer)
    return buffer


def _check_tasks(config: ArcConfig, buffer: TaskBuffer) -> None:
    """Every task must fit the canvas and have the outputs that the mode compares with."""
    rows, columns = config.grid_shape
    evaluation = config.environment.mode == "evaluation"
    for task in buffer:
        height, width = task.max_shape
        if height > rows or width > columns:
            raise ValueError(
                f"task {task.id!r} needs a canvas of {height}x{width}, the config's is {rows}x{columns}; "
                "raise dataset.max_grid_height and max_grid_width or choose tasks by size"
            )
        if evaluation and not task.tests:
            raise ValueError(f"task {task.id!r} has no test pair to evaluate on")
        used = task.tests if evaluation or not task.demos else task.demos
        for number, pair in enumerate(used):
            if pair.output is None:
                raise ValueError(f"task {task.id!r}: pair {number} has no output to compare with")


@functools.partial(jax.jit, static_argnums=0)
def _jit_reset(environment: ArcEnvironment, key: Key) -> tuple[ArcState, Observation]:
    return environment.reset(key)


@functools.partial(jax.jit, static_argnums=0)
def _jit_step(environment: ArcEnvironment, state: ArcState, action: Action) -> tuple:
    return environment.step(state, action)


def arc_reset(key: Key, config: ArcConfig, task: Tasks | None = None) -> tuple[ArcState, Observation]:
    """Start one episode: the key draws a task of the buffer and a pair of the task."""
    return _jit_reset(ArcEnvironment.create(config, task), key)


def arc_step(
    state: ArcState, action: Action, config: ArcConfig
) -> tuple[ArcState, Observation, Float32[Array, "*batch"], Bool[Array, "*batch"], StepInfo]:
    """One transition: state, observation, reward, done, info."""
    return _jit_step(ArcEnvironment.create(config), state, action)


def create_observation(state: ArcState, config: ArcConfig) -> Observation:
    """What an agent sees of a state."""
    return observation_of(state, config, None)


def legal_operations(state: ArcState, config: ArcConfig) -> Bool[Array, "*batch 42"]:
    """Which operations are legal."""
    allowed = np.zeros(NUM_OPERATIONS, bool)
    allowed[list(legal_ids(config))] = True
    return jnp.broadcast_to(jnp.asarray(allowed), (*state.batch_shape, NUM_OPERATIONS))


def check_bounds_jax(action: Action, grid_shape: tuple[int, ...]) -> Bool[Array, "*batch"]:
    """Whether the cells that an action names lie on the canvas (the last two axes of a grid's shape)."""
    known = eqx.tree_at(lambda a: a.operation, action, jnp.zeros_like(action.operation))
    return known.validate((grid_shape[-2], grid_shape[-1]))


def validate_action_jax(action: Action, state: ArcState, config: ArcConfig) -> Bool[Array, "*batch"]:
    """Whether an action would be carried out: a known, allowed operation on cells of the canvas."""
    allowed = legal_operations(state, config)
    known = jnp.clip(action.operation, 0, NUM_OPERATIONS - 1)
    return action.validate(config.grid_shape) & jnp.take_along_axis(allowed, known[..., None], -1)[..., 0]
