"""Functions of a config: `arc_reset(key, config, task)` and `arc_step(state, action, config)`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Bool, Float32

from phalanx.arc.actions import Action
from phalanx.arc.config import ArcConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.observation import Observation
from phalanx.arc.reward import StepInfo
from phalanx.arc.state import ArcState
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer, Tasks
from phalanx.core.environment import Key
from phalanx.core.vector import environment_of, has_tracers

_MAX_CALLS = 256


def arc_reset(key: Key, config: ArcConfig, task: Tasks | None = None) -> tuple[ArcState, Observation]:
    """Start an episode on a random task and pair.

    Args:
        key: Random key.
        config: Settings of the environment.
        task: A task, several tasks or a task buffer; None uses the config's dataset.
    """
    environment = ArcEnvironment.create(config, task)
    if has_tracers(key):
        return environment.reset(key)
    state, observation = _jit_reset(environment, key)
    return environment.attach_names(state), observation


def arc_step(
    state: ArcState, action: Action, config: ArcConfig
) -> tuple[ArcState, Observation, Float32[Array, "*batch"], Bool[Array, "*batch"], StepInfo]:
    """Take a step: new state, observation, reward, done, info."""
    # Outside `jit`, most of the time is spent around the kernel. So the compiled program is found by the
    # identity of its arguments, states and actions are passed as plain arrays, and modules are read and
    # created through their dictionaries, because attribute access and constructors of Equinox modules are
    # slow.
    fields = _get(state, "__dict__")
    operands = tuple(_get(action, "__dict__").values())
    if isinstance(fields["similarity"], _Tracer) or isinstance(operands[0], _Tracer):
        environment: Any = environment_of(config, state)
        return environment.step(state, action)
    tasks = fields["tasks"]
    call = _calls.get((id(config), id(tasks), fields["columns"], type(action)))
    if call is None or fields["submission"] is not None:
        return _first_step(state, action, config)
    program, arrays, _ = call
    boards, registers, similarity, observation, reward, done, improvement, operation, steps, *ends = program(
        *arrays, fields["boards"], fields["registers"], fields["similarity"], *operands
    )
    new = object.__new__(ArcState)
    _get(new, "__dict__").update(fields, boards=boards, registers=registers, similarity=similarity)
    info = object.__new__(StepInfo)
    _get(info, "__dict__").update(
        similarity=similarity,
        similarity_improvement=improvement,
        operation_type=operation,
        step_count=steps,
        episode_done=done,
        terminated=ends[0],
        truncated=ends[1],
        solved=ends[2],
    )
    return new, observation, reward, done, info


_get = object.__getattribute__
_Tracer = jax.core.Tracer
_calls: dict[tuple[int, int, int, type], tuple[Callable[..., Any], tuple[Array, ...], Any]] = {}
"""Compiled step, arrays of the environment, and (config, tasks), which keeps these alive so that their
identities are not reused."""
_INFO_FIELDS = (
    "similarity_improvement",
    "operation_type",
    "step_count",
    "terminated",
    "truncated",
    "solved",
)


def _first_step(state: ArcState, action: Action, config: ArcConfig) -> tuple[Any, ...]:
    """Take a step with all checks, and prepare the next ones."""
    environment: Any = environment_of(config, state)
    new, *rest = _jit_step(environment, environment.detach_names(state), action)
    if (
        isinstance(config, ArcConfig)
        and state.submission is None
        and isinstance(state.tasks, TaskBuffer)
        and type(environment) is ArcEnvironment
    ):
        if len(_calls) >= _MAX_CALLS:
            _calls.clear()
        tasks = environment.task_arrays
        arrays = (tasks.pairs, tasks.sizes, tasks.table, tasks.num_tasks, environment.reward_weights)
        program = _step_program(environment.config, type(action))
        key = (id(config), id(state.tasks), state.columns, type(action))
        _calls[key] = program, arrays, (config, state.tasks)
    return environment.attach_names(new), *rest


@functools.lru_cache(maxsize=128)
def _step_program(config: ArcConfig, action_type: type[Any]) -> Callable[..., Any]:
    """Compile a step that takes all arrays as separate arguments."""

    @jax.jit
    def run(
        pairs: Array,
        sizes: Array,
        table: Array,
        num_tasks: Array,
        reward_weights: Array,
        boards: Array,
        registers: Array,
        similarity: Array,
        *fields: Array,
    ) -> tuple[Any, ...]:
        tasks = TaskArrays(pairs, sizes, table, num_tasks)
        environment = ArcEnvironment(config, tasks, None, reward_weights)
        state = ArcState(boards, registers, similarity, None, config.grid_shape[1])
        new, observation, reward, done, info = environment.step(state, action_type(*fields))
        rest = (getattr(info, name) for name in _INFO_FIELDS)
        return new.boards, new.registers, new.similarity, observation, reward, done, *rest

    return run


@jax.jit
def _jit_reset(environment: ArcEnvironment, key: Key) -> tuple[ArcState, Observation]:
    return environment.reset(key)


@jax.jit
def _jit_step(environment: ArcEnvironment, state: ArcState, action: Action) -> tuple[Any, ...]:
    return environment.step(state, action)
