"""Task buffers: many tasks packed into a few read-only arrays that a whole batch shares.

A state holds indices into its buffer. Reading tasks from files is in `readers`.
"""

import dataclasses
import functools
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int32, UInt32

from phalanx.arc.bitplanes import NUM_PLANES, pack_grid
from phalanx.arc.config import ArcConfig
from phalanx.arc.tasks import ArcTask
from phalanx.core.fingerprint import Fingerprinted

MAX_PAIRS = 31

_KEY = secrets.token_bytes(16)


class TaskArrays(NamedTuple):
    """What environments read of a buffer: all that changes when tasks are swapped for others."""

    pairs: UInt32[Array, "*groups pairs 2 4 tallest"]
    """Planes of each pair's input and output."""
    sizes: Int32[Array, "*groups pairs 4"]
    """Input height and width, output height and width; 0 where there is no output."""
    table: Int32[Array, "*groups tasks 3"]
    """First pair, number of demonstrations, number of tests; all 0 behind the last task."""
    num_tasks: Int32[Array, "*groups"]
    """How many tasks there are."""


class PaddedShape(NamedTuple):
    """The shapes of a buffer: programs that are compiled for one serve every buffer that has the same."""

    num_tasks: int
    num_pairs: int
    num_rows: int


@dataclasses.dataclass(frozen=True, eq=False)
class TaskBuffer(Fingerprinted):
    """Packed tasks with lookup by index and id. Equal when its tasks are equal, and static under `jit`."""

    tasks: tuple[ArcTask, ...]
    """The tasks, in the order of their indices."""
    pairs: np.ndarray
    """uint32 [pairs, input or output, plane, row]."""
    sizes: np.ndarray
    """int32 [pairs, input height, input width, output height, output width]; 0 where there is no output."""
    table: np.ndarray
    """int32 [tasks, first pair, number of demonstrations, number of tests]."""
    _sealed: "TaskBuffer | None" = None
    """The tasks with their answers, where these are without: for the examiner alone."""

    @classmethod
    def from_tasks(
        cls,
        tasks: ArcTask | Sequence[ArcTask],
        *,
        num_tasks: int | None = None,
        num_pairs: int | None = None,
        num_rows: int | None = None,
    ) -> "TaskBuffer":
        """Pack one task or several; ids must differ.

        Room may be asked for: for `num_tasks` tasks with `num_pairs` pairs in all, of grids with up to
        `num_rows` rows. Buffers with the same room can be swapped for one another in a compiled program.
        """
        tasks = (tasks,) if isinstance(tasks, ArcTask) else tuple(tasks)
        if not tasks:
            raise ValueError("a task buffer needs at least one task")
        seen: set[str] = set()
        for task in tasks:
            if task.id in seen:
                raise ValueError(f"two tasks have the id {task.id!r}")
            seen.add(task.id)
            if len(task.pairs) > MAX_PAIRS:
                raise ValueError(f"task {task.id!r} has {len(task.pairs)} pairs; at most {MAX_PAIRS} fit")
        needed = _needed(tasks)
        asked = (num_tasks, num_pairs, num_rows)
        room = PaddedShape(*(need if ask is None else ask for need, ask in zip(needed, asked, strict=True)))
        for name, need, given in zip(PaddedShape._fields, needed, room, strict=True):
            if given < need:
                raise ValueError(f"{name} is {given}, but these tasks need {need}")
        pairs = np.zeros((room.num_pairs, 2, NUM_PLANES, room.num_rows), np.uint32)
        sizes = np.zeros((room.num_pairs, 4), np.int32)
        table = np.zeros((room.num_tasks, 3), np.int32)
        at = 0
        for index, task in enumerate(tasks):
            table[index] = at, len(task.demos), len(task.tests)
            for pair in task.pairs:
                for side, grid in enumerate((pair.input, pair.output)):
                    if grid is not None:
                        pairs[at, side] = pack_grid(grid, room.num_rows)
                        sizes[at, 2 * side : 2 * side + 2] = grid.shape
                at += 1
        for array in (pairs, sizes, table):
            array.setflags(write=False)
        return cls(tasks, pairs, sizes, table)

    @property
    def capacity(self) -> PaddedShape:
        """What there is room for."""
        return PaddedShape(len(self.table), len(self.pairs), self.pairs.shape[-1])

    def with_room(self, room: PaddedShape) -> "TaskBuffer":
        """The same tasks in a buffer of these shapes; itself where they have them already."""
        return self if room == self.capacity else TaskBuffer.from_tasks(self.tasks, **room._asdict())

    @functools.cached_property
    def without_answers(self) -> "TaskBuffer":
        """The tasks as an agent is shown them in evaluation."""
        count = self.capacity.num_tasks
        shown = TaskBuffer.from_tasks([task.without_answers() for task in self.tasks], num_tasks=count)
        return dataclasses.replace(shown, _sealed=self)

    def fits(self, room: PaddedShape) -> bool:
        """Whether the tasks find place in so much room."""
        return all(need <= given for need, given in zip(_needed(self.tasks), room, strict=True))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[ArcTask]:
        return iter(self.tasks)

    def __getitem__(self, index: int) -> ArcTask:
        return self.tasks[index]

    @functools.cached_property
    def _index(self) -> dict[str, int]:
        return {task.id: index for index, task in enumerate(self.tasks)}

    def index_of(self, task_id: str) -> int:
        """The index of the task with this id."""
        if task_id not in self._index:
            raise KeyError(f"no task {task_id!r} among the {len(self)} tasks of this buffer")
        return self._index[task_id]

    @functools.cached_property
    def families(self) -> tuple[str, ...]:
        """The families that occur, in order of first appearance."""
        return tuple(dict.fromkeys(task.family for task in self.tasks))

    @functools.cached_property
    def max_shape(self) -> tuple[int, int]:
        """The largest height and width of any grid."""
        shapes = [task.max_shape for task in self.tasks]
        return max(h for h, _ in shapes), max(w for _, w in shapes)

    @property
    def nbytes(self) -> int:
        """Memory of the packed arrays, shared by all environments."""
        return self.pairs.nbytes + self.sizes.nbytes + self.table.nbytes

    @functools.cached_property
    def arrays(self) -> TaskArrays:
        """The packed arrays on the device, concrete even when first asked for under a trace."""
        with jax.ensure_compile_time_eval():
            count = np.int32(len(self.tasks))
            return TaskArrays(*jax.device_put((self.pairs, self.sizes, self.table, count), may_alias=False))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of all tasks, in order, and of the room around them where there is any."""
        text = "".join(task.fingerprint for task in self.tasks)
        if self.capacity != _needed(self.tasks):
            text += str(tuple(self.capacity))
        if self._sealed is not None:
            # Other answers make other tasks; without the key a guessed answer cannot be tried on the digest.
            text += hashlib.sha256(_KEY + self._sealed.fingerprint.encode()).hexdigest()
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self, config: ArcConfig) -> None:
        """A task must fit the config's canvas and have the pairs (in training with outputs) that it uses."""
        rows, columns = config.grid_shape
        evaluation = config.episode.mode == "evaluation"
        for task in self.tasks:
            height, width = task.max_shape
            if height > rows or width > columns:
                raise ValueError(
                    f"task {task.id!r} needs a canvas of {height}x{width}, the config's is {rows}x{columns}; "
                    "raise dataset.max_grid_height and max_grid_width or choose tasks by size"
                )
            if evaluation and not task.tests:
                raise ValueError(f"task {task.id!r} has no test pair to evaluate on")
            if evaluation:
                continue
            for number, pair in enumerate(task.demos or task.tests):
                if pair.output is None:
                    raise ValueError(f"task {task.id!r}: pair {number} has no output to compare with")

    def __repr__(self) -> str:
        height, width = self.max_shape
        num_pairs = sum(len(task.pairs) for task in self.tasks)
        return f"TaskBuffer({len(self)} tasks, {num_pairs} pairs, up to {height}x{width})"

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import tasks_html

        return tasks_html(self.tasks)


jax.tree_util.register_static(TaskBuffer)


class UnnamedTasks:
    """The arrays of tasks whose ids and grids are not at hand, as inside a program that was given them.

    Only for reading states where they are: a state that holds this must not leave the program.
    """

    def __init__(self, arrays: TaskArrays) -> None:
        self.arrays = arrays

    def __repr__(self) -> str:
        return f"UnnamedTasks(room for {self.arrays.table.shape[-2]})"


Tasks = ArcTask | TaskBuffer | Sequence[ArcTask]


def as_buffer(tasks: Tasks) -> TaskBuffer:
    """The buffer itself, or one of a task or several; equal tasks are packed once."""
    if isinstance(tasks, TaskBuffer):
        return tasks
    return _packed(tasks if isinstance(tasks, ArcTask) else tuple(tasks))


@functools.lru_cache(maxsize=128)
def _packed(tasks: ArcTask | tuple[ArcTask, ...]) -> TaskBuffer:
    return TaskBuffer.from_tasks(tasks)


def with_answers(buffer: TaskBuffer) -> TaskBuffer:
    """The tasks with their answers, for who examines; no method, because states hold buffers."""
    return buffer._sealed or buffer


def _needed(tasks: Sequence[ArcTask]) -> PaddedShape:
    """The least room for these tasks."""
    rows = max(task.max_shape[0] for task in tasks)
    return PaddedShape(len(tasks), sum(len(task.pairs) for task in tasks), rows)
