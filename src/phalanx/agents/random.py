"""Agents that act at random, and legally: for smoke tests, baselines and benchmarks.

Agents that learn have modules of their own.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.arc.actions import BboxAction, MaskAction, PointAction
from phalanx.arc.config import ArcConfig, SelectionFormat
from phalanx.arc.environment import legal_operations
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.state import ArcState
from phalanx.core.environment import Key

AnyAction = PointAction | BboxAction | MaskAction

FORMATS: tuple[SelectionFormat, ...] = ("point", "bbox", "mask")


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
        if self.selection_format not in FORMATS:
            raise ValueError(
                f"selection_format must be one of {', '.join(FORMATS)}, got {self.selection_format!r}"
            )
        if self.allowed_operations is None:
            return
        if not self.allowed_operations:
            raise ValueError("allowed_operations must name at least one operation, or be None for all")
        for operation in self.allowed_operations:
            if not 0 <= operation < NUM_OPERATIONS:
                raise ValueError(
                    f"allowed_operations must lie between 0 and {NUM_OPERATIONS - 1}, got {operation}"
                )


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
    ) -> tuple[AnyAction, Key]:
        """A random action, legal under `config` where one is given, and the agent's next state."""
        return _select_one(self, agent_state, state, config)


@dataclasses.dataclass(frozen=True)
class VectorizedRandomAgent(_RandomSettings):
    """Draws actions for a batch of environments; `select_batch_actions` fits `run_episode_batch`."""

    config: ArcConfig | None = None
    """The environments' config; given, only operations that it makes legal in a state are drawn."""

    def select_batch_actions(self, states: ArcState, agent_states: Any, key: Key) -> tuple[AnyAction, Any]:
        """A random action for each state; the agents' states pass through as they are."""
        return _select(self, states, key, self.config), agent_states


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select_one(
    agent: RandomAgent, key: Key, state: ArcState, config: ArcConfig | None
) -> tuple[AnyAction, Key]:
    next_key, action_key = jax.random.split(key)
    return _select(agent, state, action_key, config), next_key


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select(agent: _RandomSettings, states: ArcState, key: Key, config: ArcConfig | None) -> AnyAction:
    """One action for each state, from one draw of random words: it must not cost more than the step."""
    rows, columns = agent.grid_shape
    words_needed = {"point": 3, "bbox": 5, "mask": 1 + rows}[agent.selection_format]
    words = jax.random.bits(key, (*states.height.shape, words_needed), jnp.uint32)
    operation = _operation(agent, words[..., 0], states, config)
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


def _operation(
    agent: _RandomSettings, words: UInt32[Array, "*batch"], states: ArcState, config: ArcConfig | None
) -> Int32[Array, "*batch"]:
    allowed = agent.allowed_operations or tuple(range(NUM_OPERATIONS))
    if config is None:
        drawn = _below(words, jnp.full(words.shape, len(allowed), jnp.int32))
        return jnp.asarray(allowed, jnp.int32)[drawn]
    named = jnp.zeros(NUM_OPERATIONS, bool).at[jnp.asarray(allowed)].set(True)
    return _choose(words, legal_operations(states, config) & named)


def _choose(words: UInt32[Array, "*batch"], legal: Bool[Array, "*batch 42"]) -> Int32[Array, "*batch"]:
    """A uniform choice among the true entries: the k-th of them is where the running count passes k."""
    running = jnp.cumsum(legal, axis=-1, dtype=jnp.int32)
    # Where nothing is legal (the agent and the config allow disjoint operations) entry 0 is taken.
    k = _below(words, jnp.maximum(running[..., -1], 1))
    return jnp.argmax(running > k[..., None], axis=-1).astype(jnp.int32)
