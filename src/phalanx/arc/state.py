"""The state of an ARC episode: bit-planes, a few registers, and the unpacked view of them.

Making and changing states is in `environment` and the engines.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int8, Int32, UInt32

from phalanx.arc.bitplanes import area_bits, fit_rows, unpack_cells, unpack_mask
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer, UnnamedTasks

NUM_BOARDS = 10
"""Four working planes, four clipboard planes, the clipboard's mask, the selection."""
WORKING, CLIPBOARD, CLIPBOARD_MASK, SELECTION = 0, 4, 8, 9

NUM_REGISTERS = 8
TASK, PAIR, HEIGHT, WIDTH, STEP_COUNT, STATUS, SOLVED_PAIRS, LAST_OPERATION = range(NUM_REGISTERS)

TERMINATED, TRUNCATED = 1, 2


class SubmissionState(eqx.Module):
    """What an episode of evaluation keeps besides the grid at hand: one for each test pair of its task."""

    grids: UInt32[Array, "*batch tests 4 rows"]
    """The grid of each test pair as it was when it was left; the one at hand is in the boards."""
    sizes: Int32[Array, "*batch tests 2"]
    """Height and width of each."""
    handed_grids: UInt32[Array, "*batch attempts tests 4 rows"]
    """What was handed in, by attempt."""
    handed_sizes: Int32[Array, "*batch attempts tests 2"]
    """Height and width; 0 where nothing was handed in yet."""
    attempts: Int32[Array, "*batch"]
    """How often the answers were handed in."""


class ArcState(eqx.Module):
    """One episode's state, or a batch of them; 1,236 bytes each on a 30x30 canvas.

    The leaves are packed; the properties give the view that people and networks read. They work on a
    single state and on any batch shape.

    A state also knows the tasks that its indices refer to, unless it was made inside a compiled program that
    has the environment as an argument: there tasks may change from call to call.
    `environment.attach_names(state)` gives such a state its tasks back.
    """

    boards: UInt32[Array, "*batch 10 rows"]
    registers: Int32[Array, "*batch 8"]
    similarity: Float32[Array, "*batch"]
    tasks: TaskBuffer | UnnamedTasks | None = eqx.field(static=True)
    columns: int = eqx.field(static=True)
    work: SubmissionState | None = None
    """The grids of all test pairs, in evaluation."""

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Rows and columns of the canvas."""
        return self.boards.shape[-1], self.columns

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Empty for a single state."""
        return self.similarity.shape

    @property
    def task_index(self) -> Int32[Array, "*batch"]:
        """Which task of the buffer."""
        return self.registers[..., TASK]

    @property
    def pair_index(self) -> Int32[Array, "*batch"]:
        """Which pair of the task: demonstrations first, then tests."""
        return self.registers[..., PAIR]

    @property
    def height(self) -> Int32[Array, "*batch"]:
        """Rows of the area."""
        return self.registers[..., HEIGHT]

    @property
    def width(self) -> Int32[Array, "*batch"]:
        """Columns of the area."""
        return self.registers[..., WIDTH]

    @property
    def step_count(self) -> Int32[Array, "*batch"]:
        """Steps taken in this episode."""
        return self.registers[..., STEP_COUNT]

    @property
    def last_operation(self) -> Int32[Array, "*batch"]:
        """The last valid operation; -1 at the start."""
        return self.registers[..., LAST_OPERATION]

    @property
    def terminated(self) -> Bool[Array, "*batch"]:
        """Whether the episode ended by submission or solution."""
        return self.registers[..., STATUS] == TERMINATED

    @property
    def truncated(self) -> Bool[Array, "*batch"]:
        """Whether the episode ran out of steps."""
        return self.registers[..., STATUS] == TRUNCATED

    @property
    def episode_done(self) -> Bool[Array, "*batch"]:
        """Whether the episode has ended."""
        return self.registers[..., STATUS] != 0

    @property
    def solved(self) -> Bool[Array, "*batch"]:
        """Whether the episode ended with the working grid equal to the target."""
        return self.terminated & (self.similarity == 1.0)

    @property
    def solved_pairs(self) -> Bool[Array, "*batch pairs"]:
        """Which pairs of the task have been solved in this episode."""
        count = max(len(task.pairs) for task in named_tasks(self))
        return (self.registers[..., SOLVED_PAIRS, None] >> jnp.arange(count)) & 1 != 0

    @property
    def similarity_score(self) -> Float32[Array, "*batch"]:
        """Equal cells over the cells of the union of the working area and the target's.

        In evaluation 0 until the last hand-in, and then the mean over the test pairs of the best attempt.
        """
        return self.similarity

    @property
    def working_grid_mask(self) -> Bool[Array, "*batch rows columns"]:
        """The area."""
        return unpack_mask(self._area, self.columns)

    @property
    def working_grid(self) -> Int8[Array, "*batch rows columns"]:
        """The grid as it stands; -1 outside the area."""
        return unpack_cells(self.boards[..., WORKING:CLIPBOARD, :], self._area, self.columns)

    @property
    def selected(self) -> Bool[Array, "*batch rows columns"]:
        """The last selection, or where a moved or turned object lies now."""
        return unpack_mask(self.boards[..., SELECTION, :], self.columns)

    @property
    def clipboard(self) -> Int8[Array, "*batch rows columns"]:
        """The remembered object at the top left; -1 outside it."""
        object_words = self.boards[..., CLIPBOARD_MASK, :]
        return unpack_cells(self.boards[..., CLIPBOARD:CLIPBOARD_MASK, :], object_words, self.columns)

    @property
    def input_grid(self) -> Int8[Array, "*batch rows columns"]:
        """The current pair's input; -1 outside it."""
        return unpack_cells(*self._pair_grid(output=False), self.columns)

    @property
    def input_grid_mask(self) -> Bool[Array, "*batch rows columns"]:
        """The cells of the current pair's input."""
        return unpack_mask(self._pair_grid(output=False)[1], self.columns)

    @property
    def target_grid(self) -> Int8[Array, "*batch rows columns"]:
        """The current pair's output; -1 outside it, and everywhere in evaluation unless revealed."""
        return unpack_cells(*self._pair_grid(output=True), self.columns)

    @property
    def target_grid_mask(self) -> Bool[Array, "*batch rows columns"]:
        """The cells of the current pair's output."""
        return unpack_mask(self._pair_grid(output=True)[1], self.columns)

    @property
    def _area(self) -> UInt32[Array, "*batch rows"]:
        return area_bits(self.height, self.width, self.boards.shape[-1])

    def _pair_grid(self, output: bool) -> tuple[UInt32[Array, "*batch 4 rows"], UInt32[Array, "*batch rows"]]:
        """Planes and area of the current pair's input or output."""
        return _current_grid(self.task_arrays, self.registers, output, self.boards.shape[-1])

    @property
    def task_arrays(self) -> TaskArrays:
        """The tasks that the indices refer to, as arrays."""
        if self.tasks is None:
            raise ValueError(_UNBOUND)
        return self.tasks.arrays

    def __getitem__(self, index: Any) -> "ArcState":
        """One state, or a slice, of a batch."""
        return jax.tree.map(lambda leaf: leaf[index], self)

    def __jax_array__(self) -> Int8[Array, "*batch rows columns"]:
        return self.working_grid

    def __repr__(self) -> str:
        # Leaves may be anything while trees are taken apart, so shapes are asked for with care.
        batch, rows = np.shape(self.similarity), np.shape(self.boards)[-1:]
        many = f"batch of {' x '.join(map(str, batch))}, " if batch else ""
        return (
            f"ArcState({many}canvas {'x'.join(map(str, (*rows, self.columns)))}, {self.tasks or 'unbound'})"
        )

    def __pdoc__(self, **_: Any) -> Any:
        """The same line where Equinox prints a module that has states in it."""
        import wadler_lindig

        return wadler_lindig.TextDoc(repr(self))

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import state_html

        return state_html(self)


def bound_to(tasks: TaskBuffer | UnnamedTasks | None, states: ArcState) -> ArcState:
    """The same states with other knowledge of their tasks; see `environment.attach_names`."""
    # At every call of `batch_step`, where an Equinox module's constructor or method would cost a step's time.
    copied = object.__new__(ArcState)
    vars(copied).update(vars(states), tasks=tasks)
    return copied


def named_tasks(states: ArcState) -> TaskBuffer:
    """The tasks that states refer to, with their ids and grids."""
    if not isinstance(states.tasks, TaskBuffer):
        raise ValueError(_UNBOUND)
    return states.tasks


_UNBOUND = (
    "this state does not know its tasks: it was made inside a compiled program that has its environment as "
    "an argument. Read environment.attach_names(state) instead, or let the observation show what you need"
)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def pair_grid(
    tasks: TaskArrays, place: Int32[Array, "*batch"], output: bool, rows: int
) -> tuple[UInt32[Array, "*batch 4 rows"], UInt32[Array, "*batch rows"]]:
    """Planes and area of a pair's input or output, by the pair's place in the buffer."""
    side = int(output)
    size = tasks.sizes[place, 2 * side : 2 * side + 2]
    return fit_rows(tasks.pairs[place, side], rows), area_bits(size[..., 0], size[..., 1], rows)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def _current_grid(
    tasks: TaskArrays, registers: Int32[Array, "*batch 8"], output: bool, rows: int
) -> tuple[UInt32[Array, "*batch 4 rows"], UInt32[Array, "*batch rows"]]:
    place = tasks.table[registers[..., TASK], 0] + registers[..., PAIR]
    return pair_grid(tasks, place, output, rows)


ArcEnvState = ArcState
