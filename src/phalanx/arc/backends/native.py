"""Step and reset functions that call the C++ kernels, for a batch with one axis."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from phalanx.arc.actions import KernelAction
from phalanx.arc.bitplanes import Cells
from phalanx.arc.config import INITIAL_GRIDS, ArcConfig
from phalanx.arc.state import ArcState, StepInfo, replace_fields
from phalanx.arc.task_buffer import TaskArrays
from phalanx.arc.task_sampling import EpisodeStart
from phalanx.core.backends import ffi_call

Flags = Bool[Array, " batch"]


def step(
    config: ArcConfig, tasks: TaskArrays, action: KernelAction, state: ArcState
) -> tuple[ArcState, Cells, StepInfo]:
    """Advance every state in a batch by one step; see `phalanx.arc.backends.step`."""
    grid_shape = config.grid_shape if config.observation.working_grid else (0, 0)
    episode = config.episode
    # In the order of the C++ `Rules` struct. One array is decoded faster than five attributes.
    limits = (config.grid_shape[1], episode.max_episode_steps, config.action.operation_bits)
    rules = np.array([*limits, episode.mode == "evaluation", episode.require_submit], np.int64)
    info_types = (jnp.float32, jnp.int32, jnp.int32, bool, bool, bool, bool)
    info_shapes = [jax.ShapeDtypeStruct((), kind) for kind in info_types]
    boards, registers, similarity, grids, *results = ffi_call(
        "phalanx_arc_step",
        (*_row_shapes(state), jax.ShapeDtypeStruct(grid_shape, jnp.int8), *info_shapes),
        (tasks.pairs, tasks.sizes, tasks.table),
        (*action, state.boards, state.registers, state.similarity),
        num_aliased=3,
        rules=rules,
    )
    new = replace_fields(state, boards=boards, registers=registers, similarity=similarity)
    return new, grids, StepInfo(similarity, *results)


def reset(
    config: ArcConfig, tasks: TaskArrays, mask: Flags, start_bits: EpisodeStart, state: ArcState, grid: Cells
) -> tuple[ArcState, Cells]:
    """Start new episodes where `mask` is set; see `phalanx.arc.backends.reset`."""
    boards, registers, similarity, grids = ffi_call(
        "phalanx_arc_reset",
        (*_row_shapes(state), jax.ShapeDtypeStruct(grid.shape[1:], grid.dtype)),
        (tasks.pairs, tasks.sizes, tasks.table),
        (mask, start_bits, state.boards, state.registers, state.similarity, grid),
        num_aliased=4,
        columns=np.int64(config.dataset.max_grid_width),
        evaluation=np.bool_(config.episode.mode == "evaluation"),
        initial=np.int64(INITIAL_GRIDS.index(config.episode.initial_grid)),
    )
    return replace_fields(state, boards=boards, registers=registers, similarity=similarity), grids


def _row_shapes(state: ArcState) -> list[jax.ShapeDtypeStruct]:
    leaves = (state.boards, state.registers, state.similarity)
    return [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
