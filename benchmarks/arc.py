"""How fast ARC environments step: random actions under auto-reset in one compiled `scan`.

Other environments are measured in `compare_arc.py`; stepping from Python is in `simple_benchmark.py`.
"""

import argparse
import dataclasses
import functools
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int8, Int32, UInt32
from measuring.conditions import conditions
from measuring.options import options, positive, shape, sizes
from measuring.records import Column, machine_line, tell
from measuring.timing import at_least_one, calls_lasting, seconds_of, timed
from random_actions import WORDS, draw_fields

from phalanx.arc import (
    Action,
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    BboxAction,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    MaskAction,
    ObservationConfig,
    PointAction,
    TaskBuffer,
    as_grid,
    batch_reset,
    batch_step,
)
from phalanx.core import AutoReset, AutoResetState
from phalanx.native import instruction_set, is_native_available, native_unavailable_reason

_ACTIONS: dict[str, type[Action]] = {"point": PointAction, "bbox": BboxAction, "mask": MaskAction}
_STEPS_A_CALL = 65_536
_LEAST_STEPS, _MOST_STEPS = 16, 4_096
_SECONDS_A_REPEAT = 0.25


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is stepped, and how."""

    engine: str = "auto"
    """`native`, `xla`, or `auto`."""
    batch: int = 1_024
    """Environments stepped together."""
    grid: tuple[int, int] = (30, 30)
    """Rows and columns of the canvas; the tasks fill it."""
    selection_format: str = "bbox"
    """How actions name cells."""
    observation: bool = True
    """Whether the working grid is produced at every step."""
    tasks: int = 1
    """Tasks in the buffer."""
    steps: int | None = None
    """Steps of each environment in one compiled call; chosen by the batch size if None."""
    max_episode_steps: int = 100
    """Steps after which an episode is truncated."""
    seed: int = 0
    """Seed of tasks, episodes and actions."""

    def __post_init__(self) -> None:
        at_least_one(
            batch=self.batch, tasks=self.tasks, max_episode_steps=self.max_episode_steps, steps=self.steps
        )

    @property
    def config(self) -> ArcConfig:
        """The environment's settings for this workload."""
        return ArcConfig(
            episode=EpisodeConfig(max_episode_steps=self.max_episode_steps),
            dataset=DatasetConfig(max_grid_height=self.grid[0], max_grid_width=self.grid[1]),
            action=ActionConfig(selection_format=self.selection_format),
            observation=ObservationConfig(working_grid=self.observation),
            backend=self.engine,
        )

    @property
    def steps_per_call(self) -> int:
        """Steps of each environment in one compiled call."""
        if self.steps is not None:
            return self.steps
        return min(max(_STEPS_A_CALL // self.batch, _LEAST_STEPS), _MOST_STEPS)


def benchmark_tasks(grid: tuple[int, int], count: int, seed: int = 0) -> TaskBuffer:
    """Tasks that fill the canvas: colored rectangles on black, recolored in the output."""
    rng = np.random.default_rng(seed)
    tasks = [
        ArcTask(f"rectangles-{index}", demos=_rectangles(rng, grid, 3), tests=_rectangles(rng, grid, 1))
        for index in range(count)
    ]
    return TaskBuffer.from_tasks(tasks)


def _rectangles(rng: np.random.Generator, grid: tuple[int, int], count: int) -> tuple[GridPair, ...]:
    height, width = grid
    pairs = []
    for _ in range(count):
        cells = np.zeros(grid, np.int8)
        for color in rng.permutation(9)[:6] + 1:
            top, left = rng.integers(height), rng.integers(width)
            tall, wide = rng.integers(1, height // 2 + 2), rng.integers(1, width // 2 + 2)
            cells[top : top + tall, left : left + wide] = color
        pairs.append(GridPair(as_grid(cells), as_grid(np.where(cells > 0, 10 - cells, 0))))
    return tuple(pairs)


@dataclasses.dataclass
class Rollout:
    """A workload compiled and started; each `run` goes on where the last one stopped."""

    workload: Workload
    environment: ArcEnvironment
    compile_seconds: float
    """Tracing and compiling the scan."""
    first_batch_step_seconds: float
    """The first call of `batch_step` at this batch size, compiling included."""
    state_bytes: int
    """One environment's state, all leaves."""
    _compiled: Any
    _carry: Any
    checksum: float = 0.0
    """Sum of all rewards: proof that every run did something."""

    @classmethod
    def prepare(cls, workload: Workload, tasks: TaskBuffer | ArcTask | None = None) -> "Rollout":
        """Build the environments, compile, and run once to warm up."""
        if tasks is None:
            tasks = benchmark_tasks(workload.grid, workload.tasks, workload.seed)
        environment = ArcEnvironment.create(workload.config, tasks)
        first = _first_batch_step(environment, workload)

        keys = jax.random.split(jax.random.PRNGKey(workload.seed), workload.batch)
        if jax.device_count() > 1:
            mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
            keys = jax.device_put(keys, NamedSharding(mesh, PartitionSpec("batch")))
        layer = AutoReset(environment, "same_step")
        state, observations = jax.jit(layer.reset)(keys)
        seed = jnp.uint32(workload.seed)
        if jax.device_count() > 1:
            # On every device from the start: one device's number would be sent to the others at every call.
            seed = jax.device_put(seed, NamedSharding(mesh, PartitionSpec()))
        compiled, compile_seconds = timed(
            lambda: _rollout.lower(layer, workload, state, observations, seed).compile()
        )
        state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.states)) // workload.batch
        rollout = cls(
            workload, environment, compile_seconds, first, state_bytes, compiled, [state, observations, seed]
        )
        rollout.run()
        return rollout

    def run(self) -> None:
        """One compiled call, waited for."""
        *self._carry, checksum = self._compiled(*self._carry)
        self.checksum += float(checksum)

    @property
    def steps_per_run(self) -> int:
        """Environment steps of one `run`."""
        return self.workload.batch * self.workload.steps_per_call

    def rate(self, runs: int) -> float:
        """Environment steps a second of some runs."""
        return self.steps_per_run * runs / seconds_of(self.run, runs)

    def runs_per_repeat(self) -> int:
        """How many runs make a repeat long enough to time."""
        return calls_lasting(_SECONDS_A_REPEAT, self.run)


def _first_batch_step(environment: ArcEnvironment, workload: Workload) -> float:
    keys = jax.random.split(jax.random.PRNGKey(workload.seed), workload.batch)
    states, _ = jax.block_until_ready(batch_reset(keys, environment))
    actions = jax.block_until_ready(_draw_once(workload))
    return seconds_of(lambda: jax.block_until_ready(batch_step(states, actions, environment)))


def _draw(
    workload: Workload, seed: UInt32[Array, ""], counter: UInt32[Array, ""], seen: Int32[Array, " batch"]
) -> Action:
    fields = draw_fields(seed, counter, seen, workload.grid, workload.selection_format)
    return _ACTIONS[workload.selection_format](**fields)


@functools.partial(jax.jit, static_argnums=0)
def _draw_once(workload: Workload) -> Action:
    return _draw(workload, jnp.uint32(workload.seed), jnp.uint32(0), jnp.zeros(workload.batch, jnp.int32))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def _rollout(
    layer: AutoReset,
    workload: Workload,
    state: AutoResetState,
    observations: Int8[Array, "batch rows columns"],
    seed: UInt32[Array, ""],
) -> tuple[AutoResetState, Int8[Array, "batch rows columns"], UInt32[Array, ""], Float32[Array, ""]]:
    """`steps_per_call` steps of the whole batch under random actions, and the seed of the next call."""

    def body(carry: tuple[Any, ...], counter: UInt32[Array, ""]) -> tuple[tuple[Any, ...], None]:
        state, seen, checksum = carry
        # The observation travels in the carry to the next action, as an agent's would: it is written out
        # whole at every step, and reading one byte of each environment is enough to keep it.
        actions = _draw(workload, seed, counter, _one_cell(seen))
        state, seen, rewards, _, _ = layer.step(state, actions)
        return (state, seen, checksum + rewards), None

    counters = jnp.arange(workload.steps_per_call, dtype=jnp.uint32)
    # One sum for each environment: where devices have parts of the batch, none waits for another.
    start = (state, observations, 0 * _one_cell(observations).astype(jnp.float32))
    (state, observations, checksum), _ = jax.lax.scan(body, start, counters)
    return state, observations, seed + jnp.uint32(1), checksum.sum()


def _one_cell(observations: Int8[Array, "batch rows columns"]) -> Int32[Array, " batch"]:
    """A cell in the middle of each observation; 0 where there is no observation."""
    batch, rows, columns = observations.shape
    if rows * columns == 0:
        return jnp.zeros(batch, jnp.int32)
    return observations[:, rows // 2, columns // 2].astype(jnp.int32)


def measure(
    workload: Workload, tasks: TaskBuffer | ArcTask | None = None, repeats: int = 5
) -> dict[str, Any]:
    """Steps a second: median and worst of `repeats`, with the conditions they were measured under."""
    at_least_one(repeats=repeats)
    rollout = Rollout.prepare(workload, tasks)
    calls = rollout.runs_per_repeat()
    rates = [rollout.rate(calls) for _ in range(repeats)]
    return {
        "benchmark": "arc",
        **describe(rollout),
        "calls_per_repeat": calls,
        "repeats": repeats,
        "steps_per_second_median": round(statistics.median(rates)),
        "steps_per_second_worst": round(min(rates)),
        **conditions("jax"),
    }


def describe(rollout: Rollout) -> dict[str, Any]:
    """What was run, and what it took to start it."""
    workload = rollout.workload
    engine = _engine_in_use(rollout.environment)
    return {
        "engine": engine,
        "isa": instruction_set() if engine == "native" else None,
        "batch": workload.batch,
        "grid": f"{workload.grid[0]}x{workload.grid[1]}",
        "action_format": workload.selection_format,
        "tasks": len(rollout.environment.task_buffer),
        "observation": workload.observation,
        "max_episode_steps": workload.max_episode_steps,
        "steps_per_call": workload.steps_per_call,
        "compile_seconds": round(rollout.compile_seconds, 3),
        "first_batch_step_seconds": round(rollout.first_batch_step_seconds, 3),
        "state_bytes": rollout.state_bytes,
    }


def _engine_in_use(environment: ArcEnvironment) -> str:
    """The engine that steps here; `auto` is left open only where there are several kinds of device."""
    engine = environment.config.backend
    if engine != "auto":
        return engine
    return "native" if jax.default_backend() == "cpu" else "xla"


def sweep(batches: Sequence[int], workload: Workload, repeats: int = 5) -> Iterator[dict[str, Any]]:
    """One measurement for each batch size, as soon as it is made."""
    for batch in batches:
        yield measure(dataclasses.replace(workload, batch=batch), repeats=repeats)


_COLUMNS = (
    Column("engine", lambda record: record["engine"] + (f" ({record['isa']})" if record["isa"] else "")),
    Column("batch", lambda record: f"{record['batch']:,}", number=True),
    Column("steps/s (median)", lambda record: f"{record['steps_per_second_median']:,}", number=True),
    Column("worst", lambda record: f"{record['steps_per_second_worst']:,}", number=True),
    Column("compile s", lambda record: f"{record['compile_seconds']:.2f}", number=True),
    Column("first batch_step s", lambda record: f"{record['first_batch_step_seconds']:.2f}", number=True),
)


def _footer(records: list[dict[str, Any]]) -> list[str]:
    last = records[-1]
    seen = "with" if last["observation"] else "without"
    work = f"{last['grid']} canvas, {last['action_format']} actions, {last['tasks']} task(s)"
    told = f"{work}, {seen} observations, {last['repeats']} repeats"
    return [f"{told}; {machine_line(last, 'jax')}"]


def main(given: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = options(__doc__)
    parser.add_argument(
        "--engine", choices=["auto", "native", "xla"], default="auto", help="what does the steps"
    )
    parser.add_argument("--batch", type=sizes, default=(1, 64, 1024, 16384), help="sizes, with commas")
    parser.add_argument("--grid", type=shape, default=(30, 30), help="rows x columns of the canvas [30x30]")
    parser.add_argument("--format", choices=list(WORDS), default="bbox", help="how actions name cells [bbox]")
    parser.add_argument("--observation", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tasks", type=positive, default=1, help="in the buffer [1]")
    parser.add_argument("--steps", type=positive, help="of each environment in one compiled call")
    asked = parser.parse_args(given)
    workload = Workload(
        engine=asked.engine,
        grid=asked.grid,
        selection_format=asked.format,
        observation=asked.observation,
        tasks=asked.tasks,
        steps=asked.steps,
    )
    try:
        workload.config  # noqa: B018 - built here so that a bad grid is told before anything runs
    except ValueError as error:
        parser.error(str(error))
    if asked.engine == "native" and not is_native_available():
        parser.error(f"the native engine cannot be used: {native_unavailable_reason()}")
    records = sweep(asked.batch, workload, asked.repeats)
    tell(records, asked.json, "ARC, random operations, auto-reset", _COLUMNS, _footer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
