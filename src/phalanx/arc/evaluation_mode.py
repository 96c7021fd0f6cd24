"""Evaluation mode: one grid per test pair of a task, hidden test outputs, and scores after the last
submission.

The backends get the tasks without their test outputs, so nothing they compute can reveal an answer. This
module stores the grids of the other test pairs and compares the submitted grids with the hidden outputs.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, UInt32

from phalanx.arc.bitplanes import area_bits, fit_rows, pack_grid, unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import Operation
from phalanx.arc.reward import StepInfo
from phalanx.arc.state import (
    CLIPBOARD,
    HEIGHT,
    PAIR,
    SELECTION,
    SOLVED_PAIRS,
    STATUS,
    STEP_COUNT,
    TASK,
    TERMINATED,
    TRUNCATED,
    WIDTH,
    WORKING,
    ArcState,
    SubmissionState,
)
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer

PAIR_SWITCHES = (*range(Operation.NEXT_DEMO_PAIR, Operation.RESET_PAIR), 40, 41)
"""Ids of the operations that switch to another pair."""


class HiddenTestOutputs(NamedTuple):
    """The outputs of all test pairs, which are in neither the backends' arrays nor the states."""

    planes: UInt32[Array, "*groups tasks tests 4 rows"]
    """Bit-planes of the outputs. They are zero where a task has fewer test pairs or an output is unknown."""
    sizes: Int32[Array, "*groups tasks tests 2"]
    """Height and width of each output; 0 if there is none."""


def hidden_outputs(tasks: TaskBuffer, rows: int) -> HiddenTestOutputs:
    """Collect the test outputs of tasks as arrays. `rows` is the height of the canvas."""
    tests = max(len(task.tests) for task in tasks)
    planes = np.zeros((tasks.padded_shape.num_tasks, tests, 4, rows), np.uint32)
    sizes = np.zeros((tasks.padded_shape.num_tasks, tests, 2), np.int32)
    for index, task in enumerate(tasks):
        for number, pair in enumerate(task.tests):
            if pair.output is not None:
                planes[index, number] = pack_grid(pair.output, rows)
                sizes[index, number] = pair.output.shape
    return HiddenTestOutputs(*jax.device_put((planes, sizes)))


def hide_answers(config: ArcConfig, tasks: TaskBuffer) -> tuple[TaskArrays, HiddenTestOutputs | None]:
    """Return the task arrays for the backends, and the hidden test outputs. In training mode, nothing is
    hidden and the second value is None."""
    if config.episode.mode == "training":
        return tasks.arrays, None
    with jax.ensure_compile_time_eval():
        return tasks.without_answers.arrays, hidden_outputs(tasks, config.grid_shape[0])


def split_answers(tasks: TaskArrays, num_tests: int, rows: int) -> tuple[TaskArrays, HiddenTestOutputs]:
    """Separate the test outputs from task arrays, which may be traced.

    Args:
        tasks: Arrays of the tasks with their test outputs.
        num_tests: Maximum number of test pairs per task.
        rows: Height of the canvas.

    Returns:
        The arrays without test outputs, and the test outputs.
    """
    first, demos, count = (tasks.table[:, k, None] for k in range(3))
    number = jnp.arange(num_tests)
    exists = number < count
    index = jnp.clip(first + demos + number, 0, tasks.pairs.shape[0] - 1)
    planes = jnp.where(exists[..., None, None], fit_rows(tasks.pairs[index, 1], rows), jnp.uint32(0))
    sizes = jnp.where(exists[..., None], tasks.sizes[index, 2:], 0)
    first_test = (first + demos)[:, 0]
    pair = jnp.arange(tasks.pairs.shape[0])[:, None]
    is_test = jnp.any((pair >= first_test) & (pair < first_test + count[:, 0]), axis=1)
    pairs = tasks.pairs.at[:, 1].set(jnp.where(is_test[:, None, None], jnp.uint32(0), tasks.pairs[:, 1]))
    visible_sizes = tasks.sizes.at[:, 2:].set(jnp.where(is_test[:, None], 0, tasks.sizes[:, 2:]))
    return dataclasses.replace(tasks, pairs=pairs, sizes=visible_sizes), HiddenTestOutputs(planes, sizes)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def start_bits_per_test(
    start_bits: UInt32[Array, "*batch 3"], num_tests: int
) -> UInt32[Array, "*batch tests 3"]:
    """Compute the start bits for every test pair of each episode's task. Start bits are defined in
    `NUM_START_BITS`."""
    number = jnp.arange(num_tests, dtype=jnp.uint32)
    task, noise = start_bits[..., 0, None], start_bits[..., 2, None] * jnp.uint32(0x85EBCA6B) ^ number
    return jnp.stack(jnp.broadcast_arrays(task, number, noise), axis=-1)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def start(
    config: ArcConfig, tasks: TaskArrays, start_bits: UInt32[Array, "*batch 3"], starts: ArcState
) -> ArcState:
    """Create the first states of episodes.

    Args:
        config: Settings of the environment.
        tasks: The tasks without their test outputs.
        start_bits: Start bits of the episodes, which select the first test pair.
        starts: First states of all test pairs of each episode's task, with batch shape [*batch, tests].
    """
    tests = starts.similarity.shape[-1]
    task = starts.registers[..., 0, TASK]
    count = jnp.clip(tasks.table[task, 2], 1, tests).astype(jnp.uint32)
    chosen = (start_bits[..., 1] % count).astype(jnp.int32)

    def pick(leaf: Array) -> Array:
        axis = chosen.ndim
        index = chosen.reshape(*chosen.shape, *(1,) * (leaf.ndim - axis))
        return jnp.take_along_axis(leaf, index, axis)[(slice(None),) * axis + (0,)]

    grids = starts.boards[..., WORKING:CLIPBOARD, :]
    shape = (*chosen.shape, config.episode.attempts, tests)
    submission = SubmissionState(
        grids,
        starts.registers[..., HEIGHT : WIDTH + 1],
        jnp.zeros((*shape, *grids.shape[-2:]), jnp.uint32),
        jnp.zeros((*shape, 2), jnp.int32),
        jnp.zeros(chosen.shape, jnp.int32),
    )
    return ArcState(
        pick(starts.boards),
        pick(starts.registers),
        pick(starts.similarity),
        None,
        starts.columns,
        submission,
    )


@functools.partial(jax.jit, static_argnums=0, inline=True)
def step(
    config: ArcConfig,
    tasks: TaskArrays,
    answers: HiddenTestOutputs,
    before: ArcState,
    after: ArcState,
    info: StepInfo,
) -> tuple[ArcState, StepInfo]:
    """Complete a step of the backend: switch between the grids of the test pairs, record submissions, and
    compute the scores at the end of the episode.

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
    submission = before.submission
    assert submission is not None
    running = ~before.episode_done
    operation = jnp.asarray(info.operation_type)
    is_valid = operation >= 0
    tests = submission.sizes.shape[-2]
    task = jnp.clip(before.task_index, 0, tasks.table.shape[0] - 1)
    demos, count = tasks.table[task, 1], jnp.clip(tasks.table[task, 2], 1, tests)
    old_pair = jnp.arange(tests) == (before.pair_index - demos)[..., None]
    new_pair = jnp.arange(tests) == (after.registers[..., PAIR] - demos)[..., None]

    # A switch stores the grid of the pair that is left, and restores the grid of the new pair.
    switched = is_valid & jnp.isin(operation, jnp.array(PAIR_SWITCHES))
    leaves = switched[..., None] & old_pair
    grids = jnp.where(
        leaves[..., None, None], before.boards[..., None, WORKING:CLIPBOARD, :], submission.grids
    )
    sizes = jnp.where(leaves[..., None], before.registers[..., None, HEIGHT : WIDTH + 1], submission.sizes)
    restored = jnp.sum(jnp.where(new_pair[..., None, None], grids, jnp.uint32(0)), axis=-3, dtype=jnp.uint32)
    restored_size = jnp.sum(jnp.where(new_pair[..., None], sizes, 0), axis=-2)
    boards = jnp.where(
        switched[..., None, None],
        after.boards.at[..., WORKING:CLIPBOARD, :].set(restored).at[..., SELECTION, :].set(jnp.uint32(0)),
        after.boards,
    )
    registers = jnp.where(
        switched[..., None],
        after.registers.at[..., HEIGHT : WIDTH + 1].set(restored_size),
        after.registers,
    )

    submits = is_valid & (operation == Operation.SUBMIT)
    current = jnp.where(old_pair[..., None, None], boards[..., None, WORKING:CLIPBOARD, :], grids)
    current_sizes = jnp.where(old_pair[..., None], registers[..., None, HEIGHT : WIDTH + 1], sizes)
    attempts = submission.submitted_sizes.shape[-3]
    is_attempt = submits[..., None] & (jnp.arange(attempts) == submission.num_submissions[..., None])
    submitted = jnp.where(
        is_attempt[..., None, None, None], current[..., None, :, :, :], submission.submitted_grids
    )
    submitted_sizes = jnp.where(
        is_attempt[..., None, None], current_sizes[..., None, :, :], submission.submitted_sizes
    )
    num_submissions = submission.num_submissions + submits

    # At the step limit, an episode with at least one submission is scored and therefore terminated, not
    # truncated.
    overdue = running & (registers[..., STEP_COUNT] >= config.episode.max_episode_steps)
    finished = running & (num_submissions > 0) & ((num_submissions >= attempts) | overdue)
    status = jnp.where(finished, TERMINATED, jnp.where(overdue, TRUNCATED, before.registers[..., STATUS]))
    scores = _score(answers, task, submitted, submitted_sizes)
    exists = jnp.arange(tests) < count[..., None]
    correct = exists & (scores == 1.0)
    score = jnp.sum(jnp.where(exists, scores, 0.0), axis=-1) / count.astype(jnp.float32)
    similarity = jnp.where(finished, score, before.similarity)
    bits = jnp.sum(jnp.where(correct, jnp.int32(1) << (demos[..., None] + jnp.arange(tests)), 0), axis=-1)
    solved_pairs = jnp.where(finished, bits, registers[..., SOLVED_PAIRS])
    registers = registers.at[..., STATUS].set(status).at[..., SOLVED_PAIRS].set(solved_pairs)

    terminated = status == TERMINATED
    info = StepInfo(
        similarity=similarity,
        similarity_improvement=similarity - before.similarity,
        operation_type=info.operation_type,
        step_count=info.step_count,
        episode_done=status != 0,
        terminated=terminated,
        truncated=status == TRUNCATED,
        solved=terminated & (similarity == 1.0),
    )
    new_submission = SubmissionState(grids, sizes, submitted, submitted_sizes, num_submissions)
    return ArcState(boards, registers, similarity, None, before.columns, new_submission), info


def _score(
    answers: HiddenTestOutputs,
    task: Int32[Array, "*batch"],
    submitted: UInt32[Array, "*batch attempts tests 4 rows"],
    sizes: Int32[Array, "*batch attempts tests 2"],
) -> Float32[Array, "*batch tests"]:
    """Return, for each test pair, the similarity of the best submission to the output; 0 if nothing was
    submitted."""
    target, target_size = answers.planes[task][..., None, :, :, :], answers.sizes[task][..., None, :, :]
    common = jnp.minimum(sizes, target_size)
    unequal = functools.reduce(jnp.bitwise_or, jnp.moveaxis(submitted ^ target, -2, 0))
    area = area_bits(common[..., 0], common[..., 1], submitted.shape[-1])
    equal = jnp.sum(jnp.bitwise_count(~unequal & area).astype(jnp.int32), axis=-1)
    cells = jnp.prod(sizes, axis=-1) + jnp.prod(target_size, axis=-1) - jnp.prod(common, axis=-1)
    score = equal.astype(jnp.float32) / jnp.maximum(cells, 1).astype(jnp.float32)
    return jnp.max(score, axis=-2)


def submitted_grids(state: ArcState) -> list[list[np.ndarray]]:
    """Return the grids submitted so far in a single state: for each submission, one grid per test pair of the
    task."""
    if state.submission is None:
        raise ValueError("training mode has no submissions by task; set episode.mode=evaluation")
    if state.batch_shape:
        raise ValueError(f"submitted_grids takes one state, got a batch of shape {state.batch_shape}")
    submission = state.submission
    tests = int(np.asarray(state.task_arrays.table)[int(state.task_index), 2])
    sizes = np.asarray(submission.submitted_sizes)
    area = area_bits(
        submission.submitted_sizes[..., 0], submission.submitted_sizes[..., 1], state.boards.shape[-1]
    )
    cells = np.asarray(unpack_cells(submission.submitted_grids, area, state.columns))
    return [
        [cells[k, n, : sizes[k, n, 0], : sizes[k, n, 1]] for n in range(tests)]
        for k in range(int(submission.num_submissions))
    ]
