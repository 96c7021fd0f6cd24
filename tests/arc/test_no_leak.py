"""Evaluation reveals nothing about the answers before the last submission.

Two environments that differ only in their answers give equal states, observations and infos until then.
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
ALL_OBSERVATIONS = ObservationConfig(
    input_grid=True, target_grid=True, selected=True, clipboard=True, num_demonstrations=1, scalars=True
)


def config(backend: str, attempts: int = 1) -> ArcConfig:
    return ArcConfig(
        dataset=DatasetConfig(max_grid_height=SIDE, max_grid_width=SIDE),
        action=ActionConfig(selection_format="bbox"),
        episode=EpisodeConfig(mode="evaluation", max_episode_steps=STEPS, attempts=attempts),
        observation=ALL_OBSERVATIONS,
        backend=backend,
    )


@functools.cache
def create_tasks(seed: int) -> tuple[ArcTask, ...]:
    """Create tasks with one to three test pairs; only the answers depend on the seed."""
    rng, answers = np.random.default_rng(0), np.random.default_rng(seed)
    tasks = []
    for number in range(TASKS):
        demo = GridPair(
            as_grid(rng.integers(0, 10, (SIDE, SIDE))), as_grid(rng.integers(0, 10, (SIDE, SIDE)))
        )
        tests = []
        for _ in range(1 + number % 3):
            input_grid = rng.integers(0, 2, (2, 2))
            # Some inputs are already correct, which would be the easiest answers to detect.
            output = (
                input_grid.copy()
                if answers.random() < 0.4
                else answers.integers(0, 2, answers.integers(1, 4, 2))
            )
            tests.append(GridPair(as_grid(input_grid), as_grid(output)))
        tasks.append(ArcTask(f"puzzle-{number}", (demo,), tuple(tests)))
    return tuple(tasks)


@jax.jit
def read_attributes(obj: Any) -> dict[str, Any]:
    """Read all public attributes in one compiled program, because each property would compile several."""
    values: dict[str, Any] = {}
    for name in dir(obj):
        if name.startswith("_") or name == "tasks":
            continue
        value = getattr(obj, name)
        if not callable(value):
            values[name] = eqx.filter(value, eqx.is_array_like)
    return values


def public_attributes(obj: Any) -> dict[str, Any]:
    """Return all public attributes of a state, an observation or an info as NumPy arrays."""
    return jax.device_get(read_attributes(obj))


def assert_equal(one: Any, other: Any, message: str) -> None:
    leaves, other_leaves = jax.tree.flatten(one)[0], jax.tree.flatten(other)[0]
    assert len(leaves) == len(other_leaves) > 0, message
    for left, right in zip(leaves, other_leaves, strict=True):
        np.testing.assert_array_equal(left, right, message)


def select_running(outputs: Any, rows: np.ndarray) -> Any:
    """Select the rows of episodes that have not ended."""
    return jax.tree.map(lambda leaf: leaf[rows] if leaf.shape[:1] == (TASKS,) else leaf, outputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attempts", [1, 2])
def test_evaluation_reveals_nothing_before_last_submission(backend: str, attempts: int) -> None:
    skip_without(backend)
    environments = [ArcEnvironment.create(config(backend, attempts), create_tasks(seed)) for seed in (1, 2)]
    rng = np.random.default_rng(3)
    rows = np.arange(TASKS, dtype=np.int32)
    step = jax.jit(lambda environment, states, actions: environment.batch_step(states, actions))
    reset = jax.jit(lambda environment, rows: environment.batch_reset_to(rows, 0 * rows))
    initial = [reset(environment, rows) for environment in environments]
    states = [
        environment.attach_names(state) for environment, (state, _) in zip(environments, initial, strict=True)
    ]
    assert_equal(public_attributes(initial[0][1]), public_attributes(initial[1][1]), "first observation")
    num_different = 0
    for number in range(STEPS):
        # Fills, all pair operations (including 41) and submissions, equal in both environments.
        operations = rng.choice([0, 1, 31, 32, 33, 34, 37, 38, 39, 40, 41], TASKS)
        boxes = rng.integers(0, SIDE, (4, TASKS))
        actions = BboxAction(operations, *boxes)
        outputs = []
        for k, environment in enumerate(environments):
            after, observations, reward, done, info = step(
                environment, environment.detach_names(states[k]), actions
            )
            states[k] = environment.attach_names(after)
            outputs.append(
                (
                    public_attributes(states[k]),
                    public_attributes(observations),
                    np.asarray(reward),
                    np.asarray(done),
                    public_attributes(info),
                )
            )
            assert_equal(environment.legal_actions(states[k]), environment.legal_actions(states[0]), "mask")
        finished = outputs[0][3]
        np.testing.assert_array_equal(finished, outputs[1][3], "done")
        assert_equal(*(select_running(one, ~finished) for one in outputs), f"step {number}")
        num_different += int((outputs[0][4]["solved"] != outputs[1][4]["solved"]).sum())
    assert num_different > 20, "the environments must differ after the last submission"


@pytest.mark.parametrize("backend", BACKENDS)
def test_hill_climbing_on_feedback_is_no_better_than_guessing(backend: str) -> None:
    """Try each color in a cell and keep it if any feedback improves."""
    skip_without(backend)
    rng = np.random.default_rng(5)
    tasks = [
        ArcTask(f"t{k}", (), (GridPair(as_grid([[0, 0]]), as_grid(rng.integers(0, 2, (1, 2)))),))
        for k in range(TASKS)
    ]
    evaluation_config = config(backend).model_copy(update={"observation": ObservationConfig(scalars=True)})
    environment = ArcEnvironment.create(evaluation_config, tasks)
    rows = np.arange(TASKS, dtype=np.int32)
    step = jax.jit(lambda e, s, a: e.batch_step(s, a))
    states, observations = jax.jit(lambda e, rows: e.batch_reset_to(rows, 0 * rows))(environment, rows)
    best = np.zeros(TASKS, np.float32)
    zeros = np.zeros(TASKS, np.int32)
    for column in range(2):
        kept = np.zeros(TASKS, np.int32)
        for color in (1, 0):
            cells = (zeros, zeros + column, zeros, zeros + column)
            states, observations, reward, _, info = step(
                environment, states, BboxAction(zeros + color, *cells)
            )
            score = np.asarray(info.similarity) + np.asarray(observations.similarity) + np.asarray(reward)
            kept = np.where(score > best, color, kept)
            best = np.maximum(best, score)
        states, *_ = step(environment, states, BboxAction(kept, *cells))
    *_, info = step(environment, states, BboxAction(zeros + 34, zeros, zeros, zeros, zeros))
    solved = np.asarray(info.solved).mean()
    assert abs(solved - 1 / 4) < 4 * np.sqrt(0.25 * 0.75 / TASKS), f"solved {solved:.3f}, chance is 0.25"


def test_state_contains_no_answers_or_solutions() -> None:
    environment = ArcEnvironment.create(config("xla"), create_tasks(1)[:3])
    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    assert all(pair.output is None for task in state.tasks for pair in task.tests)
    assert all(task.solutions == () for task in state.tasks)
    assert (np.asarray(state.target_grid) == -1).all()
    attributes = [getattr(state.tasks, name) for name in dir(state.tasks) if not name.startswith("_")]
    buffers = [value for value in attributes if isinstance(value, TaskBuffer)]
    assert buffers, "the public task buffers have no answers either"
    assert all(pair.output is None for buffer in buffers for task in buffer for pair in task.tests)
    revealed = environment.with_answers(state)
    assert (np.asarray(revealed.target_grid) >= 0).any()
