"""New episodes in XLA: the pair that a start names, and the working grid that it begins with.

Steps are in `xla`; which task and pair a key draws is decided in `starts`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from phalanx.arc.backends.interface import Packed
from phalanx.arc.backends.xla import Numbers, compute_similarity, observe, pair_index, pair_sizes
from phalanx.arc.bitplanes import NUM_PLANES, area_bits, fit_rows
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_COLORS
from phalanx.arc.state import NUM_BOARDS
from phalanx.arc.task_buffer import MAX_PAIRS, TaskArrays

Planes = UInt32[Array, "batch 4 rows"]


def reset(
    config: ArcConfig,
    tasks: TaskArrays,
    where: Bool[Array, " batch"],
    words: UInt32[Array, "batch 3"],
    packed: Packed,
    observation: Array,
) -> tuple[Packed, Array]:
    """New episodes where asked, on the starts that the words name (see `starts`)."""
    task = (words[:, 0] % np.uint32(tasks.table.shape[0])).astype(jnp.int32)
    demos, tests = tasks.table[task, 1], tasks.table[task, 2]
    from_tests = jnp.full_like(demos, config.episode.mode == "evaluation", bool) | (demos == 0)
    # A task without the pairs that are asked for starts on a pair that it has not got: every step is invalid.
    choices = jnp.clip(jnp.where(from_tests, tests, demos), 1, MAX_PAIRS).astype(jnp.uint32)
    pair = (words[:, 1] % choices).astype(jnp.int32)
    pair = pair + jnp.where(from_tests, jnp.clip(demos, 0, MAX_PAIRS), 0)
    place = pair_index(tasks, task, pair)
    working, height, width = _first_grid(config, tasks, task, pair, words[:, 2], packed.boards.shape[-1])
    similarity = compute_similarity(config, tasks, working.transpose(1, 2, 0), height, width, place)
    nothing = jnp.zeros_like(task)
    solved = jnp.where((similarity == 1.0) & (pair < MAX_PAIRS), jnp.int32(1) << pair, 0)
    registers = jnp.stack([task, pair, height, width, nothing, nothing, solved, nothing - 1], axis=-1)
    boards = jnp.pad(working, [(0, 0), (0, NUM_BOARDS - NUM_PLANES), (0, 0)])
    fresh = Packed(boards, registers, similarity)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(where.reshape(where.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, (fresh, observe(config, fresh)), (packed, observation))


def _first_grid(
    config: ArcConfig,
    tasks: TaskArrays,
    task: Numbers,
    pair: Numbers,
    noise: UInt32[Array, " batch"],
    rows: int,
) -> tuple[Planes, Numbers, Numbers]:
    """The planes that an episode begins with, and their height and width."""
    place = pair_index(tasks, task, pair)
    height, width, _, _ = pair_sizes(config, tasks, place)
    given = fit_rows(tasks.pairs[place, 0], rows)
    match config.episode.initial_grid:
        case "input":
            return given, height, width
        case "blank":
            return jnp.zeros_like(given), height, width
        case "random":
            return _random_planes(noise, height, width, rows, config.dataset.max_grid_width), height, width
        case "demonstration":
            # Never the pair's own output, which is the answer.
            demos = tasks.table[task, 1]
            others = demos - (pair < demos)
            drawn = (noise % jnp.maximum(others, 1).astype(jnp.uint32)).astype(jnp.int32)
            other = pair_index(tasks, task, drawn + (drawn >= pair))
            _, _, shown_height, shown_width = pair_sizes(config, tasks, other)
            shown = (others > 0) & (shown_height > 0)
            planes = jnp.where(shown[:, None, None], fit_rows(tasks.pairs[other, 1], rows), given)
            return planes, jnp.where(shown, shown_height, height), jnp.where(shown, shown_width, width)


def _random_planes(
    noise: UInt32[Array, " batch"], height: Numbers, width: Numbers, rows: int, columns: int
) -> Planes:
    """Colors that look random, from one word of noise: the finalizer of MurmurHash3 over the cells."""
    cell = jnp.arange(rows, dtype=jnp.uint32)[:, None] * 32 + jnp.arange(columns, dtype=jnp.uint32)
    x = noise[:, None, None] + cell * jnp.uint32(0x9E3779B9)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    color = (((x ^ (x >> 16)) >> 16) * NUM_COLORS) >> 16
    bits = (color[:, None] >> jnp.arange(NUM_PLANES, dtype=jnp.uint32)[:, None, None]) & 1
    planes = jnp.sum(bits << jnp.arange(columns, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)
    return planes & area_bits(height, width, rows)[:, None]
