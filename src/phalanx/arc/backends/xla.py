"""Step and reset functions in XLA, for a batch with one axis. They run on any device.

Grids are stored as bit-planes and edited with bitwise operations.
"""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from phalanx.arc.actions import KernelAction
from phalanx.arc.backends import bitplane_ops as ops
from phalanx.arc.backends.bitplane_ops import Mask
from phalanx.arc.bitplanes import NUM_PLANES, Cells, area_bits, fit_rows, low_bits, pack_mask, unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_COLORS, NUM_OPERATIONS, Operation as Op
from phalanx.arc.state import NUM_BOARDS, SELECTION, ArcState, Status, StepInfo, replace_fields
from phalanx.arc.task_buffer import MAX_PAIRS, TaskArrays
from phalanx.arc.task_sampling import EpisodeStart
from phalanx.core.vector import select_rows

Ints = Int32[Array, " batch"]
Flags = Bool[Array, " batch"]
Planes = UInt32[Array, "planes rows batch"]


def step(
    config: ArcConfig, tasks: TaskArrays, action: KernelAction, state: ArcState
) -> tuple[ArcState, Cells, StepInfo]:
    """Advance every state in a batch by one step; see `phalanx.arc.backends.step`."""
    operation = action.operation
    task, old_pair, old_height, old_width, step_count, status, solved_pairs, last = state.registers.T
    boards = state.boards.transpose(1, 2, 0)
    rows = boards.shape[1]
    raw, valid = _raw_selection(config, action, rows)
    running = status == Status.RUNNING
    acts = running & valid & _fits(config, tasks, task, old_pair, old_height, old_width)
    pair, switched = _next_pair(config, tasks, operation, task, old_pair, solved_pairs)
    index = pair_index(tasks, task, pair)

    # The size of the working grid changes if it is resized or replaced by the input.
    from_input = switched | _is_any(operation, Op.COPY_INPUT, Op.RESET_PAIR)
    input_height, input_width, _, _ = _pair_sizes(config, tasks, index)
    box = ops.bounding_box(raw)
    resized = (operation == Op.RESIZE) & ~box.empty
    height = jnp.where(from_input, input_height, jnp.where(resized, box.bottom + 1, old_height))
    width = jnp.where(from_input, input_width, jnp.where(resized, box.right + 1, old_width))
    area, new_area = ops.area(old_height, old_width, rows), ops.area(height, width, rows)

    selection = raw & area
    working, clipboard, written = _transform(config, operation, boards, selection, area)
    working = _fill(operation, working, selection, area, acts)
    inputs = fit_rows(tasks.pairs[index, 0], rows).transpose(1, 2, 0)
    working = jnp.where(from_input, inputs, working & new_area)
    moved = (operation >= Op.MOVE_UP) & (operation <= Op.FLIP_VERTICAL)
    selected = jnp.where(moved, written, raw & new_area)
    boards = jnp.where(acts, jnp.concatenate([working, clipboard, selected[None]]), boards)

    score = compute_similarity(config, tasks, working, height, width, index)
    similarity = jnp.where(acts, score, state.similarity)
    submitted = acts & (operation == Op.SUBMIT)
    finished = (score == 1.0) & acts
    terminated = submitted | (finished & (not config.episode.require_submit))
    step_count = step_count + running
    overdue = running & ~terminated & (step_count >= config.episode.max_episode_steps)
    status = jnp.where(terminated, Status.TERMINATED, jnp.where(overdue, Status.TRUNCATED, status))
    solved_pairs = solved_pairs | jnp.where(finished, jnp.int32(1) << pair, 0)
    changes = ((pair, old_pair), (height, old_height), (width, old_width), (operation, last))
    pair, height, width, last = (jnp.where(acts, new, old) for new, old in changes)
    registers = jnp.stack([task, pair, height, width, step_count, status, solved_pairs, last], axis=-1)
    new = replace_fields(state, boards=boards.transpose(2, 0, 1), registers=registers, similarity=similarity)
    info = StepInfo.after_step(state.similarity, new, jnp.where(acts, operation, -1))
    return new, _unpack_grids(config, new), info


def reset(
    config: ArcConfig, tasks: TaskArrays, mask: Flags, start_bits: EpisodeStart, state: ArcState, grid: Cells
) -> tuple[ArcState, Cells]:
    """Start new episodes where `mask` is set; see `phalanx.arc.backends.reset`."""
    task = (start_bits[:, 0] % np.uint32(tasks.table.shape[0])).astype(jnp.int32)
    demos, tests = tasks.table[task, 1], tasks.table[task, 2]
    from_tests = jnp.full_like(demos, config.episode.mode == "evaluation", bool) | (demos == 0)
    # A task without suitable pairs starts on a pair that does not exist, where every action is invalid.
    choices = jnp.clip(jnp.where(from_tests, tests, demos), 1, MAX_PAIRS).astype(jnp.uint32)
    pair = (start_bits[:, 1] % choices).astype(jnp.int32)
    pair = pair + jnp.where(from_tests, jnp.clip(demos, 0, MAX_PAIRS), 0)
    index = pair_index(tasks, task, pair)
    rows = state.boards.shape[-1]
    working, height, width = _first_grid(config, tasks, task, pair, start_bits[:, 2], rows)
    similarity = compute_similarity(config, tasks, working.transpose(1, 2, 0), height, width, index)
    zero = jnp.zeros_like(task)
    solved = jnp.where((similarity == 1.0) & (pair < MAX_PAIRS), jnp.int32(1) << pair, 0)
    registers = jnp.stack([task, pair, height, width, zero, zero, solved, zero - 1], axis=-1)
    boards = jnp.pad(working, [(0, 0), (0, NUM_BOARDS - NUM_PLANES), (0, 0)])
    new = replace_fields(state, boards=boards, registers=registers, similarity=similarity)
    return select_rows(mask, (new, _unpack_grids(config, new)), (state, grid))


def _unpack_grids(config: ArcConfig, state: ArcState) -> Cells:
    """Unpack the working grids. They are empty if the config's observation does not contain them."""
    if not config.observation.working_grid:
        return jnp.zeros((state.similarity.shape[0], 0, 0), jnp.int8)
    rows, columns = config.grid_shape
    inside = area_bits(state.height, jnp.clip(state.width, 0, columns), rows)
    return unpack_cells(state.boards[:, :NUM_PLANES], inside, columns)


def _raw_selection(config: ArcConfig, action: KernelAction, rows: int) -> tuple[Mask, Flags]:
    """Return the mask of the selected cells, and whether each action is valid. Selected cells may be outside
    the working grid."""
    operation = action.operation
    legal = jnp.asarray(config.action.operation_mask)
    valid = (operation >= 0) & (operation < NUM_OPERATIONS)
    valid &= legal[jnp.clip(operation, 0, NUM_OPERATIONS - 1)]
    if action.mask.size:
        return pack_mask(action.mask).T, valid
    top, bottom = jnp.minimum(action.r1, action.r2), jnp.maximum(action.r1, action.r2)
    left, right = jnp.minimum(action.c1, action.c2), jnp.maximum(action.c1, action.c2)
    valid &= (top >= 0) & (bottom < rows) & (left >= 0) & (right < config.dataset.max_grid_width)
    row_bits = low_bits(right + 1) & ~low_bits(left)
    in_rows = ops.rows_below(bottom + 1, rows) & ~ops.rows_below(top, rows)
    return jnp.where(in_rows, row_bits, ops.ZERO), valid


def _fits(config: ArcConfig, tasks: TaskArrays, task: Ints, pair: Ints, height: Ints, width: Ints) -> Flags:
    """Return whether the task index, the pair index and the grid size of each state are valid for these tasks
    and this canvas. They may be invalid if a state comes from a different environment."""
    rows, columns = config.grid_shape
    first, demos, tests = _table_row(tasks, task).T
    # Each value is checked before they are added, so no sum can overflow.
    bounded = (demos >= 0) & (demos <= MAX_PAIRS) & (tests >= 0) & (tests <= MAX_PAIRS)
    bounded &= (first >= 0) & (first <= tasks.pairs.shape[0])
    pairs = demos + tests
    bounded &= (pairs <= MAX_PAIRS) & (first + pairs <= tasks.pairs.shape[0])
    sized = (height >= 1) & (height <= rows) & (width >= 1) & (width <= columns)
    return bounded & sized & (task >= 0) & (task < tasks.table.shape[0]) & (pair >= 0) & (pair < pairs)


def _table_row(tasks: TaskArrays, task: Ints) -> Int32[Array, "batch 3"]:
    return tasks.table[jnp.clip(task, 0, tasks.table.shape[0] - 1)]


def pair_index(tasks: TaskArrays, task: Ints, pair: Ints) -> Ints:
    """Return the index of a pair in the task arrays, given its task and its index within the task."""
    return jnp.clip(_table_row(tasks, task)[:, 0] + pair, 0, tasks.pairs.shape[0] - 1)


def _pair_sizes(config: ArcConfig, tasks: TaskArrays, index: Ints) -> Int32[Array, "4 batch"]:
    """Return the input height, input width, output height and output width of each pair, clipped to the
    canvas."""
    rows, columns = config.grid_shape
    tallest = min(tasks.pairs.shape[-1], rows)
    return jnp.clip(tasks.sizes[index], 0, np.array([tallest, columns] * 2, np.int32)).T


def _next_pair(
    config: ArcConfig, tasks: TaskArrays, operation: Ints, task: Ints, pair: Ints, solved_pairs: Ints
) -> tuple[Ints, Flags]:
    """Return the index of the current pair after the operation, and whether the operation switches the
    pair."""
    _, demos, tests = _table_row(tasks, task).T
    demo = _is_any(operation, Op.NEXT_DEMO_PAIR, Op.PREVIOUS_DEMO_PAIR, Op.FIRST_UNSOLVED_DEMO_PAIR)
    first, count = jnp.where(demo, 0, demos), jnp.where(demo, demos, tests)
    here = (pair >= first) & (pair < first + count)
    size = jnp.maximum(count, 1)
    following = jnp.where(here, first + (pair - first + 1) % size, first)
    preceding = jnp.where(here, first + (pair - first - 1) % size, first + count - 1)
    unsolved = low_bits(first + count) & ~low_bits(first) & ~solved_pairs.astype(jnp.uint32)
    earliest = jax.lax.population_count((unsolved & (~unsolved + 1)) - 1).astype(jnp.int32)

    forward = _is_any(operation, Op.NEXT_DEMO_PAIR, Op.NEXT_TEST_PAIR)
    backward = _is_any(operation, Op.PREVIOUS_DEMO_PAIR, Op.PREVIOUS_TEST_PAIR)
    seeking = _is_any(operation, Op.FIRST_UNSOLVED_DEMO_PAIR, Op.FIRST_UNSOLVED_TEST_PAIR)
    switches = ((forward | backward) & (count > 0)) | (seeking & (unsolved != 0))
    if config.episode.mode == "evaluation":
        switches &= ~demo
    target = jnp.where(forward, following, jnp.where(backward, preceding, earliest))
    return jnp.where(switches, target, pair), switches


def _transform(
    config: ArcConfig, operation: Ints, boards: UInt32[Array, "10 rows batch"], selection: Mask, area: Mask
) -> tuple[UInt32[Array, "4 rows batch"], UInt32[Array, "5 rows batch"], Mask]:
    """Apply the operations that move, rotate, flip, copy, cut, paste or clear an object.

    The object consists of the selected cells, or of the entire working grid if no cell is selected. Paste
    uses the object in the clipboard, and does nothing if no cell is selected.

    All of these operations are computed in the same three stages: transform the object, roll it to its new
    position, and write it to the grid.

    Returns:
        The bit-planes of the working grid, the planes and mask of the clipboard, and the mask of the cells to
        which the object was written.
    """
    rows = boards.shape[1]
    # Larger than the canvas, so that there is always a free row and column and a move cannot wrap around.
    side = 1 << max(config.grid_shape).bit_length()
    working, clipboard = boards[:NUM_PLANES], boards[NUM_PLANES:SELECTION]
    nothing_selected = jnp.all(selection == 0, axis=0)
    target = jnp.where(nothing_selected, area, selection)
    box = ops.bounding_box(target)

    rotates = _is_any(operation, Op.ROTATE_CLOCKWISE, Op.ROTATE_COUNTERCLOCKWISE)
    pastes = (operation == Op.PASTE) & ~nothing_selected
    moves = (operation >= Op.MOVE_UP) & (operation <= Op.FLIP_VERTICAL)
    copies = _is_any(operation, Op.COPY, Op.CUT)

    lifted = jnp.concatenate([working & target, target[None]])
    source = jnp.where(operation == Op.PASTE, clipboard, lifted)
    source = jnp.pad(source, [(0, 0), (0, side - rows), (0, 0)])
    mirrors = _is_any(operation, Op.ROTATE_CLOCKWISE, Op.FLIP_HORIZONTAL)
    flips_rows = _is_any(operation, Op.ROTATE_COUNTERCLOCKWISE, Op.FLIP_VERTICAL)
    source = _where_any(rotates, ops.transpose, source)
    source = _where_any(mirrors, lambda planes: ops.reverse_columns(planes, side), source)
    source = _where_any(flips_rows, lambda planes: planes[:, ::-1], source)
    down, right = _distances(operation, box, side)
    rolled = _where_any(moves | pastes | copies, lambda planes: ops.roll(planes, down, right), source)
    rolled = rolled[:, :rows]
    # Cells that a rotation or a paste pushes over the far edge reappear before the corner: remove them.
    wraps = rotates | pastes
    after_corner = jnp.where(ops.rows_below(box.top, rows), ops.ZERO, ~low_bits(box.left))
    rolled = jnp.where(wraps, rolled & after_corner, rolled)

    written = jnp.where(moves | pastes, rolled[NUM_PLANES] & area, ops.ZERO)
    clears = moves | _is_any(operation, Op.CUT, Op.CLEAR)
    working = jnp.where(clears, working & ~target, working)
    working = (working & ~written) | (rolled[:NUM_PLANES] & written)
    return working, jnp.where(copies, rolled, clipboard), written


def _where_any(mask: Flags, change: Callable[[Planes], Planes], planes: Planes) -> Planes:
    """Apply `change` to the environments for which `mask` is set. If there are none, skip the computation.

    Skipping the computation saves time in small batches. The conditional also prevents XLA from fusing one
    change into the next, which would compute the same values many times.
    """
    return jax.lax.cond(jnp.any(mask), lambda x: jnp.where(mask, change(x), x), lambda x: x, planes)


def _distances(operation: Ints, box: ops.BoundingBox, side: int) -> tuple[Ints, Ints]:
    """Return the number of rows (down) and columns (to the right) by which each object is rolled to its new
    position.

    For rotations and flips, these are the distances after the planes have been transposed, mirrored or both.

    Args:
        operation: Id of each operation.
        box: Bounding boxes of the objects or, for Paste, of the selected cells.
        side: Height and width of the planes.
    """
    last = side - 1
    table: dict[Op, tuple[Ints | int, Ints | int]] = {
        Op.MOVE_UP: (-1, 0),
        Op.MOVE_DOWN: (1, 0),
        Op.MOVE_LEFT: (0, -1),
        Op.MOVE_RIGHT: (0, 1),
        Op.ROTATE_CLOCKWISE: (box.top - box.left, box.left + box.bottom - last),
        Op.ROTATE_COUNTERCLOCKWISE: (box.top + box.right - last, box.left - box.top),
        Op.FLIP_HORIZONTAL: (0, box.left + box.right - last),
        Op.FLIP_VERTICAL: (box.top + box.bottom - last, 0),
        Op.COPY: (-box.top, -box.left),
        Op.CUT: (-box.top, -box.left),
        Op.PASTE: (box.top, box.left),
    }
    down = right = jnp.zeros_like(operation)
    for which, (rows, columns) in table.items():
        down = jnp.where(operation == which, rows, down)
        right = jnp.where(operation == which, columns, right)
    return down, right


def _fill(operation: Ints, working: Planes, selection: Mask, area: Mask, acts: Flags) -> Planes:
    """Apply fills and flood fills. A fill changes the selected cells; a flood fill changes the region of
    equal color around the single selected cell. Where `acts` is False, flood fills are skipped, because the
    result is not used."""
    floods = (operation >= Op.FLOOD_FILL_0) & (operation <= Op.FLOOD_FILL_9)
    floods &= acts & (ops.count_cells(selection) == 1)
    seed = jnp.where(floods, selection, ops.ZERO)
    open_cells = jnp.where(floods, area, ops.ZERO)
    for plane in range(NUM_PLANES):
        has = jnp.any(working[plane] & seed != 0, axis=0)
        open_cells = open_cells & jnp.where(has, working[plane], ~working[plane])
    region = ops.flood(open_cells, seed)
    filled = jnp.where(operation <= Op.FILL_9, selection, region)
    color_bits = (operation % 10 >> jnp.arange(NUM_PLANES)[:, None]) & 1 != 0
    return (working & ~filled) | jnp.where(color_bits[:, None], filled, ops.ZERO)


def compute_similarity(
    config: ArcConfig, tasks: TaskArrays, working: Planes, height: Ints, width: Ints, index: Ints
) -> Float32[Array, " batch"]:
    """Compute the similarity of working grids to the outputs of pairs: the number of equal cells divided by
    the number of cells that belong to at least one of the two grids."""
    rows = working.shape[1]
    target = fit_rows(tasks.pairs[index, 1], rows).transpose(1, 2, 0)
    _, _, target_height, target_width = _pair_sizes(config, tasks, index)
    common_rows, common_columns = jnp.minimum(height, target_height), jnp.minimum(width, target_width)
    unequal = jax.lax.reduce(working ^ target, ops.ZERO, jax.lax.bitwise_or, (0,))
    equal = ops.count_cells(~unequal & ops.area(common_rows, common_columns, rows))
    cells = height * width + target_height * target_width - common_rows * common_columns
    return equal.astype(jnp.float32) / cells.astype(jnp.float32)


def _is_any(operation: Ints, *operations: Op) -> Flags:
    return functools.reduce(operator.or_, (operation == other for other in operations))


def _first_grid(
    config: ArcConfig, tasks: TaskArrays, task: Ints, pair: Ints, noise: UInt32[Array, " batch"], rows: int
) -> tuple[UInt32[Array, "batch 4 rows"], Ints, Ints]:
    """Return the bit-planes, height and width of the initial working grid of each episode."""
    index = pair_index(tasks, task, pair)
    height, width, _, _ = _pair_sizes(config, tasks, index)
    inputs = fit_rows(tasks.pairs[index, 0], rows)
    match config.episode.initial_grid:
        case "input":
            return inputs, height, width
        case "blank":
            return jnp.zeros_like(inputs), height, width
        case "random":
            return _random_planes(noise, height, width, rows, config.dataset.max_grid_width), height, width
        case "demonstration":
            # Never the output of the same pair, which is the answer.
            demos = tasks.table[task, 1]
            others = demos - (pair < demos)
            chosen = (noise % jnp.maximum(others, 1).astype(jnp.uint32)).astype(jnp.int32)
            other = pair_index(tasks, task, chosen + (chosen >= pair))
            _, _, shown_height, shown_width = _pair_sizes(config, tasks, other)
            shown = (others > 0) & (shown_height > 0)
            planes = jnp.where(shown[:, None, None], fit_rows(tasks.pairs[other, 1], rows), inputs)
            return planes, jnp.where(shown, shown_height, height), jnp.where(shown, shown_width, width)


def _random_planes(
    noise: UInt32[Array, " batch"], height: Ints, width: Ints, rows: int, columns: int
) -> UInt32[Array, "batch 4 rows"]:
    """Compute the bit-planes of pseudorandom grids. The color of each cell is a hash (the MurmurHash3
    finalizer) of 32 bits of noise and the position of the cell."""
    cell = jnp.arange(rows, dtype=jnp.uint32)[:, None] * 32 + jnp.arange(columns, dtype=jnp.uint32)
    x = noise[:, None, None] + cell * jnp.uint32(0x9E3779B9)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    color = (((x ^ (x >> 16)) >> 16) * NUM_COLORS) >> 16
    bits = (color[:, None] >> jnp.arange(NUM_PLANES, dtype=jnp.uint32)[:, None, None]) & 1
    planes = jnp.sum(bits << jnp.arange(columns, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)
    return planes & area_bits(height, width, rows)[:, None]
