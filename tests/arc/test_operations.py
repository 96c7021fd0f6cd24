"""Literal cases for each of the 42 operations, on both backends and the reference implementation."""

from typing import Any

import jax
import numpy as np
import pytest

from phalanx.arc import arc_reset, arc_step, batch_step
from phalanx.arc.actions import create_bbox_action
from phalanx.arc.config import ActionConfig, ArcConfig, DatasetConfig, RewardConfig
from phalanx.arc.task_buffer import TaskBuffer
from tests.helpers.arc_grids import mask, selection_text, task, text
from tests.helpers.arc_operation_cases import CASES, FAR, Case
from tests.helpers.arc_rollouts import BACKENDS, FORMATS, Starts, batch_action, info_view, skip_without, view
from tests.reference.arc import reset_oracle, step_oracle, views_of

SHAPE = (6, 6)


def config_for(action_format: str, backend: str = "xla") -> ArcConfig:
    return ArcConfig(
        dataset=DatasetConfig(max_grid_height=SHAPE[0], max_grid_width=SHAPE[1]),
        action=ActionConfig(selection_format=action_format),
        reward=RewardConfig(
            efficiency_bonus=5.0, efficiency_bonus_threshold=1, unsolved_submission_penalty=-3.0
        ),
        backend=backend,
    )


TASKS = tuple(task(case.name, ((case.start, case.target), *case.others), case.tests) for case in CASES)


def test_every_operation_has_a_case() -> None:
    assert {case.operation for case in CASES if case.valid} == set(range(42))


Outcome = dict[str, Any]


def reference_outcomes() -> dict[str, Outcome]:
    outcomes = {}
    for case, case_task in zip(CASES, TASKS, strict=True):
        config = config_for(case.format)
        state = reset_oracle(case_task, 0, config)
        for operation, cells in case.steps:
            selection = mask(cells, SHAPE) if case.format == "mask" else cells
            state, reward, _, info = step_oracle(state, case.format, operation, selection, config)
        outcomes[case.name] = {field: values[0] for field, values in views_of([state], config).items()} | {
            "reward": reward,
            "operation_type": info["operation_type"],
        }
    return outcomes


def backend_outcomes(backend: str) -> dict[str, Outcome]:
    """Run all cases of a format as one batch and read each row after its last step."""
    outcomes: dict[str, Outcome] = {}
    by_format = {name: [case for case in CASES if case.format == name] for name in FORMATS}
    size = max(len(cases) for cases in by_format.values())
    # Initial states do not depend on the action format, so one reset is enough.
    starts = Starts(config_for("point", backend), TaskBuffer.from_tasks(TASKS))
    for action_format, cases in by_format.items():
        config = config_for(action_format, backend)
        # Batches of the same size share the compiled view.
        rows = cases + cases[:1] * (size - len(cases))
        states = starts.at([(CASES.index(case), 0) for case in rows])
        for step in range(max(len(case.steps) for case in cases)):
            steps = [case.steps[min(step, len(case.steps) - 1)] for case in rows]
            cells = [mask(cells, SHAPE) if action_format == "mask" else cells for _, cells in steps]
            action = batch_action(action_format, [operation for operation, _ in steps], cells)
            states, _, rewards, _, infos = batch_step(states, action, config)
            batch_outcome = view(states) | {
                "reward": np.asarray(rewards),
                "operation_type": info_view(infos)["operation_type"],
            }
            for row, case in enumerate(cases):
                if step == len(case.steps) - 1:
                    outcomes[case.name] = {field: values[row] for field, values in batch_outcome.items()}
    return outcomes


@pytest.fixture(scope="module", params=["reference", *BACKENDS])
def outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    if request.param == "reference":
        return reference_outcomes()
    skip_without(request.param)
    return backend_outcomes(request.param)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_operation_gives_expected_outcome(case: Case, outcomes: dict[str, Outcome]) -> None:
    after = outcomes[case.name]
    assert text(after["working_grid"]) == case.grid
    assert after["pair_index"] == case.pair
    assert after["step_count"] == len(case.steps)
    assert after["operation_type"] == (case.operation if case.valid else -1)
    if case.selected is not None:
        assert selection_text(after["selected"]) == case.selected
    if case.clipboard is not None:
        assert text(after["clipboard"]) == case.clipboard
    if case.reward is not None:
        assert after["reward"] == pytest.approx(case.reward, abs=2e-6)
    if case.similarity is not None:
        assert after["similarity_score"] == np.float32(case.similarity)
    if case.ends is not None:
        assert bool(after["terminated"]) == (case.ends == "terminated")
        assert bool(after["truncated"]) == (case.ends == "truncated")


GRID_OF_EMPTY_SELECTION = {*range(20, 29), 30, 31}
"""Operations that apply to the entire grid if the selection is empty: moves, rotations, flips, Copy, Cut and
Clear."""
NO_EFFECT = {*range(20), 29, 33}
"""Operations without effect if nothing is selected: fills, flood fills, Paste and Resize."""
IGNORES_SELECTION = {32, *range(34, 42)}
"""Copy input, Submit and the operations that choose a pair."""


def apply_every_operation(implementation: str, selection: str) -> list[tuple[str, str, int]]:
    """Cut a cell, apply each operation to the selection, and return the grids, clipboards and pairs."""
    config = config_for("mask", "xla" if implementation == "reference" else implementation)
    grids = ("123/456", FAR)
    several = task("several", [grids, ("7", FAR)], [("8", FAR), ("9", FAR)])
    steps = [(30, mask("/.#", SHAPE)), (None, mask(selection, SHAPE))]
    if implementation == "reference":
        states = []
        for operation in range(42):
            state = reset_oracle(several, 0, config)
            for number, cells in steps:
                state = step_oracle(state, "mask", operation if number is None else number, cells, config)[0]
            states.append(state)
        views = views_of(states, config)
    else:
        skip_without(implementation)
        batch = Starts(config, TaskBuffer.from_tasks(several)).at([(0, 0)] * 42)
        for number, cells in steps:
            operations = range(42) if number is None else [number] * 42
            batch = batch_step(batch, batch_action("mask", operations, [cells] * 42), config)[0]
        views = view(batch)
    rows = zip(views["working_grid"], views["clipboard"], views["pair_index"].tolist(), strict=True)
    return [(text(grid), text(clipboard), pair) for grid, clipboard, pair in rows]


@pytest.mark.parametrize("implementation", ["reference", *BACKENDS])
def test_empty_selections_have_the_documented_effect(implementation: str) -> None:
    assert set(range(42)) == GRID_OF_EMPTY_SELECTION | NO_EFFECT | IGNORES_SELECTION
    unchanged = ("123/406", "5", 0)
    entire_grid = apply_every_operation(implementation, "###/###")
    nothing = apply_every_operation(implementation, "")
    outside_grid = apply_every_operation(implementation, ".../.../...#")
    for operation in range(42):
        expected = unchanged if operation in NO_EFFECT else entire_grid[operation]
        assert nothing[operation] == expected, operation
        if operation == 33:
            expected = ("1230/4060/0000", "5", 0)  # Resize uses the cell outside the grid.
        assert outside_grid[operation] == expected, operation
    for operation in GRID_OF_EMPTY_SELECTION:
        assert entire_grid[operation] != unchanged, operation


@pytest.mark.parametrize("backend", BACKENDS)
def test_single_environment_steps_like_a_batch_of_one(backend: str) -> None:
    skip_without(backend)
    literal = task("single", [("120/000", FAR)])
    config = config_for("bbox", backend)
    state, observation = arc_reset(jax.random.PRNGKey(3), config, literal)
    assert text(np.asarray(observation)) == "120/000"

    state, observation, reward, done, info = arc_step(state, create_bbox_action(21, 0, 0, 0, 1), config)

    assert text(np.asarray(observation)) == text(np.asarray(state.working_grid)) == "000/120"
    assert selection_text(np.asarray(state.selected)) == "/##"
    assert float(reward) == pytest.approx(-0.01)
    assert not bool(done)
    assert int(info.operation_type) == 21
    assert int(info.step_count) == int(state.step_count) == 1
