"""Agents that act at random, and legally: for smoke tests, baselines and benchmarks.

Agents that learn have modules of their own.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, PyTree, UInt32

from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction
from phalanx.arc.config import ActionConfig, ArcConfig, SelectionFormat
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.state import ArcState
from phalanx.core.environment import Environment, EnvironmentConfigLike, Key, as_environment

AnyConfig = Environment | EnvironmentConfigLike | None


@dataclasses.dataclass(frozen=True)
class _RandomSettings:
    """What both agents are made of; frozen, so that equal agents share one compilation.

    With none of these settings an agent draws by the environment's own `sample_action`, in any environment;
    with one of them it draws ARC's actions.
    """

    grid_shape: tuple[int, int] | None = None
    """Rows and columns of ARC's canvas; None takes the config's."""
    selection_format: SelectionFormat | None = None
    """How ARC's actions name cells: a point, a box, or a mask; None takes the config's, else points."""
    allowed_operations: tuple[int, ...] | None = None
    """ARC's operations to draw from; None draws from all 42."""

    def __post_init__(self) -> None:
        ActionConfig(
            selection_format=self.selection_format or "point", allowed_operations=self.allowed_operations
        )

    @property
    def is_plain(self) -> bool:
        """Whether the agent has no settings of its own."""
        return (self.grid_shape, self.selection_format, self.allowed_operations) == (None, None, None)

    def settled(self, config: ArcConfig | None) -> "_RandomSettings":
        """The same with what is left out taken from a config, and only operations that it allows."""
        allowed = self.allowed_operations or tuple(range(NUM_OPERATIONS))
        if config is None:
            if self.grid_shape is None:
                raise ValueError("a random agent needs a grid_shape or a config")
            return _RandomSettings(self.grid_shape, self.selection_format or "point", allowed)
        legal = config.action.operations
        both = tuple(operation for operation in allowed if operation in legal)
        if not both:
            raise ValueError(f"the agent may draw {allowed}, the config allows {legal}: nothing is left")
        selection_format = self.selection_format or config.action.selection_format
        return _RandomSettings(self.grid_shape or config.grid_shape, selection_format, both)


@dataclasses.dataclass(frozen=True)
class RandomAgent(_RandomSettings):
    """Draws actions for one environment; its state is the key of its next draw.

    >>> agent = RandomAgent(grid_shape=(30, 30))
    >>> agent_state = agent.init(jax.random.key(0))
    """

    def init(self, key: Key) -> Key:
        """The agent's first state."""
        return key

    def select_action(self, agent_state: Key, state: PyTree, config: AnyConfig = None) -> tuple[Any, Key]:
        """A random action, legal under `config` (or environment) where one is given, and the next state."""
        return _select_one(self, agent_state, state, config)


@dataclasses.dataclass(frozen=True)
class VectorizedRandomAgent(_RandomSettings):
    """Draws actions for a batch of environments; `select_batch_actions` fits `run_episode_batch`."""

    config: AnyConfig = None
    """The environments' config, or an environment: only actions that are legal there are drawn."""

    def select_batch_actions(self, states: PyTree, agent_states: Any, key: Key) -> tuple[Any, Any]:
        """A random action for each state; the agents' states pass through as they are."""
        return _select(self, states, key, self.config), agent_states


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select_one(agent: RandomAgent, key: Key, state: PyTree, config: AnyConfig) -> tuple[Any, Key]:
    next_key, action_key = jax.random.split(key)
    return _select(agent, state, action_key, config), next_key


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select(agent: _RandomSettings, states: PyTree, key: Key, config: AnyConfig) -> Any:
    if agent.is_plain and config is not None:
        environment = as_environment(config)
        batch = environment.is_done(states).shape
        if not batch:
            return environment.sample_action(key, states)
        return jax.vmap(environment.sample_action)(jax.random.split(key, batch[0]), states)
    arc_config: Any = config.config if isinstance(config, Environment) else config  # type: ignore[attr-defined]
    return _arc_actions(agent.settled(arc_config), states, key)


def _arc_actions(agent: _RandomSettings, states: ArcState, key: Key) -> Action:
    """One action for each state, from one draw of random words: it must not cost more than the step."""
    assert agent.grid_shape is not None
    assert agent.selection_format is not None
    rows, columns = agent.grid_shape
    words_needed = {"point": 3, "bbox": 5, "mask": 1 + rows}[agent.selection_format]
    words = jax.random.bits(key, (*states.height.shape, words_needed), jnp.uint32)
    operations = jnp.asarray(agent.allowed_operations, jnp.int32)
    operation = operations[words[..., 0] % len(operations)]
    if agent.selection_format == "mask":
        cells = (words[..., 1:, None] >> jnp.arange(columns, dtype=jnp.uint32)) & 1
        inside = (jnp.arange(rows)[:, None] < states.height[..., None, None]) & (
            jnp.arange(columns) < states.width[..., None, None]
        )
        resizing = (operation == Operation.RESIZE)[..., None, None]
        return MaskAction(operation=operation, selection=(cells == 1) & (inside | resizing))

    # A resize may name any cell of the canvas, so that grids can grow as well as shrink.
    resizing = operation == Operation.RESIZE
    height = jnp.where(resizing, rows, states.height)
    width = jnp.where(resizing, columns, states.width)
    if agent.selection_format == "point":
        return PointAction(
            operation=operation, row=_below(words[..., 1], height), col=_below(words[..., 2], width)
        )
    return BboxAction(
        operation=operation,
        r1=_below(words[..., 1], height),
        c1=_below(words[..., 2], width),
        r2=_below(words[..., 3], height),
        c2=_below(words[..., 4], width),
    )


def _below(words: UInt32[Array, "*batch"], bound: Int32[Array, "*batch"]) -> Int32[Array, "*batch"]:
    # The bias of a remainder is bound / 2**32, at most one in a hundred million here.
    return (words % bound.astype(jnp.uint32)).astype(jnp.int32)
