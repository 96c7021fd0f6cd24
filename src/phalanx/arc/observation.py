"""Observations of the ARC environment, and the observation space."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int8, Int32

from phalanx.arc.actions import legal_operations
from phalanx.arc.bitplanes import unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.arc.state import ArcState, RegisterIndex, pair_grid
from phalanx.arc.task_buffer import TaskArrays
from phalanx.core.spaces import Box, Composite, Space


class ArcObservation(eqx.Module):
    """An observation with several parts. Parts that the config disables are None."""

    working_grid: Int8[Array, "*batch rows columns"]
    """Working grid, -1 outside the grid."""
    input_grid: Int8[Array, "*batch rows columns"] | None = None
    """Input of the pair, -1 outside the grid."""
    target_grid: Int8[Array, "*batch rows columns"] | None = None
    """Output of the pair, -1 outside the grid. In evaluation mode, all cells are -1."""
    selected: Bool[Array, "*batch rows columns"] | None = None
    """Mask of the last selection."""
    clipboard: Int8[Array, "*batch rows columns"] | None = None
    """Object in the clipboard, -1 for cells that do not belong to it."""
    demonstrations: Int8[Array, "*batch shown 2 rows columns"] | None = None
    """Inputs and outputs of the task's demonstration pairs, except the current pair. If there are fewer pairs
    than `ObservationConfig.num_demonstrations`, the remaining grids are filled with -1."""
    similarity: Float32[Array, "*batch"] | None = None
    """Similarity of the working grid to the target, 0 to 1. In evaluation mode, it is 0 until the end of the
    episode."""
    step_count: Int32[Array, "*batch"] | None = None
    """Number of steps taken in the episode."""
    legal_operations: Bool[Array, "*batch 42"] | None = None
    """Mask of the legal operations."""


Observation = Int8[Array, "*batch rows columns"] | ArcObservation
"""The working grid or, if the config enables other parts of the observation, an `ArcObservation`."""
_STATE_PARTS = ("input_grid", "target_grid", "clipboard", "selected")
"""Parts of an observation that have the same names in the config and in the state."""


def create_observation(
    state: ArcState, config: ArcConfig, working_grid: Int8[Array, "*batch rows columns"] | None = None
) -> Observation:
    """Create the observation of a state.

    Args:
        state: A state. Its tasks must be attached unless the observation is a single array.
        config: Settings of the environment.
        working_grid: The state's unpacked working grid. If None, it is computed.
    """
    see = config.observation
    if working_grid is None:
        empty = jnp.zeros((*state.batch_shape, 0, 0), jnp.int8)
        working_grid = state.working_grid if see.working_grid else empty
    if see.is_single_array:
        return working_grid
    parts = {name: getattr(state, name) for name in _STATE_PARTS if getattr(see, name)}
    if see.num_demonstrations:
        parts["demonstrations"] = _other_demonstrations(
            state.task_arrays, state.registers, see.num_demonstrations, state.grid_shape
        )
    if see.scalars:
        legal = legal_operations(state, config)
        parts |= {"similarity": state.similarity, "step_count": state.step_count, "legal_operations": legal}
    return ArcObservation(working_grid, **parts)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def _other_demonstrations(
    tasks: TaskArrays, registers: Int32[Array, "*batch 8"], count: int, grid_shape: tuple[int, int]
) -> Int8[Array, "*batch shown 2 rows columns"]:
    """Return the input and output of `count` demonstrations per state. The current pair is skipped because it
    would reveal the answer."""
    table = tasks.table[registers[..., RegisterIndex.TASK]]
    slot = jnp.arange(count)
    chosen = slot + (slot >= registers[..., RegisterIndex.PAIR, None])
    exists = chosen < table[..., 1, None]
    index = table[..., 0, None] + jnp.where(exists, chosen, 0)
    rows, columns = grid_shape
    grids = [unpack_cells(*pair_grid(tasks, index, output, rows), columns) for output in (False, True)]
    return jnp.where(exists[..., None, None, None], jnp.stack(grids, axis=-3), jnp.int8(-1))


def observation_space(config: ArcConfig) -> Space:
    """Return the observation space for a config."""
    see = config.observation
    rows, columns = config.grid_shape
    working = Box(-1, 9, (rows, columns) if see.working_grid else (0, 0), np.int8)
    if see.is_single_array:
        return working
    fields: dict[str, Space] = {"working_grid": working}
    grid, mask = Box(-1, 9, (rows, columns), np.int8), Box(0, 1, (rows, columns), np.bool_)
    fields |= {name: mask if name == "selected" else grid for name in _STATE_PARTS if getattr(see, name)}
    if see.num_demonstrations:
        fields["demonstrations"] = Box(-1, 9, (see.num_demonstrations, 2, rows, columns), np.int8)
    if see.scalars:
        fields["similarity"] = Box(0.0, 1.0, (), np.float32)
        fields["step_count"] = Box(0, config.episode.max_episode_steps, (), np.int32)
        fields["legal_operations"] = Box(0, 1, (NUM_OPERATIONS,), np.bool_)
    return Composite.of(ArcObservation, fields)
