"""Task buffers, which pack many tasks into a few read-only arrays. All environments in a batch share these
arrays."""

import dataclasses
import functools
import hashlib
import secrets
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int32, UInt32

from phalanx.arc.bitplanes import NUM_PLANES, pack_grid
from phalanx.arc.config import ArcConfig
from phalanx.arc.tasks import ArcTask, format_shape, repeated_id
from phalanx.core.fingerprint import Fingerprinted

MAX_PAIRS = 31
"""Maximum number of pairs per task. The limit exists because a state records the solved pairs in one int32,
with one bit per pair."""

_FINGERPRINT_KEY = secrets.token_bytes(16)


class TaskArrays(eqx.Module):
    """Arrays with the grids of many tasks, which compiled functions take as an argument.

    Instances are compared and hashed by identity, so that they can be a static field of a state inside a
    compiled function. Arrays may be padded to a common shape; see `TaskBuffer.from_tasks`.

    The arrays of several sets of tasks can be stacked along leading `groups` axes, for `jax.vmap` over
    environments with different tasks.
    """

    pairs: UInt32[Array, "*groups pairs 2 4 rows"]
    """Bit-planes of the input and output of each pair."""
    sizes: Int32[Array, "*groups pairs 4"]
    """Input height, input width, output height and output width of each pair. The output size is 0 if there
    is no output."""
    table: Int32[Array, "*groups tasks 3"]
    """For each task, the index of its first pair, its number of demonstrations and its number of tests.
    Padding rows are 0."""
    num_tasks: Int32[Array, "*groups"]
    """Number of tasks, not counting the padding."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"TaskArrays(up to {np.shape(self.table)[-2]} tasks)"


@dataclasses.dataclass(frozen=True, eq=False)
class TaskBuffer(Fingerprinted):
    """A sequence of tasks, packed into arrays, with lookup by index and id. Buffers are equal if their tasks
    are equal, and they are static under `jax.jit`."""

    tasks: tuple[ArcTask, ...]
    """The tasks, in the order of their indices."""
    pairs: np.ndarray
    """Bit-planes of the input and output of each pair, uint32 [pairs, 2, 4, rows]."""
    sizes: np.ndarray
    """Input height, input width, output height and output width of each pair, int32 [pairs, 4]. The output
    size is 0 if there is no output."""
    table: np.ndarray
    """For each task, the index of its first pair, its number of demonstrations and its number of tests, int32
    [tasks, 3]."""
    _with_answers: "TaskBuffer | None" = None
    """Original buffer with the test outputs, if they were removed from this buffer; otherwise, None. Agents
    must not access it."""

    @classmethod
    def from_tasks(
        cls,
        tasks: ArcTask | Sequence[ArcTask],
        *,
        num_tasks: int | None = None,
        num_pairs: int | None = None,
        num_rows: int | None = None,
    ) -> "TaskBuffer":
        """Create a buffer from one or more tasks, whose ids must be unique.

        If buffers are padded to the same shape, compiled functions can be called with any of them without
        recompilation.

        Args:
            tasks: The tasks.
            num_tasks: Number of tasks to pad the arrays to. If None, no padding is added.
            num_pairs: Total number of pairs to pad the arrays to. If None, no padding is added.
            num_rows: Number of rows to pad the grids to. If None, it is the height of the tallest grid.
        """
        tasks = (tasks,) if isinstance(tasks, ArcTask) else tuple(tasks)
        if not tasks:
            raise ValueError("a task buffer needs at least one task")
        if (duplicate := repeated_id(tasks)) is not None:
            raise ValueError(f"two tasks have the id {duplicate!r}")
        for task in tasks:
            if len(task.pairs) > MAX_PAIRS:
                raise ValueError(f"task {task.id!r} has {len(task.pairs)} pairs; at most {MAX_PAIRS} fit")
        names, requested = ("num_tasks", "num_pairs", "num_rows"), (num_tasks, num_pairs, num_rows)
        shape = []
        for name, size, least in zip(names, requested, _min_shape(tasks), strict=True):
            if size is not None and size < least:
                raise ValueError(f"{name} is {size}, but these tasks need {least}")
            shape.append(size or least)
        num_tasks, num_pairs, num_rows = shape
        pairs = np.zeros((num_pairs, 2, NUM_PLANES, num_rows), np.uint32)
        sizes = np.zeros((num_pairs, 4), np.int32)
        table = np.zeros((num_tasks, 3), np.int32)
        position = 0
        for index, task in enumerate(tasks):
            table[index] = position, len(task.demos), len(task.tests)
            for pair in task.pairs:
                for side, grid in enumerate((pair.input, pair.output)):
                    if grid is not None:
                        pairs[position, side] = pack_grid(grid, num_rows)
                        sizes[position, 2 * side : 2 * side + 2] = grid.shape
                position += 1
        for array in (pairs, sizes, table):
            array.setflags(write=False)
        return cls(tasks, pairs, sizes, table)

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Number of tasks, pairs and rows in the arrays, including padding."""
        return len(self.table), len(self.pairs), self.pairs.shape[-1]

    def pad_to(self, arrays: TaskArrays) -> "TaskBuffer":
        """Return a buffer with the same tasks, whose arrays are padded to the shapes of `arrays`. If the
        tasks do not fit in these shapes, this buffer is returned unchanged."""
        shape = arrays.table.shape[-2], arrays.pairs.shape[-4], arrays.pairs.shape[-1]
        does_not_fit = any(least > size for least, size in zip(_min_shape(self.tasks), shape, strict=True))
        if shape == self._shape or does_not_fit:
            return self
        num_tasks, num_pairs, num_rows = shape
        return TaskBuffer.from_tasks(self.tasks, num_tasks=num_tasks, num_pairs=num_pairs, num_rows=num_rows)

    @functools.cached_property
    def without_answers(self) -> "TaskBuffer":
        """The tasks without their test outputs. In evaluation mode, agents only see this version."""
        tasks = [task.without_answers() for task in self.tasks]
        visible = TaskBuffer.from_tasks(tasks, num_tasks=len(self.table))
        return dataclasses.replace(visible, _with_answers=self)

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[ArcTask]:
        return iter(self.tasks)

    def __getitem__(self, index: int) -> ArcTask:
        return self.tasks[index]

    def index_of(self, task_id: str) -> int:
        """Return the index of the task with the given id. Raises `KeyError` if there is no such task."""
        for index, task in enumerate(self.tasks):
            if task.id == task_id:
                return index
        raise KeyError(f"no task {task_id!r} among the {len(self)} tasks of this buffer")

    @functools.cached_property
    def families(self) -> tuple[str, ...]:
        """Names of the tasks' families without duplicates, in order of first appearance."""
        return tuple(dict.fromkeys(task.family for task in self.tasks))

    @functools.cached_property
    def arrays(self) -> TaskArrays:
        """The arrays on the device. They are concrete even if they are first accessed during tracing."""
        with jax.ensure_compile_time_eval():
            count = np.int32(len(self.tasks))
            return TaskArrays(*jax.device_put((self.pairs, self.sizes, self.table, count), may_alias=False))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the tasks, their order and the padding."""
        text = "".join(task.fingerprint for task in self.tasks)
        if self._shape != _min_shape(self.tasks):
            text += str(self._shape)
        if self._with_answers is not None:
            # Tasks with different answers are different tasks. The secret key ensures that the digest cannot
            # be used to verify a guessed answer.
            text += hashlib.sha256(_FINGERPRINT_KEY + self._with_answers.fingerprint.encode()).hexdigest()
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self, config: ArcConfig) -> None:
        """Raise `ValueError` if a task does not fit on the config's canvas, or if it lacks pairs or outputs
        that the config's mode requires."""
        for task in self.tasks:
            if not task.fits(config.grid_shape):
                needed, canvas = format_shape(task.max_shape), format_shape(config.grid_shape)
                raise ValueError(
                    f"task {task.id!r} needs a canvas of {needed}, the config's is {canvas}; "
                    "increase dataset.max_grid_height and max_grid_width or choose tasks by size"
                )
            if config.episode.mode == "evaluation":
                if not task.tests:
                    raise ValueError(f"task {task.id!r} has no test pair to evaluate on")
                continue
            for number, pair in enumerate(task.demos or task.tests):
                if pair.output is None:
                    raise ValueError(f"task {task.id!r}: pair {number} has no output to compare with")

    def __repr__(self) -> str:
        height, width = np.max([task.max_shape for task in self.tasks], axis=0)
        num_pairs = sum(len(task.pairs) for task in self.tasks)
        return f"TaskBuffer({len(self)} tasks, {num_pairs} pairs, up to {height}x{width})"

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import tasks_html

        return tasks_html(self.tasks)


jax.tree_util.register_static(TaskBuffer)


Tasks = ArcTask | TaskBuffer | Sequence[ArcTask]
"""One task, or several tasks."""


def as_buffer(tasks: Tasks) -> TaskBuffer:
    """Pack one or more tasks into a buffer. If `tasks` is a buffer, it is returned unchanged. Results are
    cached, so equal tasks are packed only once."""
    if isinstance(tasks, TaskBuffer):
        return tasks
    return _pack(tasks if isinstance(tasks, ArcTask) else tuple(tasks))


_pack = functools.lru_cache(maxsize=128)(TaskBuffer.from_tasks)


def with_answers(buffer: TaskBuffer) -> TaskBuffer:
    """Return the version of a buffer that contains the test outputs.

    If the buffer was created by `TaskBuffer.without_answers`, this is the original buffer. Otherwise, it is
    the given buffer.

    This is not a method of `TaskBuffer`, because agents could call it on the buffer that is attached to a
    state.
    """
    return buffer._with_answers or buffer


def _min_shape(tasks: Sequence[ArcTask]) -> tuple[int, int, int]:
    """Return the number of tasks, the total number of their pairs, and the height of the tallest grid."""
    return len(tasks), sum(len(task.pairs) for task in tasks), max(task.max_shape[0] for task in tasks)
