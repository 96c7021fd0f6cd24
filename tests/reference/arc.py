"""Reference implementation of ARC steps with small integer grids, dictionaries of cells and loops.

It shares only the types of tasks and configs with the backends.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.arc.config import ArcConfig
from phalanx.arc.tasks import ArcTask

Cell = tuple[int, int]
Object = dict[Cell, int]
"""Cells with their colors."""

MAX_PAIRS = 31
"""Maximum number of pairs of a task."""

UP, DOWN, LEFT, RIGHT = 20, 21, 22, 23
CLOCKWISE, COUNTERCLOCKWISE, FLIP_HORIZONTAL, FLIP_VERTICAL = 24, 25, 26, 27
COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE, SUBMIT = 28, 29, 30, 31, 32, 33, 34
NEXT_DEMO, PREVIOUS_DEMO, NEXT_TEST, PREVIOUS_TEST, RESET_PAIR = 35, 36, 37, 38, 39
FIRST_UNSOLVED_DEMO, FIRST_UNSOLVED_TEST = 40, 41

WITH_OBJECT = (*range(UP, FLIP_VERTICAL + 1), COPY, CUT, CLEAR)
"""Operations that use the entire area if nothing is selected."""


@dataclasses.dataclass(frozen=True)
class OracleState:
    """State of one environment. Steps return a new state."""

    task: ArcTask
    pair: int
    """Index into the demonstration pairs followed by the test pairs."""
    working: np.ndarray
    """Colors of the area, [height, width]."""
    selected: np.ndarray
    """Selection on the canvas."""
    clipboard: Object | None
    """Offsets from the top left corner of the copied object, with colors; None if nothing was copied."""
    step_count: int
    terminated: bool
    truncated: bool
    solved_pairs: frozenset[int]
    similarity: np.float32
    last_operation: int
    """Last valid operation; -1 before the first."""
    kept: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    """In evaluation mode, the last grid of each test pair."""
    handed_in: tuple[dict[int, np.ndarray], ...] = ()
    """In evaluation mode, the grids of all test pairs by attempt."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def solved(self) -> bool:
        return self.terminated and bool(self.similarity == 1.0)


def changed(state: OracleState, **fields: Any) -> OracleState:
    """Return a copy with other field values, ten times faster than `dataclasses.replace`."""
    copy = object.__new__(OracleState)
    vars(copy).update(vars(state), **fields)
    return copy


def similarity_of(working: np.ndarray, target: np.ndarray) -> np.float32:
    """Compute the number of equal cells divided by the number of cells in the union of both areas."""
    height, width = min(working.shape[0], target.shape[0]), min(working.shape[1], target.shape[1])
    equal = int((working[:height, :width] == target[:height, :width]).sum())
    union = working.size + target.size - height * width
    return np.float32(equal) / np.float32(union)


def target_of(task: ArcTask, pair: int) -> np.ndarray:
    """Return the output of the pair; an empty grid if it is hidden, so that no grid equals it."""
    output = task.pairs[pair].output
    return np.zeros((0, 0), int) if output is None else np.array(output, int)


def start_candidates(task: ArcTask, config: ArcConfig) -> list[int]:
    """List the pairs that an episode may start with."""
    demos, tests = indices_of_demos(task), indices_of_tests(task)
    if config.episode.mode == "evaluation":
        return tests
    return demos or tests


def indices_of_demos(task: ArcTask) -> list[int]:
    return list(range(len(task.demos)))


def indices_of_tests(task: ArcTask) -> list[int]:
    return list(range(len(task.demos), len(task.pairs)))


def random_color(noise: int, row: int, column: int) -> int:
    """Compute a color from 32 bits with the finalizer of MurmurHash3."""
    x = (noise + (32 * row + column) * 0x9E3779B9) % 2**32
    x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
    return ((x ^ (x >> 16)) >> 16) * 10 >> 16


def first_grid(task: ArcTask, pair: int, config: ArcConfig, noise: int) -> np.ndarray:
    """Return the initial working grid of an episode."""
    given = np.array(task.pairs[pair].input, int)
    if config.episode.initial_grid == "blank":
        return np.zeros_like(given)
    if config.episode.initial_grid == "random":
        rows, columns = given.shape
        return np.array([[random_color(noise, r, c) for c in range(columns)] for r in range(rows)])
    if config.episode.initial_grid == "demonstration":
        others = [demo for demo in indices_of_demos(task) if demo != pair]
        shown = task.pairs[others[noise % len(others)]].output if others else None
        return given if shown is None else np.array(shown, int)
    return given


def reset_oracle(task: ArcTask, pair: int, config: ArcConfig, noise: int = 0) -> OracleState:
    """Return the initial state of an episode on a pair."""
    kept = {}
    if config.episode.mode == "evaluation":
        for number, test in enumerate(indices_of_tests(task)):
            kept[test] = first_grid(task, test, config, (noise * 0x85EBCA6B % 2**32) ^ number)
    working = kept[pair] if kept else first_grid(task, pair, config, noise)
    similarity = np.float32(0.0) if kept else similarity_of(working, target_of(task, pair))
    return OracleState(
        task=task,
        pair=pair,
        working=working,
        selected=np.zeros(config.grid_shape, bool),
        clipboard=None,
        step_count=0,
        terminated=False,
        truncated=False,
        solved_pairs=frozenset([pair]) if similarity == 1.0 else frozenset(),
        similarity=similarity,
        last_operation=-1,
        kept=kept,
    )


def raw_selection(action_format: str, selection: Any, config: ArcConfig) -> np.ndarray | None:
    """Return the cells of a selection, or None if a coordinate is outside the canvas."""
    rows, cols = config.grid_shape
    if action_format == "mask":
        return np.array(selection, bool)
    if action_format == "point":
        r1, c1 = r2, c2 = selection
    else:
        r1, c1, r2, c2 = selection
    for r in (r1, r2):
        if not 0 <= r < rows:
            return None
    for c in (c1, c2):
        if not 0 <= c < cols:
            return None
    raw = np.zeros((rows, cols), bool)
    raw[min(r1, r2) : max(r1, r2) + 1, min(c1, c2) : max(c1, c2) + 1] = True
    return raw


def cells_of(mask: np.ndarray) -> list[Cell]:
    return [(r, c) for r, c in np.argwhere(mask).tolist()]


def inside(grid: np.ndarray, cell: Cell) -> bool:
    return 0 <= cell[0] < grid.shape[0] and 0 <= cell[1] < grid.shape[1]


def box_of(cells: Any) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right of the bounding box of cells."""
    rows, cols = [r for r, _ in cells], [c for _, c in cells]
    return min(rows), min(cols), max(rows), max(cols)


def flooded(grid: np.ndarray, start: Cell, color: int) -> np.ndarray:
    """Recolor the 4-connected region of equal color around a cell."""
    region, frontier = {start}, [start]
    while frontier:
        r, c = frontier.pop()
        for cell in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
            if cell not in region and inside(grid, cell) and grid[cell] == grid[start]:
                region.add(cell)
                frontier.append(cell)
    return written(grid, dict.fromkeys(region, color))


def written(grid: np.ndarray, cells: Object) -> np.ndarray:
    """Paint cells; those outside the grid are dropped."""
    result = grid.copy()
    rows, columns = grid.shape
    for (r, c), color in cells.items():
        if 0 <= r < rows and 0 <= c < columns:
            result[r, c] = color
    return result


def displaced(operation: int, cells: Object) -> Object:
    """Move, rotate or flip an object, which may extend outside the area."""
    top, left, bottom, right = box_of(cells)
    place = {
        UP: lambda r, c: (r - 1, c),
        DOWN: lambda r, c: (r + 1, c),
        LEFT: lambda r, c: (r, c - 1),
        RIGHT: lambda r, c: (r, c + 1),
        CLOCKWISE: lambda r, c: (top + (c - left), left + (bottom - r)),
        COUNTERCLOCKWISE: lambda r, c: (top + (right - c), left + (r - top)),
        FLIP_HORIZONTAL: lambda r, c: (r, left + (right - c)),
        FLIP_VERTICAL: lambda r, c: (top + (bottom - r), c),
    }[operation]
    return {place(r, c): color for (r, c), color in cells.items()}


def resized(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    result = np.zeros((height, width), int)
    kept = grid[:height, :width]
    result[: kept.shape[0], : kept.shape[1]] = kept
    return result


def switched_pair(state: OracleState, operation: int, config: ArcConfig) -> int | None:
    """Return the pair that operations 35 to 38, 40 and 41 select, or None if they have no effect."""
    about_demos = operation in (NEXT_DEMO, PREVIOUS_DEMO, FIRST_UNSOLVED_DEMO)
    if about_demos and config.episode.mode == "evaluation":
        return None
    kind = indices_of_demos(state.task) if about_demos else indices_of_tests(state.task)
    if not kind:
        return None
    if operation in (FIRST_UNSOLVED_DEMO, FIRST_UNSOLVED_TEST):
        unsolved = [pair for pair in kind if pair not in state.solved_pairs]
        return unsolved[0] if unsolved else None
    forward = operation in (NEXT_DEMO, NEXT_TEST)
    if state.pair not in kind:
        return kind[0] if forward else kind[-1]
    place = kind.index(state.pair)
    return kind[(place + (1 if forward else -1)) % len(kind)]


def operate(state: OracleState, operation: int, raw: np.ndarray, config: ArcConfig) -> OracleState:
    """Return the grid, selection, clipboard and pair after a valid operation."""
    grid, pair, clipboard = state.working, state.pair, state.clipboard
    cells = cells_of(raw[: grid.shape[0], : grid.shape[1]])
    lifted: Object = {}
    if operation in WITH_OBJECT:
        area = [(r, c) for r in range(grid.shape[0]) for c in range(grid.shape[1])]
        colors = grid.tolist()
        lifted = {(r, c): colors[r][c] for r, c in (cells or area)}
    new_place: Object | None = None

    if 0 <= operation <= 9:
        grid = written(grid, dict.fromkeys(cells, operation))
    elif 10 <= operation <= 19:
        if len(cells) == 1:
            grid = flooded(grid, cells[0], operation - 10)
    elif UP <= operation <= FLIP_VERTICAL:
        new_place = displaced(operation, lifted)
        grid = written(written(grid, dict.fromkeys(lifted, 0)), new_place)
    elif operation in (COPY, CUT):
        top, left, _, _ = box_of(lifted)
        clipboard = {(r - top, c - left): color for (r, c), color in lifted.items()}
        if operation == CUT:
            grid = written(grid, dict.fromkeys(lifted, 0))
    elif operation == PASTE:
        if cells and clipboard is not None:
            top, left, _, _ = box_of(cells)
            grid = written(grid, {(top + r, left + c): color for (r, c), color in clipboard.items()})
    elif operation == CLEAR:
        grid = written(grid, dict.fromkeys(lifted, 0))
    elif operation in (COPY_INPUT, RESET_PAIR):
        grid = np.array(state.task.pairs[pair].input, int)
    elif operation == RESIZE:
        if raw.any():
            _, _, bottom, right = box_of(cells_of(raw))
            grid = resized(grid, bottom + 1, right + 1)
    elif operation != SUBMIT:
        other = switched_pair(state, operation, config)
        if other is not None:
            pair = other
            grid = np.array(state.task.pairs[pair].input, int)

    selected = np.zeros(config.grid_shape, bool)
    rows, cols = grid.shape
    if new_place is None:
        selected[:rows, :cols] = raw[:rows, :cols]
    else:
        for cell in new_place:
            if inside(grid, cell):
                selected[cell] = True
    return changed(state, working=grid, pair=pair, clipboard=clipboard, selected=selected)


def is_valid(operation: int, raw: np.ndarray | None, config: ArcConfig) -> bool:
    allowed = config.action.allowed_operations
    return 0 <= operation <= 41 and raw is not None and (allowed is None or operation in allowed)


def reward_of(before: OracleState, after: OracleState, submitted: bool, config: ArcConfig) -> np.float32:
    """Compute the reward of a valid step in float32."""
    settings, reward = config.reward, np.float32(0.0)
    if not settings.reward_on_submit_only:
        if config.episode.mode == "training":
            reward = np.float32(settings.similarity_weight) * (after.similarity - before.similarity)
        reward = reward + np.float32(settings.step_penalty)
    if after.solved:
        reward = reward + np.float32(settings.success_bonus)
        if after.step_count <= settings.efficiency_bonus_threshold:
            reward = reward + np.float32(settings.efficiency_bonus)
    elif submitted:
        reward = reward + np.float32(settings.unsolved_submission_penalty)
    return np.float32(reward)


def step_oracle(
    state: OracleState, action_format: str, operation: int, selection: Any, config: ArcConfig
) -> tuple[OracleState, np.float32, bool, dict[str, Any]]:
    """Take a step and return state, reward, done and the fields of `StepInfo`.

    `selection` is (row, col) for "point", (r1, c1, r2, c2) for "bbox" and a boolean canvas for "mask".
    """
    if state.done:
        return state, np.float32(0.0), True, info_of(state, state, -1)

    limit = config.episode.max_episode_steps
    steps = state.step_count + 1
    raw = raw_selection(action_format, selection, config)
    if not is_valid(operation, raw, config):
        penalty = np.float32(config.reward.invalid_action_penalty)
        if config.episode.mode == "evaluation":
            after, paid = judged(changed(state, step_count=steps), config)
            return after, penalty + paid, after.done, info_of(state, after, -1)
        after = changed(state, step_count=steps, truncated=steps >= limit)
        return after, penalty, after.done, info_of(state, after, -1)

    assert raw is not None
    if config.episode.mode == "evaluation":
        return step_in_evaluation(state, operation, raw, config)
    after = operate(state, operation, raw, config)
    similarity = similarity_of(after.working, target_of(after.task, after.pair))
    equal = bool(similarity == 1.0)
    terminated = operation == SUBMIT or (equal and not config.episode.require_submit)
    after = changed(
        after,
        step_count=steps,
        similarity=similarity,
        solved_pairs=after.solved_pairs | {after.pair} if equal else after.solved_pairs,
        terminated=terminated,
        truncated=steps >= limit and not terminated,
        last_operation=operation,
    )
    reward = reward_of(state, after, operation == SUBMIT, config)
    return after, reward, after.done, info_of(state, after, operation)


def step_in_evaluation(
    state: OracleState, operation: int, raw: np.ndarray, config: ArcConfig
) -> tuple[OracleState, np.float32, bool, dict[str, Any]]:
    """Take a valid step in evaluation mode, where all grids are submitted together."""
    after = changed(
        operate(state, operation, raw, config), step_count=state.step_count + 1, last_operation=operation
    )
    if operation >= NEXT_DEMO and operation != RESET_PAIR:
        kept = {**state.kept, state.pair: state.working}
        nothing = np.zeros(config.grid_shape, bool)
        after = changed(after, kept=kept, working=kept[after.pair], selected=nothing)
    if operation == SUBMIT:
        after = changed(after, handed_in=(*after.handed_in, {**after.kept, after.pair: after.working}))
    after, paid = judged(after, config)
    step = 0.0 if config.reward.reward_on_submit_only else config.reward.step_penalty
    return after, np.float32(step) + paid, after.done, info_of(state, after, operation)


def judged(state: OracleState, config: ArcConfig) -> tuple[OracleState, np.float32]:
    """Return the state with its end flags, and the reward of the end."""
    overdue = state.step_count >= config.episode.max_episode_steps
    made = len(state.handed_in)
    if made == 0 or not (made >= config.episode.attempts or overdue):
        return changed(state, truncated=overdue), np.float32(0.0)
    best = {
        test: max(similarity_of(attempt[test], target_of(state.task, test)) for attempt in state.handed_in)
        for test in indices_of_tests(state.task)
    }
    similarity = np.float32(np.sum(np.array(list(best.values()), np.float32)) / np.float32(len(best)))
    right = frozenset(test for test, score in best.items() if score == 1.0)
    ended = changed(state, terminated=True, similarity=similarity, solved_pairs=right)
    settings = config.reward
    if not ended.solved:
        return ended, np.float32(settings.unsolved_submission_penalty)
    quick = ended.step_count <= settings.efficiency_bonus_threshold
    return ended, np.float32(settings.success_bonus + (settings.efficiency_bonus if quick else 0.0))


def info_of(before: OracleState, after: OracleState, operation: int) -> dict[str, Any]:
    """Return the fields of `StepInfo`."""
    return {
        "similarity": after.similarity,
        "similarity_improvement": after.similarity - before.similarity,
        "operation_type": operation,
        "step_count": after.step_count,
        "episode_done": after.done,
        "terminated": after.terminated,
        "truncated": after.truncated,
        "solved": after.solved,
    }


def on_canvas(grid: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return a grid as int8, with -1 outside the area."""
    canvas = np.full(shape, -1, np.int8)
    canvas[: grid.shape[0], : grid.shape[1]] = grid
    return canvas


def views_of(states: Sequence[OracleState], config: ArcConfig) -> dict[str, np.ndarray]:
    """Return a batch of states in the format of the properties of `ArcState`."""
    working, target, source, clipboard = (
        np.full((len(states), *config.grid_shape), -1, np.int8) for _ in range(4)
    )
    solved_pairs = np.zeros((len(states), MAX_PAIRS), bool)
    hidden = config.episode.mode == "evaluation"
    for row, state in enumerate(states):
        pair = state.task.pairs[state.pair]
        grids = [(working, state.working), (source, pair.input)]
        if not hidden and pair.output is not None:
            grids.append((target, pair.output))
        for canvases, grid in grids:
            canvases[row, : grid.shape[0], : grid.shape[1]] = grid
        for (r, c), color in (state.clipboard or {}).items():
            clipboard[row, r, c] = color
        solved_pairs[row, list(state.solved_pairs)] = True

    def each(field: str, dtype: Any) -> np.ndarray:
        return np.array([getattr(state, field) for state in states], dtype)

    return {
        "working_grid": working,
        "target_grid": target,
        "input_grid": source,
        "working_grid_mask": working >= 0,
        "target_grid_mask": target >= 0,
        "input_grid_mask": source >= 0,
        "selected": np.stack([state.selected for state in states]),
        "clipboard": clipboard,
        "similarity_score": each("similarity", np.float32),
        "step_count": each("step_count", np.int32),
        "episode_done": each("done", bool),
        "terminated": each("terminated", bool),
        "truncated": each("truncated", bool),
        "solved": each("solved", bool),
        "solved_pairs": solved_pairs,
        "last_operation": each("last_operation", np.int32),
        "pair_index": each("pair", np.int32),
        "height": np.array([state.working.shape[0] for state in states], np.int32),
        "width": np.array([state.working.shape[1] for state in states], np.int32),
    }
