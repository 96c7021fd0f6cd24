"""The XLA engine: every operation as bit arithmetic over a flat batch, for any device that XLA serves.

Its twin for the CPU is `native`; the boards' arithmetic is in `boards`, new episodes are in `xla_reset`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from phalanx.arc.backends import bitplane_ops as xb
from phalanx.arc.backends.interface import KernelAction, Outcome, Packed, allowed_bits
from phalanx.arc.bitplanes import NUM_PLANES, area_bits, fit_rows, pack_mask, unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_OPERATIONS, Operation as Op
from phalanx.arc.reward import REWARD_WEIGHTS, RewardNumbers
from phalanx.arc.state import (
    CLIPBOARD,
    HEIGHT,
    LAST_OPERATION,
    PAIR,
    SELECTION,
    SOLVED_PAIRS,
    STATUS,
    STEP_COUNT,
    TASK,
    TERMINATED,
    TRUNCATED,
    WIDTH,
)
from phalanx.arc.task_buffer import MAX_PAIRS, TaskArrays

Numbers = Int32[Array, " batch"]
Truths = Bool[Array, " batch"]


def step(
    config: ArcConfig, tasks: TaskArrays, numbers: RewardNumbers, fields: KernelAction, packed: Packed
) -> tuple[Packed, Outcome]:
    """One transition of a flat batch; several rows of numbers serve equal parts of it in turn."""
    operation = fields.operation
    registers = packed.registers.T
    boards = packed.boards.transpose(1, 2, 0)
    rows = boards.shape[1]
    raw, valid = _raw_selection(config, fields, rows)
    running = registers[STATUS] == 0
    acts = running & valid & _is_sound(config, tasks, registers)

    area = xb.area(registers[HEIGHT], registers[WIDTH], rows)
    selection = raw & area
    pair, switched = _next_pair(config, tasks, operation, registers)
    height, width, from_input = _next_size(config, tasks, operation, raw, registers, pair, switched)
    new_area = xb.area(height, width, rows)

    working, clipboard, place = _geometry(config, operation, boards, selection, area)
    working = _fills(operation, working, selection, area, acts)
    place_of_pair = pair_index(tasks, registers[TASK], pair)
    started = fit_rows(tasks.pairs[place_of_pair, 0], rows).transpose(1, 2, 0)
    working = jnp.where(from_input, started, working & new_area)

    moved = (operation >= Op.MOVE_UP) & (operation <= Op.FLIP_VERTICAL)
    selected = jnp.where(moved, place, raw & new_area)
    fresh = jnp.concatenate([working, clipboard, selected[None]])
    boards = jnp.where(acts, fresh, boards)

    score = compute_similarity(config, tasks, working, height, width, place_of_pair)
    similarity = jnp.where(acts, score, packed.similarity)
    improvement = similarity - packed.similarity
    submitted = acts & (operation == Op.SUBMIT)
    finished = (score == 1.0) & acts
    solved = finished & (submitted if config.episode.require_submit else True)
    step_count = registers[STEP_COUNT] + running
    terminated = submitted | solved
    overdue = running & ~terminated & (step_count >= config.episode.max_episode_steps)
    status = jnp.where(terminated, TERMINATED, jnp.where(overdue, TRUNCATED, registers[STATUS]))
    remembered = registers[SOLVED_PAIRS] | jnp.where(finished, jnp.int32(1) << pair, 0)
    new_registers = jnp.stack(
        [
            registers[TASK],
            jnp.where(acts, pair, registers[PAIR]),
            jnp.where(acts, height, registers[HEIGHT]),
            jnp.where(acts, width, registers[WIDTH]),
            step_count,
            status,
            remembered,
            jnp.where(acts, operation, registers[LAST_OPERATION]),
        ],
        axis=-1,
    )

    reward = _reward(config, numbers, acts, running, improvement, solved, submitted, step_count)
    new = Packed(boards.transpose(2, 0, 1), new_registers, similarity)
    outcome = Outcome(
        observation=observe(config, new),
        reward=reward,
        improvement=improvement,
        operation_type=jnp.where(acts, operation, -1),
        step_count=step_count,
        done=status != 0,
        terminated=status == TERMINATED,
        truncated=status == TRUNCATED,
        solved=(status == TERMINATED) & (similarity == 1.0),
    )
    return new, outcome


def observe(config: ArcConfig, packed: Packed) -> Array:
    """The working grids as cells, where the config wants them."""
    if not config.observation.working_grid:
        return jnp.zeros((packed.similarity.shape[0], 0, 0), jnp.int8)
    rows, columns = config.grid_shape
    width = jnp.clip(packed.registers[:, WIDTH], 0, columns)
    inside = area_bits(packed.registers[:, HEIGHT], width, rows)
    return unpack_cells(packed.boards[:, :NUM_PLANES], inside, columns)


def _raw_selection(
    config: ArcConfig, fields: KernelAction, rows: int
) -> tuple[UInt32[Array, "rows batch"], Truths]:
    """The cells that an action names, on the canvas, and whether the action is valid."""
    operation = fields.operation
    bits = allowed_bits(config)
    table = np.array([bits >> k & 1 for k in range(NUM_OPERATIONS)], bool)
    valid = (operation >= 0) & (operation < NUM_OPERATIONS)
    valid &= jnp.asarray(table)[jnp.clip(operation, 0, NUM_OPERATIONS - 1)]
    if fields.mask.size:
        return pack_mask(fields.mask).T, valid
    columns = config.dataset.max_grid_width
    top, bottom = jnp.minimum(fields.r1, fields.r2), jnp.maximum(fields.r1, fields.r2)
    left, right = jnp.minimum(fields.c1, fields.c2), jnp.maximum(fields.c1, fields.c2)
    valid &= (top >= 0) & (bottom < rows) & (left >= 0) & (right < columns)
    words = xb.low_bits(right + 1) & ~xb.low_bits(left)
    return jnp.where(xb.rows_below(bottom + 1, rows) & ~xb.rows_below(top, rows), words, xb.ZERO), valid


def _is_sound(config: ArcConfig, tasks: TaskArrays, registers: Int32[Array, "8 batch"]) -> Truths:
    """Whether a state's registers lie within these tasks and this canvas: it may come from elsewhere."""
    rows, columns = config.grid_shape
    task, pair, height, width = (registers[which] for which in (TASK, PAIR, HEIGHT, WIDTH))
    first, demos, tests = _table_row(tasks, task).T
    # Each is bounded before they are added, so that no sum can wrap round.
    bounded = (demos >= 0) & (demos <= MAX_PAIRS) & (tests >= 0) & (tests <= MAX_PAIRS)
    bounded &= (first >= 0) & (first <= tasks.pairs.shape[0])
    pairs = demos + tests
    bounded &= (pairs <= MAX_PAIRS) & (first + pairs <= tasks.pairs.shape[0])
    sized = (height >= 1) & (height <= rows) & (width >= 1) & (width <= columns)
    return bounded & sized & (task >= 0) & (task < tasks.table.shape[0]) & (pair >= 0) & (pair < pairs)


def _table_row(tasks: TaskArrays, task: Numbers) -> Int32[Array, "batch 3"]:
    return tasks.table[jnp.clip(task, 0, tasks.table.shape[0] - 1)]


def pair_index(tasks: TaskArrays, task: Numbers, pair: Numbers) -> Numbers:
    """A pair's place in the buffer."""
    return jnp.clip(_table_row(tasks, task)[:, 0] + pair, 0, tasks.pairs.shape[0] - 1)


def pair_sizes(config: ArcConfig, tasks: TaskArrays, place: Numbers) -> Int32[Array, "4 batch"]:
    """Input height and width, output height and width, as far as they lie on the canvas."""
    rows, columns = config.grid_shape
    tallest = min(tasks.pairs.shape[-1], rows)
    return jnp.clip(tasks.sizes[place], 0, np.array([tallest, columns] * 2, np.int32)).T


def _next_pair(
    config: ArcConfig, tasks: TaskArrays, operation: Numbers, registers: Int32[Array, "8 batch"]
) -> tuple[Numbers, Truths]:
    """The pair after the operation, and whether it was switched to."""
    row = _table_row(tasks, registers[TASK])
    pair = registers[PAIR]
    demo = _is_any(operation, Op.NEXT_DEMO_PAIR, Op.PREVIOUS_DEMO_PAIR, Op.FIRST_UNSOLVED_DEMO_PAIR)
    first = jnp.where(demo, 0, row[:, 1])
    count = jnp.where(demo, row[:, 1], row[:, 2])
    here = (pair >= first) & (pair < first + count)
    size = jnp.maximum(count, 1)
    following = jnp.where(here, first + (pair - first + 1) % size, first)
    preceding = jnp.where(here, first + (pair - first - 1) % size, first + count - 1)
    candidates = (xb.low_bits(first + count) & ~xb.low_bits(first)).astype(jnp.uint32)
    unsolved = candidates & ~registers[SOLVED_PAIRS].astype(jnp.uint32)
    earliest = jax.lax.population_count((unsolved & (~unsolved + 1)) - 1).astype(jnp.int32)

    forward = _is_any(operation, Op.NEXT_DEMO_PAIR, Op.NEXT_TEST_PAIR)
    backward = _is_any(operation, Op.PREVIOUS_DEMO_PAIR, Op.PREVIOUS_TEST_PAIR)
    seeking = _is_any(operation, Op.FIRST_UNSOLVED_DEMO_PAIR, Op.FIRST_UNSOLVED_TEST_PAIR)
    switches = ((forward | backward) & (count > 0)) | (seeking & (unsolved != 0))
    if config.episode.mode == "evaluation":
        switches &= ~demo
    target = jnp.where(forward, following, jnp.where(backward, preceding, earliest))
    return jnp.where(switches, target, pair), switches


def _next_size(
    config: ArcConfig,
    tasks: TaskArrays,
    operation: Numbers,
    raw: UInt32[Array, "rows batch"],
    registers: Int32[Array, "8 batch"],
    pair: Numbers,
    switched: Truths,
) -> tuple[Numbers, Numbers, Truths]:
    """Height and width after the operation, and whether the grid starts again from the input."""
    from_input = switched | _is_any(operation, Op.COPY_INPUT, Op.RESET_PAIR)
    size = pair_sizes(config, tasks, pair_index(tasks, registers[TASK], pair))
    box = xb.bounding_box(raw)
    resized = (operation == Op.RESIZE) & ~box.empty
    height = jnp.where(resized, box.bottom + 1, registers[HEIGHT])
    width = jnp.where(resized, box.right + 1, registers[WIDTH])
    return jnp.where(from_input, size[0], height), jnp.where(from_input, size[1], width), from_input


def _geometry(
    config: ArcConfig,
    operation: Numbers,
    boards: UInt32[Array, "10 rows batch"],
    selection: UInt32[Array, "rows batch"],
    area: UInt32[Array, "rows batch"],
) -> tuple[UInt32[Array, "4 rows batch"], UInt32[Array, "5 rows batch"], UInt32[Array, "rows batch"]]:
    """Moves, turns, flips and the clipboard, all by one path: turn the object, roll it, write it.

    Gives the working planes, the clipboard and where the object was written.
    """
    rows = boards.shape[1]
    side = (
        1 << max(config.grid_shape).bit_length()
    )  # always a free row and column, so that a move cannot wrap
    working, clipboard = boards[:NUM_PLANES], boards[CLIPBOARD:SELECTION]
    nothing_selected = jnp.all(selection == 0, axis=0)
    target = jnp.where(nothing_selected, area, selection)
    box = xb.bounding_box(target)

    rotates = _is_any(operation, Op.ROTATE_CLOCKWISE, Op.ROTATE_COUNTERCLOCKWISE)
    pastes = (operation == Op.PASTE) & ~nothing_selected
    moves = (operation >= Op.MOVE_UP) & (operation <= Op.FLIP_VERTICAL)
    remembers = _is_any(operation, Op.COPY, Op.CUT)

    lifted = jnp.concatenate([working & target, target[None]])
    source = jnp.where(operation == Op.PASTE, clipboard, lifted)
    source = jnp.pad(source, [(0, 0), (0, side - rows), (0, 0)])
    mirrors = _is_any(operation, Op.ROTATE_CLOCKWISE, Op.FLIP_HORIZONTAL)
    upends = _is_any(operation, Op.ROTATE_COUNTERCLOCKWISE, Op.FLIP_VERTICAL)
    source = _where_any(rotates, xb.transpose, source)
    source = _where_any(mirrors, lambda words: xb.reverse_columns(words, side), source)
    source = _where_any(upends, lambda words: words[:, ::-1], source)
    down, right = _distances(operation, box, side)
    rolled = _where_any(moves | pastes | remembers, lambda words: xb.roll(words, down, right), source)[
        :, :rows
    ]
    # What a turn or a paste pushes over the far edge comes back on the near side of its corner: cut it off.
    cut = rotates | pastes
    beyond = jnp.where(xb.rows_below(box.top, rows), xb.ZERO, ~xb.low_bits(box.left))
    rolled = jnp.where(cut, rolled & beyond, rolled)

    place = jnp.where(moves | pastes, rolled[NUM_PLANES] & area, xb.ZERO)
    wiped = moves | _is_any(operation, Op.CUT, Op.CLEAR)
    working = jnp.where(wiped, working & ~target, working)
    working = (working & ~place) | (rolled[:NUM_PLANES] & place)
    return working, jnp.where(remembers, rolled, clipboard), place


def _where_any(
    mask: Truths,
    change: Callable[[UInt32[Array, "planes side batch"]], UInt32[Array, "planes side batch"]],
    words: UInt32[Array, "planes side batch"],
) -> UInt32[Array, "planes side batch"]:
    """Change the boards that the mask names, if it names any.

    The branch spares small batches the work, and keeps XLA from fusing one stage into the next, where it
    would compute the same words many times over.
    """
    return jax.lax.cond(jnp.any(mask), lambda w: jnp.where(mask, change(w), w), lambda w: w, words)


def _distances(operation: Numbers, box: xb.BoundingBox, side: int) -> tuple[Numbers, Numbers]:
    """How far down and right the turned object must roll to lie where it belongs."""
    last = side - 1
    zero = jnp.zeros_like(operation)
    one = zero + 1
    table = {
        Op.MOVE_UP: (-one, zero),
        Op.MOVE_DOWN: (one, zero),
        Op.MOVE_LEFT: (zero, -one),
        Op.MOVE_RIGHT: (zero, one),
        Op.ROTATE_CLOCKWISE: (box.top - box.left, box.left + box.bottom - last),
        Op.ROTATE_COUNTERCLOCKWISE: (box.top + box.right - last, box.left - box.top),
        Op.FLIP_HORIZONTAL: (zero, box.left + box.right - last),
        Op.FLIP_VERTICAL: (box.top + box.bottom - last, zero),
        Op.COPY: (-box.top, -box.left),
        Op.CUT: (-box.top, -box.left),
        Op.PASTE: (box.top, box.left),
    }
    down, right = zero, zero
    for which, (rows, columns) in table.items():
        down = jnp.where(operation == which, rows, down)
        right = jnp.where(operation == which, columns, right)
    return down, right


def _fills(
    operation: Numbers,
    working: UInt32[Array, "4 rows batch"],
    selection: UInt32[Array, "rows batch"],
    area: UInt32[Array, "rows batch"],
    acts: Truths,
) -> UInt32[Array, "4 rows batch"]:
    """Fill the selection, or the region around its one cell."""
    floods = (operation >= Op.FLOOD_FILL_0) & (operation <= Op.FLOOD_FILL_9)
    floods &= acts & (xb.count_cells(selection) == 1)
    seed = jnp.where(floods, selection, xb.ZERO)
    open_cells = jnp.where(floods, area, xb.ZERO)
    for plane in range(NUM_PLANES):
        has = jnp.any(working[plane] & seed != 0, axis=0)
        open_cells = open_cells & jnp.where(has, working[plane], ~working[plane])
    region = xb.flood(open_cells, seed)
    filled = jnp.where(operation <= Op.FILL_9, selection, region)
    color = operation % 10
    planes = [
        (working[plane] & ~filled) | jnp.where((color >> plane) & 1 != 0, filled, xb.ZERO)
        for plane in range(NUM_PLANES)
    ]
    return jnp.stack(planes)


def compute_similarity(
    config: ArcConfig,
    tasks: TaskArrays,
    working: UInt32[Array, "4 rows batch"],
    height: Numbers,
    width: Numbers,
    place: Numbers,
) -> Float32[Array, " batch"]:
    """Equal cells over the cells of the union of the two areas."""
    rows = working.shape[1]
    target = fit_rows(tasks.pairs[place, 1], rows).transpose(1, 2, 0)
    _, _, target_height, target_width = pair_sizes(config, tasks, place)
    common_rows, common_columns = jnp.minimum(height, target_height), jnp.minimum(width, target_width)
    unequal = jax.lax.reduce(working ^ target, xb.ZERO, jax.lax.bitwise_or, (0,))
    equal = xb.count_cells(~unequal & xb.area(common_rows, common_columns, rows))
    cells = height * width + target_height * target_width - common_rows * common_columns
    return equal.astype(jnp.float32) / cells.astype(jnp.float32)


def _reward(
    config: ArcConfig,
    numbers: RewardNumbers,
    acts: Truths,
    running: Truths,
    improvement: Float32[Array, " batch"],
    solved: Truths,
    submitted: Truths,
    step_count: Numbers,
) -> Float32[Array, " batch"]:
    """What the step pays; a finished state is paid nothing."""
    if numbers.ndim == 2:
        numbers = jnp.repeat(numbers, acts.shape[0] // numbers.shape[0], axis=0)
    pay = dict(zip(REWARD_WEIGHTS, jnp.moveaxis(numbers, -1, 0), strict=True))
    reward = jnp.zeros_like(improvement)
    if not config.reward.reward_on_submit_only:
        if config.episode.mode == "training":
            reward = pay["similarity_weight"] * improvement
        reward = reward + pay["step_penalty"]
    quick = step_count.astype(jnp.float32) <= pay["efficiency_bonus_threshold"]
    bonus = pay["success_bonus"] + jnp.where(quick, pay["efficiency_bonus"], 0.0)
    reward = reward + jnp.where(solved, bonus, 0.0)
    reward = reward + jnp.where(submitted & ~solved, pay["unsolved_submission_penalty"], 0.0)
    return jnp.where(acts, reward, jnp.where(running, pay["invalid_action_penalty"], 0.0))


def _is_any(operation: Numbers, *operations: Op) -> Truths:
    """Whether the operation is one of these."""
    found = operation == operations[0]
    for other in operations[1:]:
        found |= operation == other
    return found
