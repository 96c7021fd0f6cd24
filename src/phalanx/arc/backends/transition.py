"""Transitions for any batch shape, by whichever engine serves; the kernels stay whole under `vmap`.

The public functions with states and configs are in `environment`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int8, UInt32

from phalanx.arc.backends import native as native_engine, xla as xla_engine, xla_reset
from phalanx.arc.backends.interface import KernelAction, Outcome, Packed
from phalanx.arc.config import ArcConfig
from phalanx.arc.reward import RewardNumbers
from phalanx.arc.state import CLIPBOARD, HEIGHT, PAIR, SOLVED_PAIRS, TASK, WIDTH, WORKING
from phalanx.arc.task_buffer import TaskArrays
from phalanx.core.backends import dispatch, vmappable_kernel
from phalanx.core.vector import has_tracers


def step(
    config: ArcConfig, tasks: TaskArrays, numbers: RewardNumbers, fields: KernelAction, packed: Packed
) -> tuple[Packed, Outcome]:
    """One transition of a single state or of any batch of them."""
    run = _batched_step(config, (not has_tracers(tasks), not has_tracers(numbers)))
    return run((tasks, numbers), fields, packed)


def reset(
    config: ArcConfig,
    tasks: TaskArrays,
    where: Bool[Array, "*batch"],
    words: UInt32[Array, "*batch 3"],
    packed: Packed,
    observation: Int8[Array, "*batch rows columns"],
) -> tuple[Packed, Int8[Array, "*batch rows columns"]]:
    """New episodes where asked, on the starts that the words name; the rest stays as it is."""
    return _batched_reset(config, (not has_tracers(tasks),))((tasks,), where, words, packed, observation)


@functools.partial(jax.jit, static_argnums=0)
def with_grid(
    config: ArcConfig,
    tasks: TaskArrays,
    packed: Packed,
    planes: UInt32[Array, "4 rows"],
    height: Int[Array, ""],
    width: Int[Array, ""],
) -> Packed:
    """A single state whose working grid is this one, with the similarity that it has."""
    boards = packed.boards.at[WORKING:CLIPBOARD].set(planes)
    registers = packed.registers.at[jnp.array([HEIGHT, WIDTH])].set(jnp.array([height, width], jnp.int32))
    task, pair, high, wide = (registers[which, None] for which in (TASK, PAIR, HEIGHT, WIDTH))
    place = xla_engine.pair_index(tasks, task, pair)
    score = xla_engine.compute_similarity(
        config, tasks, boards[WORKING:CLIPBOARD, :, None], high, wide, place
    )[0]
    solved = jnp.where(score == 1.0, jnp.int32(1) << registers[PAIR], 0)
    return Packed(boards, registers.at[SOLVED_PAIRS].set(solved), score)


@functools.cache
def _batched_step(config: ArcConfig, constant: tuple[bool, ...]) -> Callable[..., tuple[Packed, Outcome]]:
    native, xla = (functools.partial(engine.step, config) for engine in (native_engine, xla_engine))

    def flat(
        shared: tuple[TaskArrays, Array], fields: KernelAction, packed: Packed
    ) -> tuple[Packed, Outcome]:
        tasks, numbers = shared
        if tasks.pairs.ndim == 4:
            return dispatch(config.backend, native, xla, tasks, numbers, fields, packed)
        room = tasks.table.shape[1]
        tasks, first = _in_one_buffer(tasks, packed.similarity.shape[0])
        moved = _with_task(packed, _moved(packed.registers[:, TASK], first, room))
        new, outcome = dispatch(config.backend, native, xla, tasks, numbers, fields, moved)
        return _with_task(new, packed.registers[:, TASK]), outcome

    return vmappable_kernel(flat, lambda fields, packed: packed.similarity.shape, constant)


@functools.cache
def _batched_reset(config: ArcConfig, constant: tuple[bool, ...]) -> Callable[..., tuple[Packed, Array]]:
    native, xla = (functools.partial(engine.reset, config) for engine in (native_engine, xla_reset))

    def flat(
        shared: tuple[TaskArrays], where: Array, words: Array, packed: Packed, seen: Array
    ) -> tuple[Packed, Array]:
        (tasks,) = shared
        if tasks.pairs.ndim == 4:
            return dispatch(config.backend, native, xla, tasks, where, words, packed, seen)
        room = tasks.table.shape[1]
        tasks, first = _in_one_buffer(tasks, where.shape[0])
        words = words.at[:, 0].set(words[:, 0] % room + first.astype(jnp.uint32))
        new, seen = dispatch(config.backend, native, xla, tasks, where, words, packed, seen)
        task = new.registers[:, TASK]
        return _with_task(new, jnp.where(where, task - first, task)), seen

    return vmappable_kernel(flat, lambda where, words, packed, seen: where.shape, constant)


def _in_one_buffer(tasks: TaskArrays, batch: int) -> tuple[TaskArrays, Array]:
    """Buffers `[groups, ...]` one behind the other, and at which task each environment's own one begins."""
    groups, room, _ = tasks.table.shape
    pairs = tasks.pairs.shape[1]
    group = jnp.arange(groups, dtype=jnp.int32)
    table = tasks.table.at[:, :, 0].add(group[:, None] * pairs)
    joined = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in (tasks.pairs, tasks.sizes, table)]
    first = jnp.repeat(group * room, batch // groups, total_repeat_length=batch)
    return TaskArrays(joined[0], joined[1], joined[2], jnp.int32(groups * room)), first


def _moved(task: Array, first: Array, room: int) -> Array:
    """Tasks counted in the joined buffers; -1 for one that an environment's own buffer has no room for."""
    return jnp.where((task >= 0) & (task < room), task + first, -1)


def _with_task(packed: Packed, task: Array) -> Packed:
    return packed._replace(registers=packed.registers.at[:, TASK].set(task))
