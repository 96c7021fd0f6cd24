"""Agents that take random actions, for tests, baselines and benchmarks."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction, random_action
from phalanx.arc.config import ActionConfig, ArcConfig, SelectionFormat
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.state import ArcState
from phalanx.core.environment import Key

ArcRules = ArcConfig | ArcEnvironment | None
"""Config or environment that determines the allowed operations; None allows all."""


@dataclasses.dataclass(frozen=True)
class _RandomSettings:
    """Settings of both random agents. They are frozen, so that equal agents share one compilation."""

    grid_shape: tuple[int, int] | None = None
    """Height and width of the canvas. If None, the config's canvas is used."""
    selection_format: SelectionFormat | None = None
    """Selection format of the actions: `point`, `bbox` or `mask`. If None, the config's format is used, or
    `point` if there is no config."""
    allowed_operations: tuple[int, ...] | None = None
    """Ids of the operations to sample. If None, all 42 are sampled."""

    def __post_init__(self) -> None:
        ActionConfig(
            selection_format=self.selection_format or "point", allowed_operations=self.allowed_operations
        )

    @property
    def is_default(self) -> bool:
        """Whether all settings have their default values."""
        return (self.grid_shape, self.selection_format, self.allowed_operations) == (None, None, None)

    def complete(self, config: ArcConfig | None) -> "_RandomSettings":
        """Return the settings with missing values taken from a config. Operations that the config does not
        allow are removed."""
        allowed = self.allowed_operations or tuple(range(NUM_OPERATIONS))
        if config is None:
            if self.grid_shape is None:
                raise ValueError("a random agent needs a grid_shape or a config")
            return _RandomSettings(self.grid_shape, self.selection_format or "point", allowed)
        legal = config.action.operations
        both = tuple(operation for operation in allowed if operation in legal)
        if not both:
            raise ValueError(f"the agent samples {allowed}, the config allows {legal}: no operation is left")
        selection_format = self.selection_format or config.action.selection_format
        return _RandomSettings(self.grid_shape or config.grid_shape, selection_format, both)


@dataclasses.dataclass(frozen=True)
class RandomAgent(_RandomSettings):
    """Agent that samples random actions for one environment. The state of the agent is a PRNG key.

    >>> agent = RandomAgent(grid_shape=(30, 30))
    >>> agent_state = agent.init(jax.random.key(0))
    """

    def init(self, key: Key) -> Key:
        """Return the initial state of the agent."""
        return key

    def select_action(self, agent_state: Key, state: ArcState, config: ArcRules = None) -> tuple[Any, Key]:
        """Sample an action.

        Args:
            agent_state: State of the agent.
            state: State of the environment.
            config: Config or environment that determines the allowed operations.

        Returns:
            The action and the next state of the agent.
        """
        return _select_one(self, agent_state, state, config)


@dataclasses.dataclass(frozen=True)
class VectorizedRandomAgent(_RandomSettings):
    """Agent that samples random actions for a batch of environments. It can be passed to
    `run_episode_batch`."""

    config: ArcRules = None
    """Config or environment that determines the allowed operations."""

    def select_batch_actions(self, states: ArcState, agent_states: Any, key: Key) -> tuple[Any, Any]:
        """Sample one action per state. Returns the actions and the unchanged agent states."""
        return _select(self, states, key, self.config), agent_states


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select_one(agent: RandomAgent, key: Key, state: ArcState, config: ArcRules) -> tuple[Any, Key]:
    next_key, action_key = jax.random.split(key)
    return _select(agent, state, action_key, config), next_key


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _select(agent: _RandomSettings, states: ArcState, key: Key, config: ArcRules) -> Any:
    arc_config = config.config if isinstance(config, ArcEnvironment) else config
    if agent.is_default and arc_config is not None:
        return _sample_by_state(arc_config, states, key)
    return _arc_actions(agent.complete(arc_config), states, key)


def _sample_by_state(config: ArcConfig, states: ArcState, key: Key) -> Action:
    """Sample one action per state in the same way as `ArcEnvironment.sample_action`."""

    def sample(key: Key, height: Array, width: Array) -> Action:
        return random_action(key, config, config.action.operations, height, width)

    if not states.batch_shape:
        return sample(key, states.height, states.width)
    keys = jax.random.split(key, states.batch_shape[0])
    return jax.vmap(sample)(keys, states.height, states.width)


def _arc_actions(agent: _RandomSettings, states: ArcState, key: Key) -> Action:
    """Sample one action per state. All of them are computed from one array of random bits, so that sampling
    does not take longer than a step of the environment."""
    assert agent.grid_shape is not None
    assert agent.selection_format is not None
    rows, columns = agent.grid_shape
    num_words = {"point": 3, "bbox": 5, "mask": 1 + rows}[agent.selection_format]
    bits = jax.random.bits(key, (*states.height.shape, num_words), jnp.uint32)
    operations = jnp.asarray(agent.allowed_operations, jnp.int32)
    operation = operations[bits[..., 0] % len(operations)]
    if agent.selection_format == "mask":
        cells = (bits[..., 1:, None] >> jnp.arange(columns, dtype=jnp.uint32)) & 1
        inside = (jnp.arange(rows)[:, None] < states.height[..., None, None]) & (
            jnp.arange(columns) < states.width[..., None, None]
        )
        resizing = (operation == Operation.RESIZE)[..., None, None]
        return MaskAction(operation=operation, selection=(cells == 1) & (inside | resizing))

    # Resize may select any cell of the canvas, so that grids can also grow.
    resizing = operation == Operation.RESIZE
    height = jnp.where(resizing, rows, states.height)
    width = jnp.where(resizing, columns, states.width)
    if agent.selection_format == "point":
        return PointAction(
            operation=operation, row=_below(bits[..., 1], height), col=_below(bits[..., 2], width)
        )
    return BboxAction(
        operation=operation,
        r1=_below(bits[..., 1], height),
        c1=_below(bits[..., 2], width),
        r2=_below(bits[..., 3], height),
        c2=_below(bits[..., 4], width),
    )


def _below(bits: UInt32[Array, "*batch"], bound: Int32[Array, "*batch"]) -> Int32[Array, "*batch"]:
    # The bias of the remainder is bound / 2**32, which is less than 1e-8 here.
    return (bits % bound.astype(jnp.uint32)).astype(jnp.int32)
