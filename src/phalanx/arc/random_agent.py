"""Agents that take random actions, for tests, baselines and benchmarks."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction, random_action
from phalanx.arc.config import ActionConfig, ArcConfig, SelectionFormat
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.state import ArcState
from phalanx.core.environment import Key

ConfigOrEnvironment = ArcConfig | ArcEnvironment | None
"""Config or environment that determines the allowed operations. If None, all operations are allowed."""


@dataclasses.dataclass(frozen=True)
class _RandomSettings:
    """Base class for the random agents, with their settings. Instances are frozen and thus hashable, so that
    equal agents share one compilation."""

    grid_shape: tuple[int, int] | None = None
    """Height and width of the canvas. If None, the config's canvas is used."""
    selection_format: SelectionFormat | None = None
    """Selection format of the actions: `point`, `bbox` or `mask`. If None, the config's format is used, or
    `point` if there is no config."""
    allowed_operations: tuple[int, ...] | None = None
    """Ids of the operations to sample from. If None, all 42 are used. Operations that the config does not
    allow are never sampled."""

    def __post_init__(self) -> None:
        ActionConfig(
            selection_format=self.selection_format or "point", allowed_operations=self.allowed_operations
        )

    def complete(self, config: ArcConfig | None) -> "_RandomSettings":
        """Return complete settings: values that are None are taken from a config, and operations that the
        config does not allow are removed."""
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

    @functools.partial(jax.jit, static_argnums=0, inline=True)
    def _select(self, states: ArcState, key: Key, config: ConfigOrEnvironment) -> Action:
        """Sample one action per state."""
        arc_config = config.config if isinstance(config, ArcEnvironment) else config
        is_default = (self.grid_shape, self.selection_format, self.allowed_operations) == (None, None, None)
        if is_default and arc_config is not None:
            return _sample_by_state(arc_config, states, key)
        return _arc_actions(self.complete(arc_config), states, key)


@dataclasses.dataclass(frozen=True)
class RandomAgent(_RandomSettings):
    """Agent that samples random actions for one environment. The state of the agent is a PRNG key.

    >>> agent = RandomAgent(grid_shape=(30, 30))
    >>> agent_state = agent.init(jax.random.key(0))
    """

    def init(self, key: Key) -> Key:
        """Return the initial state of the agent."""
        return key

    @functools.partial(jax.jit, static_argnums=0, inline=True)
    def select_action(
        self, agent_state: Key, state: ArcState, config: ConfigOrEnvironment = None
    ) -> tuple[Action, Key]:
        """Sample an action.

        Args:
            agent_state: State of the agent.
            state: State of the environment.
            config: Config or environment that determines the allowed operations. If None, all operations are
                allowed.

        Returns:
            The action and the next state of the agent.
        """
        next_key, action_key = jax.random.split(agent_state)
        return self._select(state, action_key, config), next_key


@dataclasses.dataclass(frozen=True)
class VectorizedRandomAgent(_RandomSettings):
    """Agent that samples random actions for a batch of environments. It can be passed to
    `run_episode_batch`."""

    config: ConfigOrEnvironment = None
    """Config or environment that determines the allowed operations. If None, all operations are allowed, and
    `grid_shape` is required."""

    def select_batch_actions(self, states: ArcState, agent_states: Any, key: Key) -> tuple[Any, Any]:
        """Sample one action per state. Returns the actions and the unchanged agent states."""
        return self._select(states, key, self.config), agent_states


def _sample_by_state(config: ArcConfig, states: ArcState, key: Key) -> Action:
    """Sample one action per state in the same way as `ArcEnvironment.sample_action`."""

    def sample(key: Key, height: Array, width: Array) -> Action:
        return random_action(key, config, config.action.operations, height, width)

    if not states.batch_shape:
        return sample(key, states.height, states.width)
    keys = jax.random.split(key, states.batch_shape[0])
    return jax.vmap(sample)(keys, states.height, states.width)


def _arc_actions(agent: _RandomSettings, states: ArcState, key: Key) -> Action:
    """Sample one action per state. All actions are computed from one array of random bits, so that sampling
    is not slower than a step of the environment."""
    assert agent.grid_shape is not None
    assert agent.selection_format is not None
    rows, columns = agent.grid_shape
    num_words = {"point": 3, "bbox": 5, "mask": 1 + rows}[agent.selection_format]
    bits = jax.random.bits(key, (*states.height.shape, num_words), jnp.uint32)
    operations = jnp.asarray(agent.allowed_operations, jnp.int32)
    operation = operations[bits[..., 0] % len(operations)]
    # Resize may select any cell of the canvas, so that grids can also grow.
    resizing = operation == Operation.RESIZE
    height, width = jnp.where(resizing, rows, states.height), jnp.where(resizing, columns, states.width)
    if agent.selection_format == "mask":
        cells = (bits[..., 1:, None] >> jnp.arange(columns, dtype=jnp.uint32)) & 1
        in_rows = jnp.arange(rows)[:, None] < height[..., None, None]
        in_columns = jnp.arange(columns) < width[..., None, None]
        return MaskAction(operation=operation, selection=(cells == 1) & in_rows & in_columns)
    # The bias of a remainder is bound / 2**32, which is less than 1e-8 here.
    bounds = zip(range(1, num_words), itertools.cycle((height, width)), strict=False)
    corners = [(bits[..., word] % side.astype(jnp.uint32)).astype(jnp.int32) for word, side in bounds]
    return (PointAction if agent.selection_format == "point" else BboxAction)(operation, *corners)
