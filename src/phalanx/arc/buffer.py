"""Task buffers: many tasks packed into three read-only arrays that a whole batch shares.

A state holds indices into its buffer. Reading tasks from files is in `readers`.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.arc.planes import NUM_PLANES, pack_grid
from phalanx.arc.tasks import ArcTask
from phalanx.core.files import ByFingerprint

MAX_PAIRS = 31


@dataclasses.dataclass(frozen=True, eq=False)
class TaskBuffer(ByFingerprint):
    """Packed tasks with lookup by index and id. Equal when its tasks are equal, and static under `jit`."""

    tasks: tuple[ArcTask, ...]
    """The tasks, in the order of their indices."""
    pairs: np.ndarray
    """uint32 [pairs, input or output, plane, row]."""
    sizes: np.ndarray
    """int32 [pairs, input height, input width, output height, output width]; 0 where there is no output."""
    table: np.ndarray
    """int32 [tasks, first pair, number of demonstrations, number of tests]."""

    @classmethod
    def from_tasks(cls, tasks: ArcTask | Sequence[ArcTask]) -> "TaskBuffer":
        """Pack one task or several; ids must differ."""
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
        rows = max(task.max_shape[0] for task in tasks)
        count = sum(len(task.pairs) for task in tasks)
        pairs = np.zeros((count, 2, NUM_PLANES, rows), np.uint32)
        sizes = np.zeros((count, 4), np.int32)
        table = np.zeros((len(tasks), 3), np.int32)
        at = 0
        for index, task in enumerate(tasks):
            table[index] = at, len(task.demos), len(task.tests)
            for pair in task.pairs:
                for side, grid in enumerate((pair.input, pair.output)):
                    if grid is not None:
                        pairs[at, side] = pack_grid(grid, rows)
                        sizes[at, 2 * side : 2 * side + 2] = grid.shape
                at += 1
        for array in (pairs, sizes, table):
            array.setflags(write=False)
        return cls(tasks, pairs, sizes, table)

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
    def arrays(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Pairs, sizes and table on the device, concrete even when first asked for under a trace."""
        with jax.ensure_compile_time_eval():
            return jnp.asarray(self.pairs), jnp.asarray(self.sizes), jnp.asarray(self.table)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of all tasks, in order."""
        return hashlib.sha256("".join(task.fingerprint for task in self.tasks).encode()).hexdigest()

    def __repr__(self) -> str:
        height, width = self.max_shape
        return f"TaskBuffer({len(self)} tasks, {len(self.pairs)} pairs, up to {height}x{width})"


jax.tree_util.register_static(TaskBuffer)
