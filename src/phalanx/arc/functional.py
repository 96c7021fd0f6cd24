"""Functions of a config: `arc_reset(key, config, task)` and `arc_step(state, action, config)`."""

from typing import Any

import jax
from jaxtyping import Array, Bool, Float32

from phalanx.arc.actions import Action
from phalanx.arc.config import ArcConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.observation import Observation
from phalanx.arc.reward import StepInfo
from phalanx.arc.state import ArcState
from phalanx.arc.task_buffer import Tasks
from phalanx.core.environment import Key
from phalanx.core.vector import environment_of, has_tracers


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
    environment: Any = environment_of(config, state)
    if has_tracers(state, action):
        return environment.step(state, action)
    after, *rest = _jit_step(environment, environment.detach_names(state), action)
    return environment.attach_names(after), *rest


@jax.jit
def _jit_reset(environment: ArcEnvironment, key: Key) -> tuple[ArcState, Observation]:
    return environment.reset(key)


@jax.jit
def _jit_step(environment: ArcEnvironment, state: ArcState, action: Action) -> tuple[Any, ...]:
    return environment.step(state, action)
