"""The state of an ARC episode, stored as packed arrays with properties that unpack them, and the info of a
step."""

import dataclasses
import enum
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int8, Int32, UInt32

from phalanx.arc.bitplanes import area_bits, fit_rows, unpack_cells, unpack_mask
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer

NUM_BOARDS = 10
"""Number of bit-planes and masks in `ArcState.boards`: four planes of the working grid, four planes of the
clipboard, the mask of the clipboard, and the mask of the selection."""
WORKING, CLIPBOARD, CLIPBOARD_MASK, SELECTION = slice(0, 4), slice(4, 8), 8, 9
"""Indices of the bit-planes and masks in `ArcState.boards`; see `NUM_BOARDS`."""


class RegisterIndex(enum.IntEnum):
    """Index of each number in `ArcState.registers`."""

    TASK, PAIR, HEIGHT, WIDTH, STEP_COUNT, STATUS, SOLVED_PAIRS, LAST_OPERATION = range(8)


SIZE = slice(RegisterIndex.HEIGHT, RegisterIndex.WIDTH + 1)
"""Slice of `ArcState.registers` that contains the height and width of the working grid."""


class Status(enum.IntEnum):
    """Status of an episode, as stored in `ArcState.registers[..., RegisterIndex.STATUS]`."""

    RUNNING, TERMINATED, TRUNCATED = range(3)


class SubmissionState(eqx.Module):
    """The grids of all test pairs of a task and the grids submitted so far, in evaluation mode."""

    grids: UInt32[Array, "*batch tests 4 rows"]
    """Bit-planes of the grid of each test pair. The entry for the current test pair is outdated, because its
    grid is edited in `ArcState.boards`."""
    sizes: Int32[Array, "*batch tests 2"]
    """Height and width of each grid in `grids`. The entry for the current test pair is outdated, too."""
    submitted_grids: UInt32[Array, "*batch attempts tests 4 rows"]
    """Bit-planes of the grids in each submission."""
    submitted_sizes: Int32[Array, "*batch attempts tests 2"]
    """Height and width of the submitted grids. They are 0 for submissions that have not been made yet."""
    num_submissions: Int32[Array, "*batch"]
    """Number of submissions so far."""


class ArcState(eqx.Module):
    """The state of one episode or of a batch of episodes. It takes 1,236 bytes per episode on a 30x30 canvas.

    The fields are packed arrays. The properties unpack these arrays, for a single state or a batch of any
    shape.

    A state contains a task index and a pair index. Usually, the tasks to which these indices refer are
    attached to the state. If a state was created inside a compiled function that takes the environment as an
    argument, the tasks are missing, because they may differ from call to call. Use
    `environment.attach_names(state)` to attach them.
    """

    boards: UInt32[Array, "*batch 10 rows"]
    """Bit-planes of the working grid and the clipboard, and masks of the clipboard and the selection, with
    one uint32 per row of the canvas; see `NUM_BOARDS`."""
    registers: Int32[Array, "*batch 8"]
    """Task index, pair index, height, width, step count, status, solved pairs (one bit per pair) and last
    operation."""
    similarity: Float32[Array, "*batch"]
    """Similarity of the working grid to the target; see `similarity_score`."""
    tasks: TaskBuffer | TaskArrays | None = eqx.field(static=True)
    """The tasks to which the task index refers, or None if they are not attached."""
    columns: int = eqx.field(static=True)
    """Width of the canvas."""
    submission: SubmissionState | None = None
    """Grids of all test pairs in evaluation mode, or None in training mode."""

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Height and width of the canvas, which contains the current grid."""
        return self.boards.shape[-1], self.columns

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch, which is empty for a single state."""
        return self.similarity.shape

    @property
    def task_index(self) -> Int32[Array, "*batch"]:
        """Index of the current task among the environment's tasks."""
        return self.registers[..., RegisterIndex.TASK]

    @property
    def pair_index(self) -> Int32[Array, "*batch"]:
        """Index of the pair in `ArcTask.pairs`, which starts with the demonstrations."""
        return self.registers[..., RegisterIndex.PAIR]

    @property
    def height(self) -> Int32[Array, "*batch"]:
        """Height of the working grid."""
        return self.registers[..., RegisterIndex.HEIGHT]

    @property
    def width(self) -> Int32[Array, "*batch"]:
        """Width of the working grid."""
        return self.registers[..., RegisterIndex.WIDTH]

    @property
    def last_operation(self) -> Int32[Array, "*batch"]:
        """Id of the last valid operation, or -1 at the start of an episode."""
        return self.registers[..., RegisterIndex.LAST_OPERATION]

    @property
    def episode_done(self) -> Bool[Array, "*batch"]:
        """True if the episode has ended."""
        return self.registers[..., RegisterIndex.STATUS] != Status.RUNNING

    # The annotations of the next four properties fit NumPy arrays, because they are also read on the host.

    @property
    def step_count(self) -> Int32[Array | np.ndarray, "*batch"]:
        """Number of steps taken in this episode."""
        return self.registers[..., RegisterIndex.STEP_COUNT]

    @property
    def terminated(self) -> Bool[Array | np.ndarray, "*batch"]:
        """True if the episode ended with a submission or a solved grid."""
        return self.registers[..., RegisterIndex.STATUS] == Status.TERMINATED

    @property
    def truncated(self) -> Bool[Array | np.ndarray, "*batch"]:
        """True if the episode ended because it reached the step limit."""
        return self.registers[..., RegisterIndex.STATUS] == Status.TRUNCATED

    @property
    def solved(self) -> Bool[Array | np.ndarray, "*batch"]:
        """True if the episode has ended with a correct solution. In evaluation mode, at least one submission
        for each test pair must be correct."""
        return self.terminated & (self.similarity == 1.0)

    @property
    def solved_pairs(self) -> Bool[Array, "*batch pairs"]:
        """Mask of the task's pairs that have been solved in this episode. The length of its last axis is the
        maximum number of pairs in any attached task."""
        count = max(len(task.pairs) for task in attached_tasks(self))
        return (self.registers[..., RegisterIndex.SOLVED_PAIRS, None] >> jnp.arange(count)) & 1 != 0

    @property
    def similarity_score(self) -> Float32[Array, "*batch"]:
        """Similarity of the working grid to the target, 0 to 1: the number of equal cells divided by the
        number of cells that belong to at least one of the two grids.

        In evaluation mode, it is 0 until the last submission. After that, the similarity of the best
        submission is computed for each test pair, and the score is the mean over all test pairs.
        """
        return self.similarity

    @property
    def working_grid_mask(self) -> Bool[Array, "*batch rows columns"]:
        """Mask of the cells that belong to the working grid."""
        return unpack_mask(self._area, self.columns)

    @property
    def working_grid(self) -> Int8[Array, "*batch rows columns"]:
        """Colors of the working grid, -1 outside the grid."""
        return unpack_cells(self.boards[..., WORKING, :], self._area, self.columns)

    @property
    def selected(self) -> Bool[Array, "*batch rows columns"]:
        """Mask of the last selection. After an object has been moved, rotated or flipped, this is the mask of
        its new cells."""
        return unpack_mask(self.boards[..., SELECTION, :], self.columns)

    @property
    def clipboard(self) -> Int8[Array, "*batch rows columns"]:
        """Colors of the object in the clipboard. The object is in the top-left corner of the array, and all
        other cells are -1."""
        mask = self.boards[..., CLIPBOARD_MASK, :]
        return unpack_cells(self.boards[..., CLIPBOARD, :], mask, self.columns)

    @property
    def input_grid(self) -> Int8[Array, "*batch rows columns"]:
        """Colors of the current pair's input, -1 outside the grid."""
        return unpack_cells(*self._pair_grid(output=False), self.columns)

    @property
    def input_grid_mask(self) -> Bool[Array, "*batch rows columns"]:
        """Mask of the cells that belong to the current pair's input."""
        return unpack_mask(self._pair_grid(output=False)[1], self.columns)

    @property
    def target_grid(self) -> Int8[Array, "*batch rows columns"]:
        """Colors of the current pair's output, -1 outside the grid. The output of a test pair is hidden in
        evaluation mode: all cells are -1."""
        return unpack_cells(*self._pair_grid(output=True), self.columns)

    @property
    def target_grid_mask(self) -> Bool[Array, "*batch rows columns"]:
        """Mask of the cells that belong to the current pair's output."""
        return unpack_mask(self._pair_grid(output=True)[1], self.columns)

    @property
    def _area(self) -> UInt32[Array, "*batch rows"]:
        return area_bits(self.height, self.width, self.boards.shape[-1])

    def _pair_grid(self, output: bool) -> tuple[UInt32[Array, "*batch 4 rows"], UInt32[Array, "*batch rows"]]:
        return _current_grid(self.task_arrays, self.registers, output, self.boards.shape[-1])

    @property
    def task_arrays(self) -> TaskArrays:
        """Arrays of the attached tasks. Raises `ValueError` if no tasks are attached."""
        if self.tasks is None:
            raise ValueError(_NO_TASKS)
        return self.tasks.arrays if isinstance(self.tasks, TaskBuffer) else self.tasks

    def detach(self) -> "ArcState":
        """Return the state without tasks or submissions, as required by the backends."""
        return replace_fields(self, tasks=None, submission=None)

    def __getitem__(self, index: Any) -> "ArcState":
        """Return one state, or a slice of states, from a batch."""
        return jax.tree.map(lambda leaf: leaf[index], self)

    def __jax_array__(self) -> Int8[Array, "*batch rows columns"]:
        return self.working_grid

    def __repr__(self) -> str:
        # JAX transformations put arbitrary objects into the leaves.
        batch, rows = np.shape(self.similarity), np.shape(self.boards)[-1:]
        prefix = f"batch of {' x '.join(map(str, batch))}, " if batch else ""
        canvas = "x".join(map(str, (*rows, self.columns)))
        return f"ArcState({prefix}canvas {canvas}, {self.tasks or 'no tasks'})"

    def __pdoc__(self, **_: Any) -> Any:
        # Used by Equinox to print modules that contain states.
        import wadler_lindig

        return wadler_lindig.TextDoc(repr(self))

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import state_html

        return state_html(self)


def replace_fields(state: ArcState, **changes: Any) -> ArcState:
    """Return a copy of a state with some fields replaced."""
    # `batch_step` calls this, and the constructor of an Equinox module would take as long as a step.
    copied = object.__new__(ArcState)
    vars(copied).update(vars(state), **changes)
    return copied


def vmap_batch(function: Callable[..., Any], batch_shape: tuple[int, ...]) -> Callable[..., Any]:
    """Apply `jax.vmap` to a function once per axis of `batch_shape`. The returned function takes states, or
    other pytrees, with these leading batch axes."""
    for _ in batch_shape:
        function = jax.vmap(function)
    return function


# A single program, because each property on its own would compile several.
@partial(jax.jit, static_argnums=(1, 2))
def state_fields(states: ArcState, names: tuple[str, ...], limit: int | None = None) -> tuple[Array, ...]:
    """Return properties of a batch of states, with all batch axes flattened into a single leading axis.

    Args:
        states: States with any batch shape. A single state is treated as a batch of one.
        names: Names of the properties.
        limit: Number of states to return; None for all.
    """
    batch = len(states.batch_shape)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[batch:])[:limit], states)
    return tuple(getattr(flat, name) for name in names)


def blank_states(batch: tuple[int, ...], grid_shape: tuple[int, int]) -> ArcState:
    """Return states filled with zeros, to be passed to a reset that starts all episodes."""
    rows, columns = grid_shape
    boards = jnp.zeros((*batch, NUM_BOARDS, rows), jnp.uint32)
    registers = jnp.zeros((*batch, len(RegisterIndex)), jnp.int32)
    return ArcState(boards, registers, jnp.zeros(batch, jnp.float32), None, columns)


def attached_tasks(states: ArcState) -> TaskBuffer:
    """Return the tasks that are attached to states, with their ids and grids. Raises `ValueError` if no tasks
    are attached."""
    if not isinstance(states.tasks, TaskBuffer):
        raise ValueError(_NO_TASKS)
    return states.tasks


_NO_TASKS = (
    "this state does not know its tasks, because it was created inside a compiled program that has the "
    "environment as an argument. Use environment.attach_names(state), or add what you need to the observation"
)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def pair_grid(
    tasks: TaskArrays, index: Int32[Array, "*batch"], output: bool, rows: int
) -> tuple[UInt32[Array, "*batch 4 rows"], UInt32[Array, "*batch rows"]]:
    """Return the inputs or outputs of pairs as bit-planes.

    Args:
        tasks: Task arrays.
        index: Index of each pair along the first axis of `tasks.pairs`.
        output: Return the outputs of the pairs instead of their inputs.
        rows: Height of the canvas.

    Returns:
        The bit-planes of the grids, and masks of the cells that belong to the grids, as one uint32 per row.
    """
    side = int(output)
    size = tasks.sizes[index, 2 * side : 2 * side + 2]
    return fit_rows(tasks.pairs[index, side], rows), area_bits(size[..., 0], size[..., 1], rows)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def _current_grid(
    tasks: TaskArrays, registers: Int32[Array, "*batch 8"], output: bool, rows: int
) -> tuple[UInt32[Array, "*batch 4 rows"], UInt32[Array, "*batch rows"]]:
    index = tasks.table[registers[..., RegisterIndex.TASK], 0] + registers[..., RegisterIndex.PAIR]
    return pair_grid(tasks, index, output, rows)


@dataclasses.dataclass(frozen=True, eq=False)
class StepInfo:
    """Information about a step, in addition to the state, observation, reward and done flag."""

    similarity: Float32[Array, "*batch"] | float
    """Similarity to the target after the step, 0 to 1. In evaluation mode, it is 0 until the end of the
    episode."""
    similarity_improvement: Float32[Array, "*batch"] | float
    """Change in the similarity to the target during this step."""
    operation_type: Int32[Array, "*batch"] | int
    """Id of the executed operation, or -1 if the action was invalid or the episode had already ended."""
    step_count: Int32[Array, "*batch"] | int
    """Number of steps taken in this episode."""
    episode_done: Bool[Array, "*batch"] | bool
    """True if the episode has ended."""
    terminated: Bool[Array, "*batch"] | bool = dataclasses.field(default_factory=bool)
    """True if the episode ended with a submission or a solved grid."""
    truncated: Bool[Array, "*batch"] | bool = dataclasses.field(default_factory=bool)
    """True if the episode ended because it reached the step limit."""
    solved: Bool[Array, "*batch"] | bool = dataclasses.field(default_factory=bool)
    """True if the episode has ended with a correct solution. In evaluation mode, at least one submission for
    each test pair must be correct."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            # Every result of a compiled program takes time, which matters for single steps outside `jit`.
            # There, `arc_step` stores the similarity before the step and the new state instead of the fields.
            fields = self.__dict__
            if name not in _STEP_INFO_FIELDS or "_inputs" not in fields:
                raise AttributeError(f"StepInfo has no attribute {name!r}")
            before, state = fields["_inputs"]
            is_difference = name == "similarity_improvement"
            fields[name] = state.similarity - before if is_difference else getattr(state, name)
            return fields[name]

    @classmethod
    def after_step(
        cls, before: Float32[Array, "*batch"], state: ArcState, operation: Int32[Array, "*batch"]
    ) -> "StepInfo":
        """Create the info for a step.

        Args:
            before: Similarity of the working grid to the target before the step.
            state: State after the step.
            operation: Id of the executed operation, or -1 if the action was invalid.
        """
        names = ("step_count", "episode_done", "terminated", "truncated", "solved")
        flags = {name: getattr(state, name) for name in names}
        return cls(state.similarity, state.similarity - before, operation, **flags)


_STEP_INFO_FIELDS = tuple(field.name for field in dataclasses.fields(StepInfo))


def _flatten_step_info(info: StepInfo) -> tuple[list[Any], None]:
    return [(jax.tree_util.GetAttrKey(name), getattr(info, name)) for name in _STEP_INFO_FIELDS], None


def _unflatten_step_info(_: None, values: Iterable[Any]) -> StepInfo:
    # Without the constructor: JAX transformations put arbitrary objects into the leaves.
    info = object.__new__(StepInfo)
    info.__dict__.update(zip(_STEP_INFO_FIELDS, values, strict=True))
    return info


jax.tree_util.register_pytree_with_keys(StepInfo, _flatten_step_info, _unflatten_step_info)
