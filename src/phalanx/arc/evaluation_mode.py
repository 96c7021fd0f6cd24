"""Evaluation by handing in: a grid for every test pair of a task, and answers that only the examiner has.

The engines are given tasks without the outputs of their test pairs, so nothing that they compute can tell
them; here grids are kept while others are worked on, and what was handed in is compared at the end.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from phalanx.arc.backends.interface import Outcome, Packed
from phalanx.arc.bitplanes import area_bits, fit_rows, pack_grid, unpack_cells
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import Operation
from phalanx.arc.reward import REWARD_WEIGHTS, RewardNumbers
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

SWITCHES = (*range(Operation.NEXT_DEMO_PAIR, Operation.RESET_PAIR), 40, 41)
"""The operations that go to another pair."""


class HiddenTestOutputs(NamedTuple):
    """The outputs of all test pairs, which no engine and no state has."""

    planes: UInt32[Array, "*groups tasks tests 4 rows"]
    """Zeros where there is no such pair, or where its output is secret."""
    sizes: Int32[Array, "*groups tasks tests 2"]
    """Height and width; 0 where there is no output."""


def hidden_outputs(tasks: TaskBuffer, rows: int) -> HiddenTestOutputs:
    """What an examiner needs of the tasks, for a canvas of so many rows."""
    tests = max(len(task.tests) for task in tasks)
    planes = np.zeros((tasks.capacity.num_tasks, tests, 4, rows), np.uint32)
    sizes = np.zeros((tasks.capacity.num_tasks, tests, 2), np.int32)
    for index, task in enumerate(tasks):
        for number, pair in enumerate(task.tests):
            if pair.output is not None:
                planes[index, number] = pack_grid(pair.output, rows)
                sizes[index, number] = pair.output.shape
    return HiddenTestOutputs(*jax.device_put((planes, sizes)))


def hide_answers(config: ArcConfig, tasks: TaskBuffer) -> tuple[TaskArrays, HiddenTestOutputs | None]:
    """What the engines read of tasks, and what only an examiner does."""
    if config.episode.mode == "training":
        return tasks.arrays, None
    with jax.ensure_compile_time_eval():
        return tasks.without_answers.arrays, hidden_outputs(tasks, config.grid_shape[0])


def split_answers(tasks: TaskArrays, tests: int, rows: int) -> tuple[TaskArrays, HiddenTestOutputs]:
    """Arrays, which may be traced, without the outputs of up to so many test pairs a task, and these."""
    first, demos, count = (tasks.table[:, k, None] for k in range(3))
    number = jnp.arange(tests)
    there = number < count
    place = jnp.clip(first + demos + number, 0, tasks.pairs.shape[0] - 1)
    planes = jnp.where(there[..., None, None], fit_rows(tasks.pairs[place, 1], rows), jnp.uint32(0))
    sizes = jnp.where(there[..., None], tasks.sizes[place, 2:], 0)
    start = (first + demos)[:, 0]
    pair = jnp.arange(tasks.pairs.shape[0])[:, None]
    is_test = jnp.any((pair >= start) & (pair < start + count[:, 0]), axis=1)
    pairs = tasks.pairs.at[:, 1].set(jnp.where(is_test[:, None, None], jnp.uint32(0), tasks.pairs[:, 1]))
    kept = tasks.sizes.at[:, 2:].set(jnp.where(is_test[:, None], 0, tasks.sizes[:, 2:]))
    return tasks._replace(pairs=pairs, sizes=kept), HiddenTestOutputs(planes, sizes)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def words_by_test(words: UInt32[Array, "*batch 3"], tests: int) -> UInt32[Array, "*batch tests 3"]:
    """The words of a start on each test pair of the task that a start names; see `starts`."""
    number = jnp.arange(tests, dtype=jnp.uint32)
    task, noise = words[..., 0, None], words[..., 2, None] * jnp.uint32(0x85EBCA6B) ^ number
    return jnp.stack(jnp.broadcast_arrays(task, number, noise), axis=-1)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def start(
    config: ArcConfig, tasks: TaskArrays, words: UInt32[Array, "*batch 3"], starts: Packed
) -> tuple[Packed, SubmissionState]:
    """The first state on the pair that the words name, from those on each test pair of the task."""
    tests = starts.similarity.shape[-1]
    task = starts.registers[..., 0, TASK]
    count = jnp.clip(tasks.table[task, 2], 1, tests).astype(jnp.uint32)
    chosen = (words[..., 1] % count).astype(jnp.int32)

    def pick(leaf: Array) -> Array:
        axis = chosen.ndim
        index = chosen.reshape(*chosen.shape, *(1,) * (leaf.ndim - axis))
        return jnp.take_along_axis(leaf, index, axis)[(slice(None),) * axis + (0,)]

    grids = starts.boards[..., WORKING:CLIPBOARD, :]
    sizes = starts.registers[..., HEIGHT : WIDTH + 1]
    most = config.episode.attempts
    handed = (*chosen.shape, most, tests)
    work = SubmissionState(
        grids,
        sizes,
        jnp.zeros((*handed, *grids.shape[-2:]), jnp.uint32),
        jnp.zeros((*handed, 2), jnp.int32),
        jnp.zeros(chosen.shape, jnp.int32),
    )
    return Packed(pick(starts.boards), pick(starts.registers), pick(starts.similarity)), work


@functools.partial(jax.jit, static_argnums=0, inline=True)
def step(
    config: ArcConfig,
    tasks: TaskArrays,
    answers: HiddenTestOutputs,
    numbers: RewardNumbers,
    before: ArcState,
    after: Packed,
    outcome: Outcome,
) -> tuple[Packed, SubmissionState, Outcome]:
    """What an engine's step comes to when a whole task is worked on and handed in."""
    work = before.work
    assert work is not None
    running = ~before.episode_done
    acts = outcome.operation_type >= 0
    tests = work.sizes.shape[-2]
    task = jnp.clip(before.task_index, 0, tasks.table.shape[0] - 1)
    demos, count = tasks.table[task, 1], jnp.clip(tasks.table[task, 2], 1, tests)
    here = jnp.arange(tests) == (before.pair_index - demos)[..., None]
    there = jnp.arange(tests) == (after.registers[..., PAIR] - demos)[..., None]

    switched = acts & jnp.isin(outcome.operation_type, jnp.array(SWITCHES))
    grids = jnp.where(
        (switched[..., None] & here)[..., None, None],
        before.boards[..., None, WORKING:CLIPBOARD, :],
        work.grids,
    )
    sizes = jnp.where(
        (switched[..., None] & here)[..., None], before.registers[..., None, HEIGHT : WIDTH + 1], work.sizes
    )
    kept = jnp.sum(jnp.where(there[..., None, None], grids, jnp.uint32(0)), axis=-3, dtype=jnp.uint32)
    kept_size = jnp.sum(jnp.where(there[..., None], sizes, 0), axis=-2)
    boards = jnp.where(
        switched[..., None, None],
        after.boards.at[..., WORKING:CLIPBOARD, :].set(kept).at[..., SELECTION, :].set(jnp.uint32(0)),
        after.boards,
    )
    registers = jnp.where(
        switched[..., None],
        after.registers.at[..., HEIGHT : WIDTH + 1].set(kept_size),
        after.registers,
    )

    submitted = acts & (outcome.operation_type == Operation.SUBMIT)
    answer = jnp.where(here[..., None, None], boards[..., None, WORKING:CLIPBOARD, :], grids)
    answer_sizes = jnp.where(here[..., None], registers[..., None, HEIGHT : WIDTH + 1], sizes)
    most = work.handed_sizes.shape[-3]
    now = submitted[..., None] & (jnp.arange(most) == work.attempts[..., None])
    handed = jnp.where(now[..., None, None, None], answer[..., None, :, :, :], work.handed_grids)
    handed_sizes = jnp.where(now[..., None, None], answer_sizes[..., None, :, :], work.handed_sizes)
    attempts = work.attempts + submitted

    overdue = running & (registers[..., STEP_COUNT] >= config.episode.max_episode_steps)
    finished = running & (attempts > 0) & ((attempts >= most) | overdue)
    status = jnp.where(finished, TERMINATED, jnp.where(overdue, TRUNCATED, before.registers[..., STATUS]))
    scores = _scores(answers, task, handed, handed_sizes)
    there_is = jnp.arange(tests) < count[..., None]
    right = there_is & (scores == 1.0)
    score = jnp.sum(jnp.where(there_is, scores, 0.0), axis=-1) / count.astype(jnp.float32)
    similarity = jnp.where(finished, score, before.similarity)
    solved = finished & (similarity == 1.0)
    bits = jnp.sum(jnp.where(right, jnp.int32(1) << (demos[..., None] + jnp.arange(tests)), 0), axis=-1)
    solved_pairs = jnp.where(finished, bits, registers[..., SOLVED_PAIRS])
    registers = registers.at[..., STATUS].set(status).at[..., SOLVED_PAIRS].set(solved_pairs)

    ended = status == TERMINATED
    told = outcome._replace(
        reward=_reward(config, numbers, acts, running, finished, solved, registers[..., STEP_COUNT]),
        improvement=similarity - before.similarity,
        done=status != 0,
        terminated=ended,
        truncated=status == TRUNCATED,
        solved=ended & (similarity == 1.0),
    )
    return (
        Packed(boards, registers, similarity),
        SubmissionState(grids, sizes, handed, handed_sizes, attempts),
        told,
    )


def _scores(
    answers: HiddenTestOutputs,
    task: Int32[Array, "*batch"],
    handed: UInt32[Array, "*batch attempts tests 4 rows"],
    sizes: Int32[Array, "*batch attempts tests 2"],
) -> Float32[Array, "*batch tests"]:
    """The similarity of the best attempt at each test pair; 0 where nothing was handed in."""
    target, target_size = answers.planes[task][..., None, :, :, :], answers.sizes[task][..., None, :, :]
    common = jnp.minimum(sizes, target_size)
    unequal = functools.reduce(jnp.bitwise_or, jnp.moveaxis(handed ^ target, -2, 0))
    area = area_bits(common[..., 0], common[..., 1], handed.shape[-1])
    equal = jnp.sum(jnp.bitwise_count(~unequal & area).astype(jnp.int32), axis=-1)
    cells = jnp.prod(sizes, axis=-1) + jnp.prod(target_size, axis=-1) - jnp.prod(common, axis=-1)
    score = equal.astype(jnp.float32) / jnp.maximum(cells, 1).astype(jnp.float32)
    return jnp.max(score, axis=-2)


def _reward(
    config: ArcConfig,
    numbers: RewardNumbers,
    acts: Bool[Array, "*batch"],
    running: Bool[Array, "*batch"],
    finished: Bool[Array, "*batch"],
    solved: Bool[Array, "*batch"],
    step_count: Int32[Array, "*batch"],
) -> Float32[Array, "*batch"]:
    """What a step pays: nothing that depends on the answer before the last hand-in."""
    pay = dict(zip(REWARD_WEIGHTS, jnp.moveaxis(numbers, -1, 0), strict=True))
    step = 0.0 if config.reward.reward_on_submit_only else pay["step_penalty"]
    quick = step_count.astype(jnp.float32) <= pay["efficiency_bonus_threshold"]
    bonus = pay["success_bonus"] + jnp.where(quick, pay["efficiency_bonus"], 0.0)
    end = jnp.where(finished, jnp.where(solved, bonus, pay["unsolved_submission_penalty"]), 0.0)
    return jnp.where(acts, step, jnp.where(running, pay["invalid_action_penalty"], 0.0)) + end


def submitted_grids(state: ArcState) -> list[list[np.ndarray]]:
    """The grids of each attempt of one state that were handed in, one for each test pair of its task."""
    if state.work is None:
        raise ValueError("nothing is handed in by task in training; set episode.mode to evaluation")
    if state.batch_shape:
        raise ValueError(f"handed_in takes one state, got a batch of shape {state.batch_shape}")
    work, columns = state.work, state.columns
    tests = int(np.asarray(state.task_arrays.table)[int(state.task_index), 2])
    area = area_bits(work.handed_sizes[..., 0], work.handed_sizes[..., 1], state.boards.shape[-1])
    cells = np.asarray(unpack_cells(work.handed_grids, area, columns))
    sizes = np.asarray(work.handed_sizes)
    return [
        [cells[k, n, : sizes[k, n, 0], : sizes[k, n, 1]] for n in range(tests)]
        for k in range(int(work.attempts))
    ]
