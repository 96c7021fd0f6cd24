"""Whole episodes of a batch as one compiled `lax.scan`, with the agent's state and key in the carry.

Agents live in `phalanx.training`; rollouts for learning, which need values and log-probabilities, do too.
"""

import dataclasses
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.environment import Environment, EnvironmentConfigLike, Key
from phalanx.core.vector import environment_of

MOST_DRAWN = 6
"""How many environments of a trajectory a notebook shows."""

AgentFunction = Callable[[Any, Any, Any], tuple[Any, Any]]
"""`agent_fn(states, agent_states, key) -> (actions, new_agent_states)`, for the whole batch at once."""


class Trajectory(eqx.Module):
    """Everything that happened, time first: each leaf is `[steps, batch, ...]`."""

    actions: PyTree
    """What the agent did."""
    observations: PyTree
    """What followed: `observations[t]` is seen after `actions[t]`."""
    rewards: Float[Array, "*steps batch"]
    """0 once an environment has finished."""
    dones: Bool[Array, "*steps batch"]
    """True from the step that ends the episode on (with auto-reset: at that step only)."""
    infos: PyTree
    """The environment's infos (with auto-reset: `AutoResetInfo`)."""

    def _repr_html_(self) -> str:
        from phalanx import svg as drawing

        if self.rewards.ndim != 2:
            return f"<pre>{self!r}</pre>"
        rewards, dones = (np.asarray(array) for array in jax.device_get((self.rewards, self.dones)))
        totals, (steps, batch) = rewards.cumsum(0), rewards.shape
        ends = (float(min(totals.min(), 0)), float(max(totals.max(), 0)))
        rows = []
        for number in range(min(batch, MOST_DRAWN)):
            ended = (
                f"ended at step {dones[:, number].argmax() + 1}" if dones[:, number].any() else "not ended"
            )
            told = f"environment {number}: return {totals[-1, number]:.2f}, {ended}"
            walk = drawing.line_chart([0.0, *totals[:, number].tolist()], height=28, ends=ends)
            rows.append(drawing.hstack([drawing.text_block(told, width=340), walk], align="bottom"))
        title = f"{steps} steps of {batch} environments, mean return {totals[-1].mean():.2f}"
        return drawing.to_html(
            drawing.to_drawing(drawing.vstack([drawing.text_block(title, bold=True), *rows]), title)
        )


def run_episode_batch(
    states: PyTree,
    agent_fn: AgentFunction,
    max_steps: int,
    config: Environment | EnvironmentConfigLike,
    *,
    agent_state: PyTree = None,
    key: Key | None = None,
    auto_reset: bool = False,
) -> tuple[PyTree, Float[Array, " batch"], Trajectory]:
    """Run a batch for `max_steps` steps: final states, total rewards, trajectories.

    `states` is a batch of states, or the `(states, observations)` pair that `batch_reset` returns.
    Environments that finish stay finished and earn nothing more, unless `auto_reset` starts them anew in the
    same step. Without a key the run uses `jax.random.PRNGKey(0)`, so it is reproducible.

    The compiled run is kept for the next call with an equal `agent_fn`. A function or a method of a frozen,
    hashable agent is equal to itself; of an Equinox module's method, arrays may change without a new
    compilation. A lambda written in the call is new each time, and compiles each time.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    if type(states) is tuple:
        if len(states) != 2:
            raise TypeError(
                f"states must be a batch of states or batch_reset's (states, observations), "
                f"got a tuple of {len(states)}"
            )
        states = states[0]
    environment = environment_of(config, states)
    key = jax.random.PRNGKey(0) if key is None else key
    return _run(environment, states, _by_value(agent_fn), max_steps, agent_state, key, auto_reset)


@dataclasses.dataclass(frozen=True)
class _Method:
    """A bound method that equals another when function and owner are equal; Python's wants one owner."""

    owner: Any
    function: FunctionType

    def __call__(self, *arguments: Any) -> Any:
        return self.function(self.owner, *arguments)


def _by_value(agent_fn: AgentFunction) -> AgentFunction:
    if not isinstance(agent_fn, MethodType) or not isinstance(agent_fn.__func__, FunctionType):
        return agent_fn
    try:
        hash(agent_fn.__self__)
    except TypeError:
        return agent_fn
    return _Method(agent_fn.__self__, agent_fn.__func__)


@eqx.filter_jit
def _run(
    environment: Environment,
    states: PyTree,
    agent_fn: AgentFunction,
    max_steps: int,
    agent_state: PyTree,
    key: Key,
    auto_reset: bool,
) -> tuple[PyTree, Float[Array, " batch"], Trajectory]:
    _check_agent(agent_fn, states, agent_state, key)
    layer = AutoReset(environment)
    batch = environment.is_done(states).shape[0]
    start: Any = states
    if auto_reset:
        key, reset_key = jax.random.split(key)
        start = AutoResetState(states, jax.random.split(reset_key, batch))

    def scan_step(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], Trajectory]:
        current, agent_state, total_rewards, key = carry
        key, action_key = jax.random.split(key)
        seen = current.states if auto_reset else current
        actions, agent_state = agent_fn(seen, agent_state, action_key)
        step: Callable[..., tuple[Any, ...]] = layer.step if auto_reset else environment.batch_step
        current, observations, rewards, dones, infos = step(current, actions)
        record = Trajectory(actions, observations, rewards, dones, infos)
        return (current, agent_state, total_rewards + rewards, key), record

    carry = (start, agent_state, jnp.zeros(batch, jnp.float32), key)
    (final, _, total_rewards, _), trajectory = jax.lax.scan(scan_step, carry, None, length=max_steps)
    return final.states if auto_reset else final, total_rewards, trajectory


def _check_agent(agent_fn: AgentFunction, states: PyTree, agent_state: PyTree, key: Key) -> None:
    """Say in words what an agent got wrong; at trace time, so it costs nothing later."""
    returned = eqx.filter_eval_shape(agent_fn, states, agent_state, key)
    if type(returned) is not tuple or len(returned) != 2:
        raise TypeError(
            f"agent_fn must return (actions, new_agent_states), got {type(returned).__name__}: {returned!r}"
        )
    given: Any = jax.tree.structure(agent_state)
    got: Any = jax.tree.structure(returned[1])
    if given != got:
        raise TypeError(
            f"agent_fn returned an agent state of another structure than it was given; pass the first one as "
            f"agent_state. Given {given}, returned {got}"
        )
