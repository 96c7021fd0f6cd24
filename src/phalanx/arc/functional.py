"""Functional API of the ARC environment: `arc_reset`, `arc_step` and their batched versions take a config
instead of an environment."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.arc.actions import Action
from phalanx.arc.config import ArcConfig
from phalanx.arc.env import ArcEnvironment, ResetResult, StepResult
from phalanx.arc.reward import reward_weights_from_config
from phalanx.arc.state import ArcState, StepInfo
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer, Tasks
from phalanx.core import episodes, vector
from phalanx.core.environment import Key, Keys
from phalanx.core.vector import has_tracers

_MAX_CALLS = 256


Configured = ArcEnvironment | ArcConfig
"""An environment, or the config of an ARC environment."""


def as_environment(config: Configured, task: Any = None) -> ArcEnvironment:
    """Return the environment that a config describes.

    Args:
        config: A config, or an environment, which is returned unchanged.
        task: A task, several tasks or a task buffer. If None, the config's dataset is used.
    """
    if isinstance(config, ArcEnvironment):
        if task is not None:
            raise TypeError(f"{type(config).__name__} already has its tasks; pass a config to select a task")
        return config
    if isinstance(config, ArcConfig):
        return ArcEnvironment.create(config, task)
    raise TypeError(f"expected an ArcEnvironment or an ArcConfig, got {type(config).__name__}")


def environment_of(config: Configured, states: PyTree) -> ArcEnvironment:
    """Return the environment to which states belong.

    Args:
        config: The environment, or its config.
        states: States. If a config is given and the states have a `tasks` attribute, the environment is
            created with these tasks.
    """
    if isinstance(config, ArcEnvironment) or not hasattr(states, "tasks"):
        return as_environment(config)
    if states.tasks is None:
        raise ValueError(
            "these states were created in a compiled program that takes the environment as an argument, so "
            "their tasks are unknown: pass the environment instead of the config, or "
            "environment.attach_names(states)"
        )
    return as_environment(config, states.tasks)


def batch_reset(keys: Keys, config: Configured, task: Any = None) -> tuple[PyTree, PyTree]:
    """Start one episode per key.

    Args:
        keys: One PRNG key per environment.
        config: Config of the environment, or the environment itself.
        task: A task, several tasks or a task buffer. If None, the config's dataset is used.

    Returns:
        States and observations with a leading batch axis.
    """
    environment = as_environment(config, task)
    if has_tracers(environment, keys):
        return environment.batch_reset(keys)
    states, observation = vector.batch_reset(keys, environment)
    return environment.attach_names(states), observation


def batch_step(
    states: PyTree, actions: PyTree, config: Configured, *, donate: bool = False
) -> tuple[PyTree, PyTree, Float[Array, " batch"], Bool[Array, " batch"], StepInfo]:
    """Advance every environment in a batch by one step.

    Args:
        states: States with a leading batch axis.
        actions: One action per environment.
        config: Config of the environment, or the environment itself.
        donate: Reuse the memory of `states`. The old states can no longer be used after the call.

    Returns:
        New states, observations, rewards, dones and infos.
    """
    environment = environment_of(config, states)
    if has_tracers(environment, states, actions):
        return environment.batch_step(states, actions)
    after, *rest = vector.batch_step(environment.detach_names(states), actions, environment, donate=donate)
    return environment.attach_names(after), *rest


def run_episode_batch(
    states: PyTree,
    agent_fn: episodes.AgentFunction,
    max_steps: int,
    config: Configured,
    *,
    agent_state: PyTree = None,
    key: Key | None = None,
    auto_reset: bool = False,
) -> tuple[PyTree, Float[Array, " batch"], episodes.BatchTrajectory]:
    """Run an agent in a batch of environments.

    The arguments and results are those of `phalanx.core.run_episode_batch`, except that `config` may be
    either the config of the environment or the environment itself.
    """
    # The result of `batch_reset` is also accepted.
    environment = environment_of(config, states[0] if type(states) is tuple and states else states)
    return episodes.run_episode_batch(
        states, agent_fn, max_steps, environment, agent_state=agent_state, key=key, auto_reset=auto_reset
    )


def arc_reset(key: Key, config: ArcConfig, task: Tasks | None = None) -> ResetResult:
    """Start an episode on a random task and pair.

    Args:
        key: Random key.
        config: Config of the environment.
        task: A task, several tasks or a task buffer. If None, the config's dataset is used.

    Returns:
        The first state and its observation.
    """
    environment = ArcEnvironment.create(config, task)
    if has_tracers(key):
        return environment.reset(key)
    state, observation = _jit_reset(environment, key)
    return environment.attach_names(state), observation


def arc_step(state: ArcState, action: Action, config: ArcConfig) -> StepResult:
    """Advance an environment, or a batch of environments, by one step.

    Args:
        state: Current state.
        action: Action to execute.
        config: Config of the environment.

    Returns:
        New state, observation, reward, done and info.
    """
    # Outside `jit`, most of the time is spent around the kernel. So the compiled program is found by the
    # identity of its arguments, states and actions are passed as plain arrays, and modules are read and
    # created through their dictionaries, because attribute access and constructors of Equinox modules are
    # slow.
    fields = _get(state, "__dict__")
    operands = tuple(_get(action, "__dict__").values())
    before = fields["similarity"]
    # `isinstance(..., jax.core.Tracer)` runs Python code, so known types are accepted first.
    known = type(before) in _array_types and type(operands[0]) in _array_types
    if not known and (isinstance(before, jax.core.Tracer) or isinstance(operands[0], jax.core.Tracer)):
        return environment_of(config, state).kernel().step(state, action)
    call = _calls.get((id(config), id(fields["tasks"]), fields["columns"], type(action)))
    if call is None or fields["submission"] is not None:
        return _first_step(state, action, config)
    boards, registers, similarity, observation, reward, done, operation = call[0](
        *call[1], fields["boards"], fields["registers"], before, *operands
    )
    new = _new(ArcState)
    _get(new, "__dict__").update(fields, boards=boards, registers=registers, similarity=similarity)
    info = _new(StepInfo)
    info.__dict__.update(
        similarity=similarity, operation_type=operation, episode_done=done, _inputs=(before, new)
    )
    return new, observation, reward, done, info


_get, _new = object.__getattribute__, object.__new__
_array_types: set[type] = set()
"""Array types that are known not to be tracers. `_first_step` adds the types that it encounters."""
_calls: dict[tuple[int, int, int, type], tuple[Callable[..., Any], tuple[Array, ...], Any]] = {}
"""Cache of compiled steps. The key consists of the ids of the config and the tasks, the width of the canvas
and the type of the action. Each entry contains the compiled function, the task arrays, and the config and
tasks themselves. The config and tasks are kept alive so that Python does not reuse their ids for other
objects."""


def _first_step(state: ArcState, action: Action, config: ArcConfig) -> tuple[Any, ...]:
    """Execute a step with all checks, and cache the compiled function for later steps."""
    environment: Any = environment_of(config, state)
    new, *rest = _jit_step(environment, environment.detach_names(state), action)
    is_training = state.submission is None and isinstance(state.tasks, TaskBuffer)
    if is_training and isinstance(config, ArcConfig) and type(environment) is ArcEnvironment:
        if len(_calls) >= _MAX_CALLS:
            _calls.clear()
        tasks = environment.task_arrays
        _array_types.add(type(tasks.pairs))
        program = _step_program(environment.config, type(action))
        key = (id(config), id(state.tasks), state.columns, type(action))
        _calls[key] = program, (tasks.pairs, tasks.sizes, tasks.table), (config, state.tasks)
    return environment.attach_names(new), *rest


@functools.lru_cache(maxsize=128)
def _step_program(config: ArcConfig, action_type: type[Any]) -> Callable[..., Any]:
    """Return a compiled step function whose arguments and results are plain arrays. It has as few arguments
    and results as possible, because each of them adds overhead to a call."""

    @jax.jit
    def run(pairs: Array, sizes: Array, table: Array, *arrays: Array) -> tuple[Any, ...]:
        # The number of tasks matters only for sampling tasks.
        tasks = TaskArrays(pairs, sizes, table, jnp.int32(table.shape[0]))
        weights = jnp.asarray(reward_weights_from_config(config.reward))
        environment = ArcEnvironment(config, tasks, None, weights)
        boards, registers, similarity, *action = arrays
        state = ArcState(boards, registers, similarity, None, config.grid_shape[1])
        new, observation, reward, done, info = environment.kernel().step(state, action_type(*action))
        return new.boards, new.registers, new.similarity, observation, reward, done, info.operation_type

    return run


_jit_reset = jax.jit(lambda environment, key: environment.reset(key))
# The kernel accepts single states as well as batches.
_jit_step = jax.jit(lambda environment, state, action: environment.kernel().step(state, action))
