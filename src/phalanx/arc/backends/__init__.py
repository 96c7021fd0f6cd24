"""Step and reset functions for batches of ARC environments, implemented in C++ and XLA."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt32

from phalanx.arc.actions import KernelAction
from phalanx.arc.backends import native, xla
from phalanx.arc.bitplanes import Cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.state import SIZE, WORKING, ArcState, RegisterIndex, StepInfo, replace_fields
from phalanx.arc.task_buffer import TaskArrays
from phalanx.arc.task_sampling import EpisodeStart
from phalanx.core.backends import BackendFunction

Flags = Bool[Array, "*batch"]


def step(
    config: ArcConfig, tasks: TaskArrays, action: KernelAction, state: ArcState
) -> tuple[ArcState, Cells, StepInfo]:
    """Advance a single state, or a batch of any shape, by one step.

    Args:
        config: Settings of the environment.
        tasks: Task arrays.
        action: Encoded action for each state.
        state: States without tasks or submissions; see `ArcState.detach`.

    Returns:
        New states, unpacked working grids and step infos. The grids are empty arrays if the config's
        observation does not contain the working grid.
    """
    return _step(config.backend, config, tasks, action, state)


def reset(
    config: ArcConfig, tasks: TaskArrays, mask: Flags, start_bits: EpisodeStart, state: ArcState, grid: Cells
) -> tuple[ArcState, Cells]:
    """Start new episodes where `mask` is set. The other states and grids are unchanged.

    Args:
        config: Settings of the environment.
        tasks: Task arrays.
        mask: True where a new episode starts.
        start_bits: Three integers per episode that determine its start; see `EpisodeStart`.
        state: Current states.
        grid: Current unpacked working grids.

    Returns:
        New states and unpacked working grids.
    """
    return _reset(config.backend, config, tasks, mask, start_bits, state, grid)


@functools.partial(jax.jit, static_argnums=0)
def replace_grid(
    config: ArcConfig, tasks: TaskArrays, state: ArcState, planes: UInt32[Array, "4 rows"], size: Array
) -> ArcState:
    """Replace the working grid of a single state, and update its similarity. Returns the new state.

    Args:
        config: Settings of the environment.
        tasks: Task arrays.
        state: The state.
        planes: Bit-planes of the new working grid.
        size: Height and width of the new working grid.
    """
    size = size.astype(jnp.int32)
    index = xla.pair_index(tasks, state.task_index[None], state.pair_index[None])
    similarity = xla.compute_similarity(config, tasks, planes[..., None], size[:1], size[1:], index)[0]
    solved = jnp.where(similarity == 1.0, jnp.int32(1) << state.pair_index, 0)
    registers = state.registers.at[SIZE].set(size).at[RegisterIndex.SOLVED_PAIRS].set(solved)
    boards = state.boards.at[WORKING].set(planes)
    return replace_fields(state, boards=boards, registers=registers, similarity=similarity)


Merged = tuple[TaskArrays, tuple[Any, ...], Callable[[Any], Any]]
"""Data for the single kernel call that replaces a `vmap` over groups of environments with different tasks.
The entries are: the task arrays of all groups, merged into one; the other arguments of the kernel, with task
indices that refer to the merged arrays; and a function that restores the original task indices in the results
of the kernel."""


def _merge_for_step(tasks: TaskArrays, action: KernelAction, state: ArcState) -> Merged:
    merged, first = _merge_task_buffers(tasks, state.similarity.shape[0])
    task = state.task_index
    # -1 if the index is outside the task table of the environment's own group.
    moved = jnp.where((task >= 0) & (task < tasks.table.shape[1]), task + first, -1)

    def restore(results: tuple[ArcState, Array, StepInfo]) -> tuple[ArcState, Array, StepInfo]:
        new, grid, info = results
        return _replace_task(new, task), grid, info

    return merged, (action, _replace_task(state, moved)), restore


def _merge_for_reset(
    tasks: TaskArrays, mask: Array, start_bits: Array, state: ArcState, grid: Array
) -> Merged:
    merged, first = _merge_task_buffers(tasks, mask.shape[0])
    start_bits = start_bits.at[:, 0].set(start_bits[:, 0] % tasks.table.shape[1] + first.astype(jnp.uint32))

    def restore(results: tuple[ArcState, Array]) -> tuple[ArcState, Array]:
        new, new_grid = results
        task = new.task_index
        return _replace_task(new, jnp.where(mask, task - first, task)), new_grid

    return merged, (mask, start_bits, state, grid), restore


def _merge_task_buffers(tasks: TaskArrays, batch: int) -> tuple[TaskArrays, Array]:
    """Merge the task arrays of several groups of environments.

    Args:
        tasks: Task arrays with a leading group axis.
        batch: Number of environments. Each group has the same number of consecutive environments.

    Returns:
        The merged arrays, and for each environment, the offset to add to its task indices.
    """
    groups, num_tasks, _ = tasks.table.shape
    group = jnp.arange(groups, dtype=jnp.int32)
    table = tasks.table.at[:, :, 0].add(group[:, None] * tasks.pairs.shape[1])
    pairs, sizes, table = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in (tasks.pairs, tasks.sizes, table))
    first = jnp.repeat(group * num_tasks, batch // groups, total_repeat_length=batch)
    return TaskArrays(pairs, sizes, table, jnp.int32(groups * num_tasks)), first


def _replace_task(state: ArcState, task: Array) -> ArcState:
    return replace_fields(state, registers=state.registers.at[:, RegisterIndex.TASK].set(task))


_step = BackendFunction(native.step, xla.step, merge_groups=_merge_for_step)
_reset = BackendFunction(native.reset, xla.reset, merge_groups=_merge_for_reset)
