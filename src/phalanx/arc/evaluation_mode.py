"""Evaluation mode of the ARC environment.

In this mode, the agent edits one grid per test pair of a task. After the last submission, the submitted grids
are compared with the test outputs.

The backends receive the tasks without their test outputs, so nothing that they compute can reveal an answer.
They edit the grid of the current test pair. This module stores the grids of all other test pairs, and
compares the submitted grids with the hidden test outputs.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, UInt32

from phalanx.arc.bitplanes import area_bits, fit_rows, trim, unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import PAIR_SWITCHES, Operation
from phalanx.arc.state import (
    SELECTION,
    SIZE,
    WORKING,
    ArcState,
    RegisterIndex,
    Status,
    StepInfo,
    SubmissionState,
    replace_fields,
    vmap_batch,
)
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer
from phalanx.arc.task_sampling import EpisodeStart
from phalanx.core.vector import select_rows


class HiddenTestOutputs(NamedTuple):
    """The outputs of all test pairs. They are stored separately from the task arrays and the states, so that
    neither the backends nor the agent can access them.

    All tasks are padded to the same number of test pairs.
    """

    planes: UInt32[Array, "*groups tasks tests 4 rows"]
    """Bit-planes of the outputs. They are zero for padding and for unknown outputs."""
    sizes: Int32[Array, "*groups tasks tests 2"]
    """Height and width of each output. Both are 0 for padding and for unknown outputs."""


def hide_answers(config: ArcConfig, tasks: TaskBuffer) -> tuple[TaskArrays, HiddenTestOutputs | None]:
    """Return the task arrays for the backends, and the hidden test outputs. In evaluation mode, the arrays do
    not contain the test outputs. In training mode, the arrays contain them, and the second value is None."""
    if config.episode.mode == "training":
        return tasks.arrays, None
    num_tests = max(len(task.tests) for task in tasks)
    with jax.ensure_compile_time_eval():
        return tasks.without_answers.arrays, split_answers(tasks.arrays, num_tests, config.grid_shape[0])[1]


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def split_answers(tasks: TaskArrays, num_tests: int, rows: int) -> tuple[TaskArrays, HiddenTestOutputs]:
    """Separate the test outputs from the other task arrays. The arrays may be traced.

    Args:
        tasks: Task arrays, including the test outputs.
        num_tests: Maximum number of test pairs per task.
        rows: Height of the canvas.

    Returns:
        The arrays without test outputs, and the test outputs.
    """
    num_pairs = tasks.pairs.shape[0]
    first, demos, tests = tasks.table.T[..., None]
    first_test = first + demos
    number, pair = jnp.arange(num_tests), jnp.arange(num_pairs)
    index = jnp.clip(first_test + number, 0, num_pairs - 1)
    outputs = HiddenTestOutputs(fit_rows(tasks.pairs[index, 1], rows), tasks.sizes[index, 2:])
    outputs = select_rows(number < tests, outputs, jax.tree.map(jnp.zeros_like, outputs))
    is_test = jnp.any((pair >= first_test) & (pair < first_test + tests), axis=0)
    pairs = tasks.pairs.at[:, 1].set(jnp.where(is_test[:, None, None], 0, tasks.pairs[:, 1]))
    sizes = tasks.sizes.at[:, 2:].set(jnp.where(is_test[:, None], 0, tasks.sizes[:, 2:]))
    return dataclasses.replace(tasks, pairs=pairs, sizes=sizes), outputs


@functools.partial(jax.jit, static_argnums=1, inline=True)
def start_bits_per_test(start_bits: EpisodeStart, num_tests: int) -> UInt32[Array, "*batch tests 3"]:
    """Return one `EpisodeStart` per test pair of each episode's task. The backend resets each test pair
    separately, with different random bits for its initial grid.

    Args:
        start_bits: `EpisodeStart` of each episode.
        num_tests: Maximum number of test pairs per task.
    """
    number = jnp.arange(num_tests, dtype=jnp.uint32)
    task, noise = start_bits[..., 0, None], start_bits[..., 2, None] * jnp.uint32(0x85EBCA6B) ^ number
    return jnp.stack(jnp.broadcast_arrays(task, number, noise), axis=-1)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def start(config: ArcConfig, tasks: TaskArrays, start_bits: EpisodeStart, starts: ArcState) -> ArcState:
    """Create the initial state of each episode.

    Args:
        config: Settings of the environment.
        tasks: The tasks without their test outputs.
        start_bits: `EpisodeStart` of each episode, which determines the test pair with which the episode
            starts.
        starts: First states of all test pairs of each episode's task, with batch shape [*batch, tests].
    """

    def start_one(bits: EpisodeStart, starts: ArcState) -> ArcState:
        tests = starts.similarity.shape[0]
        count = jnp.clip(tasks.table[starts.task_index[0], 2], 1, tests).astype(jnp.uint32)
        grids, sizes = starts.boards[:, WORKING], starts.registers[:, SIZE]
        attempts = config.episode.attempts
        blank = [jnp.zeros((attempts, *leaf.shape), leaf.dtype) for leaf in (grids, sizes)]
        submission = SubmissionState(grids, sizes, blank[0], blank[1], jnp.int32(0))
        return replace_fields(starts[bits[1] % count], submission=submission)

    return vmap_batch(start_one, start_bits.shape[:-1])(start_bits, starts)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def step(
    config: ArcConfig,
    tasks: TaskArrays,
    answers: HiddenTestOutputs,
    before: ArcState,
    after: ArcState,
    info: StepInfo,
) -> tuple[ArcState, StepInfo]:
    """Complete a step that the backend has computed: switch between the grids of the test pairs, record
    submissions, and compute the scores at the end of the episode.

    Args:
        config: Settings of the environment.
        tasks: The tasks without their test outputs.
        answers: The hidden test outputs.
        before: State before the step.
        after: State that the backend returned. It has no `submission`.
        info: Step info that the backend returned.

    Returns:
        The complete new state and step info.
    """

    def complete(before: ArcState, after: ArcState, operation: Int32[Array, ""]) -> tuple[ArcState, StepInfo]:
        """Return the new state and step info of one environment. `operation` is -1 for invalid actions."""
        submission = before.submission
        assert submission is not None
        task = jnp.clip(before.task_index, 0, tasks.table.shape[0] - 1)
        _, demos, count = tasks.table[task]
        attempts, tests, _ = submission.submitted_sizes.shape
        number = jnp.arange(tests)
        is_current = number == before.pair_index - demos

        # A switch stores the grid of the pair that is left, and restores the grid of the new pair.
        switched = jnp.isin(operation, jnp.array(PAIR_SWITCHES))
        grids, sizes = select_rows(
            switched & is_current,
            (before.boards[None, WORKING], before.registers[None, SIZE]),
            (submission.grids, submission.sizes),
        )
        new_pair = after.pair_index - demos
        new_boards = after.boards.at[WORKING].set(grids[new_pair]).at[SELECTION].set(0)
        boards = jnp.where(switched, new_boards, after.boards)
        registers = jnp.where(switched, after.registers.at[SIZE].set(sizes[new_pair]), after.registers)

        is_attempt = (operation == Operation.SUBMIT) & (jnp.arange(attempts) == submission.num_submissions)
        current = select_rows(is_current, (boards[None, WORKING], registers[None, SIZE]), (grids, sizes))
        submitted, submitted_sizes = select_rows(
            is_attempt,
            jax.tree.map(lambda leaf: leaf[None], current),
            (submission.submitted_grids, submission.submitted_sizes),
        )
        num_submissions = submission.num_submissions + (operation == Operation.SUBMIT)

        # At the step limit, an episode with at least one submission is scored and therefore terminated, not
        # truncated.
        running = ~before.episode_done
        overdue = running & (after.step_count >= config.episode.max_episode_steps)
        finished = running & (num_submissions > 0) & ((num_submissions >= attempts) | overdue)
        unfinished = jnp.where(overdue, Status.TRUNCATED, before.registers[RegisterIndex.STATUS])
        scores = _score(answers.planes[task], answers.sizes[task], submitted, submitted_sizes)
        num_tests = jnp.clip(count, 1, tests)
        exists = number < num_tests
        score = jnp.sum(jnp.where(exists, scores, 0.0)) / num_tests.astype(jnp.float32)
        correct = jnp.sum(jnp.where(exists & (scores == 1.0), jnp.int32(1) << (demos + number), 0))
        registers = registers.at[RegisterIndex.STATUS].set(jnp.where(finished, Status.TERMINATED, unfinished))
        solved_pairs = jnp.where(finished, correct, registers[RegisterIndex.SOLVED_PAIRS])
        new = replace_fields(
            before,
            boards=boards,
            registers=registers.at[RegisterIndex.SOLVED_PAIRS].set(solved_pairs),
            similarity=jnp.where(finished, score, before.similarity),
            submission=SubmissionState(grids, sizes, submitted, submitted_sizes, num_submissions),
        )
        return new, StepInfo.after_step(before.similarity, new, operation)

    return vmap_batch(complete, before.batch_shape)(before, after, jnp.asarray(info.operation_type))


def _score(
    target: UInt32[Array, "tests 4 rows"],
    target_size: Int32[Array, "tests 2"],
    submitted: UInt32[Array, "attempts tests 4 rows"],
    sizes: Int32[Array, "attempts tests 2"],
) -> Float32[Array, " tests"]:
    """Return, for each test pair, the highest similarity of a submitted grid to the test output, or 0 if
    nothing was submitted."""
    common = jnp.minimum(sizes, target_size)
    unequal = functools.reduce(jnp.bitwise_or, jnp.moveaxis(submitted ^ target, -2, 0))
    area = area_bits(common[..., 0], common[..., 1], submitted.shape[-1])
    equal = jnp.sum(jnp.bitwise_count(~unequal & area).astype(jnp.int32), axis=-1)
    cells = jnp.prod(sizes, axis=-1) + jnp.prod(target_size, axis=-1) - jnp.prod(common, axis=-1)
    score = equal.astype(jnp.float32) / jnp.maximum(cells, 1).astype(jnp.float32)
    return jnp.max(score, axis=0)


def submitted_grids(state: ArcState) -> list[list[np.ndarray]]:
    """Return the grids that have been submitted so far in an episode, given its current state. The result
    contains, for each submission, a list with one grid per test pair of the task."""
    if state.submission is None:
        raise ValueError("training mode has no submissions by task; set episode.mode=evaluation")
    if state.batch_shape:
        raise ValueError(f"submitted_grids takes one state, got a batch of shape {state.batch_shape}")
    submission = state.submission
    tests = int(np.asarray(state.task_arrays.table)[int(state.task_index), 2])
    sizes = submission.submitted_sizes
    area = area_bits(sizes[..., 0], sizes[..., 1], state.boards.shape[-1])
    cells = np.asarray(unpack_cells(submission.submitted_grids, area, state.columns))
    count = int(submission.num_submissions)
    return [[trim(cells[k, n]) for n in range(tests)] for k in range(count)]
