"""Evaluation tells nothing before the hand-in: who reads all that is given does no better than chance.

It looks for any difference between two worlds that differ in the answers alone: whatever can be read, through
the environment itself or through an adapter, must be the same in both until the last hand-in.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    BboxAction,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    ObservationConfig,
    TaskBuffer,
)
from phalanx.arc.tasks import as_grid
from tests.helpers.arc_rollouts import BACKENDS, skip_without

pytestmark = pytest.mark.slow

SIDE, TASKS, STEPS = 3, 1000, 12
SEES_ALL = ObservationConfig(
    input_grid=True, target_grid=True, selected=True, clipboard=True, num_demonstrations=1, scalars=True
)


def config(backend: str, attempts: int = 1) -> ArcConfig:
    return ArcConfig(
        dataset=DatasetConfig(max_grid_height=SIDE, max_grid_width=SIDE),
        action=ActionConfig(selection_format="bbox"),
        episode=EpisodeConfig(mode="evaluation", max_episode_steps=STEPS, attempts=attempts),
        observation=SEES_ALL,
        backend=backend,
    )


@functools.cache
def puzzles(seed: int) -> tuple[ArcTask, ...]:
    """Tasks with one to three test pairs: all of it fixed but the answers, sizes included."""
    rng, answers = np.random.default_rng(0), np.random.default_rng(seed)
    made = []
    for number in range(TASKS):
        demo = GridPair(
            as_grid(rng.integers(0, 10, (SIDE, SIDE))), as_grid(rng.integers(0, 10, (SIDE, SIDE)))
        )
        tests = []
        for _ in range(1 + number % 3):
            given = rng.integers(0, 2, (2, 2))
            # Now and then the first grid is right already, or one fill away: the easiest to find out.
            output = (
                given.copy() if answers.random() < 0.4 else answers.integers(0, 2, answers.integers(1, 4, 2))
            )
            tests.append(GridPair(as_grid(given), as_grid(output)))
        made.append(ArcTask(f"puzzle-{number}", (demo,), tuple(tests)))
    return tuple(made)


@jax.jit
def read(thing: Any) -> dict[str, Any]:
    """Everything public of a thing, in one program: a property by itself would be a dozen small ones."""
    found: dict[str, Any] = {}
    for name in dir(thing):
        if name.startswith("_") or name == "tasks":
            continue
        value = getattr(thing, name)
        if not callable(value):
            found[name] = eqx.filter(value, eqx.is_array_like)
    return found


def readable(thing: Any) -> dict[str, Any]:
    """Everything public that can be read of a state, an observation or an info, as arrays."""
    return jax.device_get(read(thing))


def same(one: Any, other: Any, where: str) -> None:
    mine, theirs = jax.tree.flatten(one)[0], jax.tree.flatten(other)[0]
    assert len(mine) == len(theirs) > 0, where
    for left, right in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(left, right, where)


def running(told: Any, rows: np.ndarray) -> Any:
    """What is told of the episodes that have not ended."""
    return jax.tree.map(lambda leaf: leaf[rows] if leaf.shape[:1] == (TASKS,) else leaf, told)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attempts", [1, 2])
def test_evaluation_reveals_nothing_before_last_submission(backend: str, attempts: int) -> None:
    skip_without(backend)
    worlds = [ArcEnvironment.create(config(backend, attempts), puzzles(seed)) for seed in (1, 2)]
    rng = np.random.default_rng(3)
    rows = np.arange(TASKS, dtype=np.int32)
    step = jax.jit(lambda environment, states, actions: environment.batch_step(states, actions))
    begin = jax.jit(lambda environment, rows: environment.batch_reset_to(rows, 0 * rows))
    begun = [begin(world, rows) for world in worlds]
    states = [world.attach_names(state) for world, (state, _) in zip(worlds, begun, strict=True)]
    same(readable(begun[0][1]), readable(begun[1][1]), "first observation")
    ended_apart = 0
    for number in range(STEPS):
        # Fills, all pair operations (41 among them) and now and then a hand-in; the same in both worlds.
        operations = rng.choice([0, 1, 31, 32, 33, 34, 37, 38, 39, 40, 41], TASKS)
        boxes = rng.integers(0, SIDE, (4, TASKS))
        actions = BboxAction(operations, *boxes)
        told = []
        for k, world in enumerate(worlds):
            after, seen, reward, done, info = step(world, world.detach_names(states[k]), actions)
            states[k] = world.attach_names(after)
            told.append(
                (readable(states[k]), readable(seen), np.asarray(reward), np.asarray(done), readable(info))
            )
            same(world.legal_actions(states[k]), world.legal_actions(states[0]), "mask")
        finished = told[0][3]
        np.testing.assert_array_equal(finished, told[1][3], "whether the right grid ends it")
        same(*(running(one, ~finished) for one in told), f"step {number}")
        ended_apart += int((told[0][4]["solved"] != told[1][4]["solved"]).sum())
    assert ended_apart > 20, "the truth comes out at the end, so the worlds do differ"


@pytest.mark.parametrize("backend", BACKENDS)
def test_hill_climbing_on_feedback_is_no_better_than_guessing(backend: str) -> None:
    """The climber of old: try a color in a cell, keep it if anything that is told has grown."""
    skip_without(backend)
    rng = np.random.default_rng(5)
    tasks = [
        ArcTask(f"t{k}", (), (GridPair(as_grid([[0, 0]]), as_grid(rng.integers(0, 2, (1, 2)))),))
        for k in range(TASKS)
    ]
    rules = config(backend).model_copy(update={"observation": ObservationConfig(scalars=True)})
    environment = ArcEnvironment.create(rules, tasks)
    rows = np.arange(TASKS, dtype=np.int32)
    step = jax.jit(lambda e, s, a: e.batch_step(s, a))
    states, seen = jax.jit(lambda e, rows: e.batch_reset_to(rows, 0 * rows))(environment, rows)
    best = np.zeros(TASKS, np.float32)
    zeros = np.zeros(TASKS, np.int32)
    for column in range(2):
        kept = np.zeros(TASKS, np.int32)
        for color in (1, 0):
            cells = (zeros, zeros + column, zeros, zeros + column)
            states, seen, reward, _, info = step(environment, states, BboxAction(zeros + color, *cells))
            score = np.asarray(info.similarity) + np.asarray(seen.similarity) + np.asarray(reward)
            kept = np.where(score > best, color, kept)
            best = np.maximum(best, score)
        states, *_ = step(environment, states, BboxAction(kept, *cells))
    *_, info = step(environment, states, BboxAction(zeros + 34, zeros, zeros, zeros, zeros))
    solved = np.asarray(info.solved).mean()
    assert abs(solved - 1 / 4) < 4 * np.sqrt(0.25 * 0.75 / TASKS), f"solved {solved:.3f}, chance is 0.25"


def test_state_contains_no_answers_or_solutions() -> None:
    environment = ArcEnvironment.create(config("xla"), puzzles(1)[:3])
    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    assert all(pair.output is None for task in state.tasks for pair in task.tests)
    assert all(task.solutions == () for task in state.tasks)
    assert (np.asarray(state.target_grid) == -1).all()
    readable_of_tasks = [getattr(state.tasks, name) for name in dir(state.tasks) if not name.startswith("_")]
    buffers = [value for value in readable_of_tasks if isinstance(value, TaskBuffer)]
    assert buffers, "what its tasks lead to in public has no answers either"
    assert all(pair.output is None for buffer in buffers for task in buffer for pair in task.tests)
    revealed = environment.with_answers(state)
    assert (np.asarray(revealed.target_grid) >= 0).any()
