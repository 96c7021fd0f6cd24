"""Plans give exactly the expected outputs in every action format, and are short."""

import functools
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from benchmarks.speed.arc_planner import is_exact, measure_plans, num_cell_fills, with_all_pairs_as_demos
from hypothesis import given, settings, strategies as st

from phalanx.arc import (
    FAMILIES,
    Action,
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    Operation,
    generate_tasks,
    load_tasks,
    plan_pair,
    solution_actions,
)
from phalanx.arc.planner import solution_plan
from tests.helpers.arc_grids import grid, task
from tests.reference.arc import reset_oracle, step_oracle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("phalanx._native") is None, reason="short plans need the compiled extension"
    ),
]

SHARED = Path(__file__).parents[2].parent / "shared/data/arc"
FORMATS = ("point", "bbox", "mask")

each_format = pytest.mark.parametrize("selection_format", FORMATS)


def action_tuples(actions: list[Action]) -> list[tuple[int, ...]]:
    """Convert point and bbox actions to tuples of integers, operation first."""
    return [tuple(np.asarray(action.__jax_array__()).tolist()) for action in actions]


def selection_of(action: Action) -> object:
    """Return the selection in the format of the reference implementation."""
    if hasattr(action, "selection"):
        return np.asarray(action.selection)
    return tuple(np.asarray(action.__jax_array__()).tolist()[1:])


def apply_actions(
    before: np.ndarray, actions: list[Action], selection_format: str, config: ArcConfig
) -> np.ndarray:
    """Apply actions with the reference implementation and return the working grid."""
    # Without an output, no step ends the episode.
    state = reset_oracle(ArcTask("t", (GridPair(before, None),), ()), 0, config)
    for action in actions:
        state, _, _, info = step_oracle(
            state, selection_format, int(action.operation), selection_of(action), config
        )
        assert info["operation_type"] == int(action.operation), "invalid action"
    return state.working


def config_for(selection_format: str, side: int, backend: str = "auto", allowed=None) -> ArcConfig:
    return ArcConfig(
        episode=EpisodeConfig(max_episode_steps=1000),
        dataset=DatasetConfig(max_grid_height=side, max_grid_width=side),
        action=ActionConfig(selection_format=selection_format, allowed_operations=allowed),
        backend=backend,
    )


@functools.cache
def generated_tasks(num_tasks: int, seed: int, side: int | None = None) -> list[ArcTask]:
    """Generate tasks once for all action formats."""
    names = ("min_height", "max_height", "min_width", "max_width")
    return generate_tasks(
        num_tasks=num_tasks, seed=seed, **({} if side is None else dict.fromkeys(names, side))
    )


@functools.cache
def published_tasks() -> list[ArcTask]:
    """Load every fortieth task of the datasets, once for all action formats."""
    names = ("arc-agi-1", "arc-agi-2", "concept-arc", "mini-arc")
    # ARC-AGI-2 contains tasks of ARC-AGI-1 with the same IDs.
    tasks = {
        arc_task.id: arc_task for name in names for arc_task in load_tasks(name, "all", data_dir=SHARED)[::40]
    }
    return list(tasks.values())


def solutions_solve(tasks: list[ArcTask], config: ArcConfig) -> np.ndarray:
    """Return for each pair whether its solution solves it in the environment."""
    plans = [solution_plan(task, pair, config) for task in tasks for pair in range(len(task.pairs))]
    return is_exact(ArcEnvironment.create(config, with_all_pairs_as_demos(tasks)), plans)


@each_format
@pytest.mark.parametrize(("backend", "per_family"), [("auto", 20), ("xla", 4)])
def test_solutions_solve_pairs_of_every_family_in_every_format(selection_format, backend, per_family):
    exact = solutions_solve(
        generated_tasks(per_family * len(FAMILIES), 11), config_for(selection_format, 10, backend)
    )
    assert len(exact) == 4 * per_family * len(FAMILIES)
    assert exact.all()


@each_format
@pytest.mark.parametrize("side", [4, 30])
def test_solutions_solve_pairs_that_fill_the_canvas(selection_format, side):
    assert solutions_solve(generated_tasks(30, 3, side), config_for(selection_format, side)).all()


@pytest.mark.parametrize("selection_format", ["bbox", "mask"])
def test_bbox_and_mask_plans_follow_the_task_solution(selection_format):
    for arc_task in generate_tasks(num_tasks=30, seed=4):
        for pair, solution in enumerate(arc_task.solutions):
            actions = solution_actions(arc_task, pair, selection_format)
            assert [int(action.operation) for action in actions] == [step.operation for step in solution]


def test_point_plans_differ_where_a_box_is_needed():
    fill, resize = (1, 0, 0, 0, 1), (int(Operation.RESIZE), 0, 0, 0, 2)
    boxes = task("t", [("000", "110")])
    assert action_tuples(plan_pair(grid("000"), grid("110"), "bbox")) == [fill]
    assert action_tuples(solution_actions(boxes, 0, "point")) == [(1, 0, 1), (1, 0, 0)]
    assert action_tuples(solution_actions(task("u", [("10", "100")]), 0, "bbox")) == [resize]
    assert action_tuples(solution_actions(task("u", [("10", "100")]), 0, "point")) == [(33, 0, 2)]


@pytest.mark.parametrize(
    ("selection_format", "before", "target", "plan"),
    [
        ("bbox", "12", "12", []),
        ("bbox", "0000/0000/0000", "0000/0330/0330", [(3, 1, 1, 2, 2)]),
        # Overlapping fills need fewer steps than disjoint ones.
        ("bbox", "00000/00000/00000", "22222/23332/22222", [(2, 0, 0, 2, 4), (3, 1, 1, 1, 3)]),
        ("bbox", "1010/1110/0001/0100", "2020/2220/0001/0100", [(12, 0, 0, 0, 0)]),
        ("bbox", "123/456/789", "741/852/963", [(24, 0, 0, 2, 2)]),
        ("bbox", "00000/01200/03400", "00000/00120/00340", [(23, 1, 1, 2, 2)]),
        ("bbox", "0000/0012/0034", "12/34", [(28, 1, 2, 2, 3), (33, 0, 0, 1, 1), (29, 0, 0, 0, 0)]),
        ("bbox", "1234/5678", "12341234/56785678", [(28, 0, 0, 1, 3), (33, 0, 0, 1, 7), (29, 0, 4, 0, 4)]),
        ("point", "00/00", "00/70", [(7, 1, 0)]),
        ("point", "1110/1010/1110", "2220/2020/2220", [(12, 0, 0)]),
        ("point", "123/456", "321/654", [(26, 2, 0)]),
        ("point", "12/34", "1212/3434", [(28, 2, 0), (33, 1, 3), (29, 0, 2)]),
    ],
)
def test_plans_match_examples(selection_format, before, target, plan):
    assert action_tuples(plan_pair(grid(before), grid(target), selection_format)) == plan


def test_mask_plan_fills_all_cells_of_a_color_at_once():
    actions = plan_pair(grid("000/000"), grid("303/040"), "mask", grid_shape=(2, 3))
    assert [int(action.operation) for action in actions] == [3, 4]
    assert np.asarray(actions[0].selection).tolist() == [[True, False, True], [False, False, False]]


def test_plan_ends_with_submit_if_requested():
    assert action_tuples(plan_pair(grid("1"), grid("2"), "point", submit=True)) == [(2, 0, 0), (34, 0, 0)]
    assert action_tuples(solution_actions(task("t", [("1", "1")]), 0, submit=True)) == [(34, 0, 0, 0, 0)]


grids = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=5
    )
)
allowed_operations = st.one_of(
    st.none(), st.sets(st.integers(0, 33)).map(lambda chosen: tuple(sorted(chosen | {0, 1, 2, 3, 33})))
)


@settings(max_examples=150, deadline=None)
@given(grids, grids, st.sampled_from(FORMATS), st.integers(5, 7), allowed_operations)
def test_plan_transforms_any_grid_with_allowed_operations(before, target, selection_format, side, allowed):
    actions = plan_pair(before, target, selection_format, grid_shape=(side, side), allowed_operations=allowed)
    result = apply_actions(
        np.array(before), actions, selection_format, config_for(selection_format, side, allowed=allowed)
    )
    assert np.array_equal(result, target)
    assert len(actions) <= num_cell_fills(np.array(before), np.array(target))


@each_format
def test_flood_fills_suffice_to_recolor_regions(selection_format):
    before, target = grid("1100/1000/0033"), grid("2200/2000/0044")
    actions = plan_pair(before, target, selection_format, allowed_operations=[12, 14])
    assert [int(action.operation) for action in actions] == [12, 14]
    assert np.array_equal(
        apply_actions(before, actions, selection_format, config_for(selection_format, 30)), target
    )


@each_format
def test_plan_fills_cells_if_paste_is_not_allowed(selection_format):
    allowed = [operation for operation in range(34) if operation != Operation.PASTE]
    actions = plan_pair(grid("12/34"), grid("1212/3434"), selection_format, allowed_operations=allowed)
    assert {int(action.operation) for action in actions} == {1, 2, 3, 4, 33}


def test_clear_replaces_fill_0():
    assert action_tuples(plan_pair(grid("111"), grid("100"), allowed_operations=[31])) == [(31, 0, 1, 0, 2)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan_pair(grid("0"), grid("3"), allowed_operations=[1, 2]), "would take some of Fill 3"),
        (lambda: plan_pair(grid("0"), grid("00"), allowed_operations=[0]), "1x2, not 1x1, and Resize is not"),
        (lambda: plan_pair(grid("0"), grid("1"), allowed_operations=[42]), "less than or equal to 41"),
        (lambda: plan_pair(grid("00"), grid("11"), grid_shape=(3, 1)), "1x2 does not fit a canvas of 3x1"),
        (lambda: plan_pair([[0]], [[10]]), r"output: cell \(0, 0\) must be a colou?r"),
        (lambda: plan_pair([[0]], [[1]], allowed_operations=[1], submit=True), "needs Submit"),
        (lambda: solution_actions(task("t", [("0", "1")]), 1), "'t' has pairs 0 to 0, got 1"),
        (
            lambda: solution_actions(task("t", [("0", "1")]), 0, allowed_operations=[2]),
            "task 't': pair 0: no plan",
        ),
        (
            lambda: solution_actions(ArcTask("t", (), (GridPair(grid("1"), None),)), 0),
            "task 't': pair 0 has no output",
        ),
    ],
)
def test_impossible_plans_are_reported(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_cell_fills_are_counted():
    assert num_cell_fills(grid("12/34"), grid("12/35")) == 1
    assert num_cell_fills(grid("12/34"), grid("120/440/000")) == 2
    assert num_cell_fills(grid("12/34"), grid("12/34")) == 0


@each_format
def test_generated_pairs_are_planned_without_solutions(selection_format):
    measured = measure_plans(generated_tasks(150, 8), selection_format)
    assert measured.exact.all()
    assert (measured.steps <= measured.cell_steps).all()
    max_ratio = {"point": 0.85, "bbox": 0.4, "mask": 0.4}
    assert np.median(measured.steps / measured.cell_steps) <= max_ratio[selection_format]


def test_plans_do_not_depend_on_earlier_plans():
    pairs = [pair for arc_task in generate_tasks(num_tasks=15, seed=6) for pair in arc_task.pairs]
    first = [action_tuples(plan_pair(pair.input, pair.output)) for pair in pairs]
    again = [action_tuples(plan_pair(pair.input, pair.output)) for pair in reversed(pairs)]
    assert first == again[::-1]


@pytest.mark.skipif(not SHARED.exists(), reason="the shared datasets are not available")
@each_format
def test_published_pairs_have_exact_and_short_plans(selection_format):
    measured = measure_plans(published_tasks(), selection_format)
    assert len(measured.exact) > 200 and measured.exact.all()
    max_ratio = {"point": 0.8, "bbox": 0.35, "mask": 0.2}
    assert measured.median_ratio() <= max_ratio[selection_format]
