"""Agents that act at random, and legally: for smoke tests, baselines and benchmarks.

Agents that learn have modules of their own.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction
from phalanx.arc.config import ActionConfig, ArcConfig, SelectionFormat
from phalanx.arc.environment import legal_ids
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.state import ArcState
from phalanx.core.environment import Key


@dataclasses.dataclass(frozen=True)
class _RandomSettings:
    """What both agents are made of; frozen, so that equal agents share one compilation."""

    grid_shape: tuple[int, int]
    """Rows and columns of the canvas."""
    selection_format: SelectionFormat = "point"
    """How actions name cells: a point, a box, or a mask."""
    allowed_operations: tuple[int, ...] | None = None
    """Operation ids to draw from; None draws from all 42."""

    def __post_init__(self) -> None:
        ActionConfig(selection_format=self.selection_format, allowed_operations=self.allowed_operations)

    def operations(self, config: ArcConfig | None) -> tuple[int, ...]:
        """The operations that the agent may draw and, where a config is given, the config allows."""
        allowed = self.allowed_operations or tuple(range(NUM_OPERATIONS))
        if config is None:
            return allowed
        legal = legal_ids(config)
        both = tuple(operation for operation in allowed if operation in legal)
        if not both:
            raise ValueError(f"the agent may draw {allowed}, the config allows {legal}: nothing is left")
        return both


@dataclasses.dataclass(frozen=True)
class RandomAgent(_RandomSettings):
    """Draws actions for one environment; its state is the key of its next draw.

    >>> agent = RandomAgent(grid_shape=(30, 30))
    >>> agent_state = agent.init(jax.random.key(0))
    """

    def init(self, key: Key) -> Key:
        """The agent's first state."""
        return key

    def select_action(
        self, agent_state: Key, state: ArcState, config: ArcConfig | None = None
    ) -> tuple[Action, Key]:
        """A random action, legal under `config` where one is given, and the agent's next state."""
        return _select_one(self, agent_state, state, config)


@dataclasses.dataclass(frozen=True)
class VectorizedRandomAgent(_RandomSettings):
    """Draws actions for a batch of environments; `select_batch_actions` fits `run_episode_batch`."""

    config: ArcConfig | None = None
    """The environments' config; given, only operations that it makes legal in a state are drawn."""

    def select_batch_actions(self, states: ArcState, agent_states: Any, key: Key) -> tuple[Action, Any]:
        """A random action for each state; the agents' states pass through as they are."""
        return _select(self, states, key, self.config), agent_states


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select_one(
    agent: RandomAgent, key: Key, state: ArcState, config: ArcConfig | None
) -> tuple[Action, Key]:
    next_key, action_key = jax.random.split(key)
    return _select(agent, state, action_key, config), next_key


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select(agent: _RandomSettings, states: ArcState, key: Key, config: ArcConfig | None) -> Action:
    """One action for each state, from one draw of random words: it must not cost more than the step."""
    rows, columns = agent.grid_shape
    words_needed = {"point": 3, "bbox": 5, "mask": 1 + rows}[agent.selection_format]
    words = jax.random.bits(key, (*states.height.shape, words_needed), jnp.uint32)
    operations = jnp.asarray(agent.operations(config), jnp.int32)
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
