"""The native and XLA backends against the reference implementation, in every field, over random episodes."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from phalanx.arc import batch_reset, batch_step
from phalanx.arc.task_buffer import TaskBuffer
from tests.helpers.arc_grids import selection_text, text
from tests.helpers.arc_rollouts import BACKENDS, batch_action, info_view, skip_without, view
from tests.helpers.arc_scenarios import SCENARIOS, Scenario, Turn, keys_of, oracle_run, tasks_of
from tests.reference.arc import OracleState, on_canvas, target_of

pytestmark = pytest.mark.slow

REWARD_TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


def has_changed(before: OracleState, after: OracleState) -> bool:
    """Return whether an operation changed anything other than the selection."""
    return (
        before.pair != after.pair
        or before.clipboard != after.clipboard
        or before.terminated != after.terminated
        or not np.array_equal(before.working, after.working)
    )


def test_scenarios_cover_every_operation() -> None:
    effects: Counter[int] = Counter()
    live = 0
    for scenario in SCENARIOS:
        for turn in oracle_run(scenario).turns:
            for before, operation, after in zip(turn.before, turn.operations, turn.after, strict=True):
                live += not before.done
                effects[int(operation)] += has_changed(before, after)
    assert live >= 20_000
    rarely_effective = {operation: effects[operation] for operation in range(42) if effects[operation] < 60}
    assert not rarely_effective, f"operations that changed the state fewer than 60 times: {rarely_effective}"


def test_scenarios_cover_every_ending_and_extreme_sizes() -> None:
    last = [state for scenario in SCENARIOS for state in oracle_run(scenario).turns[-1].after]
    assert sum(state.solved for state in last) >= 30
    assert sum(state.terminated and not state.solved for state in last) >= 30
    assert sum(state.truncated for state in last) >= 30
    sizes = {
        after.working.shape
        for scenario in SCENARIOS
        for turn in oracle_run(scenario).turns
        for after in turn.after
    }
    assert {(1, 1), (30, 30), (7, 12), (5, 5), (12, 7)} <= sizes
    assert any(rows == 1 and cols > 20 for rows, cols in sizes)
    assert any(cols == 1 and rows > 20 for rows, cols in sizes)


def test_evaluation_scenarios_cover_every_ending() -> None:
    runs = [oracle_run(s) for s in SCENARIOS if s.config.episode.mode == "evaluation"]
    assert sum(not before.done for run in runs for turn in run.turns for before in turn.before) >= 20_000
    last = [state for run in runs for state in run.turns[-1].after]
    assert sum(state.solved for state in last) >= 20
    assert sum(state.terminated and not state.solved for state in last) >= 20
    assert sum(state.truncated for state in last) >= 20
    assert sum(state.solved and len(state.task.tests) > 1 for state in last) >= 1
    assert sum(len(state.handed_in) == 2 for state in last) >= 20
    assert any(state.terminated and len(state.handed_in) == 1 for state in runs[-1].turns[-1].after)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "_"))
def test_backend_matches_reference_in_every_field(backend: str, scenario: Scenario) -> None:
    skip_without(backend)
    run = oracle_run(scenario)
    config = scenario.config.model_copy(update={"backend": backend})
    tasks = TaskBuffer.from_tasks(tasks_of(scenario))

    states, observations = batch_reset(keys_of(scenario), config, tasks)
    actual = view(states)
    task_indices = [tasks.index_of(state.task.id) for state in run.first]
    np.testing.assert_array_equal(actual.pop("task_index"), task_indices, "task_index after reset")
    assert_same(actual, run.first_view, None, "reset")
    np.testing.assert_array_equal(np.asarray(observations), run.first_view["working_grid"])

    for number, turn in enumerate(run.turns):
        context = f"{scenario.name}, {backend}, step {number}"
        action = batch_action(scenario.format, turn.operations, turn.selections)
        states, observations, rewards, done, infos = batch_step(states, action, config)
        actual = view(states)
        np.testing.assert_array_equal(actual.pop("task_index"), task_indices, "task_index never changes")
        assert_same(actual, turn.view, turn, context)
        assert_same(
            {"observation": np.asarray(observations)},
            {"observation": turn.view["working_grid"]},
            turn,
            context,
        )
        assert_same(
            {"done": np.asarray(done), **info_view(infos)}, {"done": turn.done, **turn.infos}, turn, context
        )
        assert_same({"reward": np.asarray(rewards)}, {"reward": turn.rewards}, turn, context)
        assert np.asarray(rewards).dtype == np.float32


def assert_same(
    actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], turn: Turn | None, context: str
) -> None:
    """Assert that all fields are equal (rewards to 1e-6), and describe the first difference."""
    assert actual.keys() == expected.keys()
    for field, expected_value in expected.items():
        got = actual[field]
        assert got.shape == expected_value.shape, (
            f"{context}: {field} has shape {got.shape}, expected {expected_value.shape}"
        )
        # In evaluation, similarity is a mean over test pairs, which XLA may round differently.
        is_mean = "in evaluation" in context and field.startswith("similarity")
        if is_mean or field in ("reward", "similarity_improvement"):
            same = np.isclose(got, expected_value, **REWARD_TOLERANCE)
        else:
            same = got == expected_value
        if not same.all():
            row = int(np.argwhere(~same)[0][0])
            pytest.fail(
                f"{context}: {field} of environment {row}\n"
                f"{describe_case(turn, row)}{format_difference(field, got[row], expected_value[row])}"
            )


def format_difference(field: str, got: Any, expected_value: Any) -> str:
    if field == "selected" or field.endswith("mask"):
        return f"expected {selection_text(expected_value)}\ngot      {selection_text(got)}"
    if np.ndim(expected_value) == 2:
        return f"expected {text(expected_value)}\ngot      {text(got)}"
    return f"expected {expected_value!r}\ngot      {got!r}"


def describe_case(turn: Turn | None, row: int) -> str:
    """Describe the failing case so that it can be copied into a unit test."""
    if turn is None:
        return ""
    before, after, cells = turn.before[row], turn.after[row], turn.selections[row]
    canvas = before.selected.shape
    selection = selection_text(cells) if cells.ndim == 2 else cells.tolist()
    clipboard = np.full(canvas, -1, np.int8)
    for cell, color in (before.clipboard or {}).items():
        clipboard[cell] = color
    return (
        f"task {before.task.id}, pair {before.pair} -> {after.pair}, done before: {before.done}\n"
        f"operation {turn.operations[row]}, selection {selection}\n"
        f"before {text(on_canvas(before.working, canvas))}\n"
        f"clipboard {text(clipboard)}\n"
        f"target {text(on_canvas(target_of(after.task, after.pair), canvas))}\n"
    )
