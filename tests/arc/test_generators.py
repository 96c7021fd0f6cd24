"""Generated tasks are deterministic, different for different seeds, and have shortest solutions."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.arc.config import ArcConfig, DatasetConfig
from phalanx.arc.generators import (
    FAMILIES,
    TaskFamily,
    generate_task,
    generate_tasks,
    register_family,
)
from phalanx.arc.generators.placement import least_operations, one_paste_suffices
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import ArcTask, SolutionStep
from tests.reference.arc import reset_oracle, step_oracle
from tests.reference.arc_search import COPY, CUT, PASTE, boxes, in_one, in_two, pasted_grids, replay

pytestmark = pytest.mark.slow

NAMES = list(FAMILIES)
SIZES = [(3, 3), (4, 3), (5, 5), (6, 9), (3, 30), (30, 4), (30, 30)]

each_family = pytest.mark.parametrize("family", NAMES)


def solved_pairs(task: ArcTask):
    """Yield the input, output and solution of every pair."""
    for pair, solution in zip(task.pairs, task.solutions, strict=True):
        yield pair.input, pair.output, solution


def task_content(task: ArcTask):
    """Return the entire content of a task for comparisons."""
    return task.fingerprint, tuple(tuple(map(dataclasses.astuple, steps)) for steps in task.solutions)


def grid(text: str) -> np.ndarray:
    return np.array([[int(cell) for cell in row] for row in text.split("/")], np.int8)


def test_documented_families_exist():
    assert list(FAMILIES) == NAMES
    assert NAMES[:12] == [
        "recolor",
        "fill_enclosed",
        "complete_symmetry",
        "move_until_hit",
        "mirror",
        "rotate",
        "crop_to_object",
        "extend_line",
        "count_to_color",
        "draw_border",
        "gravity",
        "denoise",
    ]
    assert all(name == family.name and family.description.endswith(".") for name, family in FAMILIES.items())


@each_family
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_solution_of_every_pair_gives_its_output(family, size):
    height, width = size
    for seed in range(3):
        task = generate_task(family, seed, height=height, width=width)
        for before, after, solution in solved_pairs(task):
            assert before.shape == size
            assert np.array_equal(replay(before, solution), after), (task.id, solution)


@each_family
def test_solution_solves_episode_exactly_at_its_last_step(family):
    config = ArcConfig(dataset=DatasetConfig(max_grid_height=7, max_grid_width=7))
    for seed in range(2):
        task = generate_task(family, seed, max_size=7)
        for pair, solution in enumerate(task.solutions):
            state = reset_oracle(task, pair, config)
            solved = []
            for step in solution:
                box = step.r1, step.c1, step.r2, step.c2
                state, _, _, info = step_oracle(state, "bbox", step.operation, box, config)
                solved.append(bool(info["solved"]))
            assert solved == [False] * (len(solution) - 1) + [True]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 10**9), st.integers(3, 30), st.integers(3, 30))
def test_tasks_are_valid_for_any_seed_and_size(family, seed, height, width):
    task = generate_task(family, seed, height=height, width=width)
    assert task.id == f"{family}-{seed:06d}"
    assert task.family == family
    assert (len(task.demos), len(task.tests)) == (3, 1)
    assert len({pair.input.tobytes() for pair in task.pairs}) == 4
    for before, after, solution in solved_pairs(task):
        for cells in (before, after):
            assert cells.dtype == np.int8
            assert cells.min() >= 0 and cells.max() <= 9
            assert not cells.flags.writeable and cells.flags.c_contiguous
        assert not np.array_equal(before, after)
        assert 1 <= len(solution) <= 6
        assert np.array_equal(replay(before, solution), after)
        for step in solution:
            assert all(type(value) is int for value in dataclasses.astuple(step))
            assert 0 <= step.operation <= Operation.RESIZE
            assert 0 <= step.r1 <= step.r2 < height and 0 <= step.c1 <= step.c2 < width
        if FAMILIES[family].point_solvable:
            assert all((step.r1, step.c1) == (step.r2, step.c2) for step in solution)


def test_point_solvable_families_select_single_cells():
    def selects_points(family: str) -> bool:
        tasks = generate_tasks((family,), 6)
        steps = [step for task in tasks for solution in task.solutions for step in solution]
        return all((step.r1, step.c1) == (step.r2, step.c2) for step in steps)

    point_solvable = {name for name, family in FAMILIES.items() if family.point_solvable}
    assert point_solvable == {name for name in NAMES if selects_points(name)}
    assert len(point_solvable) >= 3


@each_family
def test_no_single_operation_replaces_a_longer_solution(family):
    for seed, (height, width) in enumerate([(3, 3), (4, 3), (4, 5), (5, 6)]):
        task = generate_task(family, seed, height=height, width=width, num_demos=1)
        for before, after, solution in solved_pairs(task):
            assert in_one(before, after) == (len(solution) == 1), (task.id, before, after)


@pytest.mark.parametrize("family", ["crop_to_object", "denoise"])
def test_no_two_operations_replace_a_solution_of_three(family):
    """Other families need three steps only on grids that are too large for an exhaustive search."""
    tasks = [generate_task(family, seed, height=4, width=4) for seed in range(6)]
    cases = [case for task in tasks for case in solved_pairs(task) if len(case[2]) == 3]
    assert len(cases) >= 2
    for before, after, _ in cases[:2]:
        assert not in_two(before, after), (before, after)


@each_family
@pytest.mark.parametrize("size", [(5, 5), (12, 9), (30, 30)], ids=str)
def test_premises_of_optimality_proofs_hold_at_every_size(family, size):
    """Check the conditions on which the optimality proof in each family's docstring relies."""
    longest = 0
    for seed in range(5):
        task = generate_task(family, seed, height=size[0], width=size[1])
        for before, after, solution in solved_pairs(task):
            bound, length = least_operations(before, after), len(solution)
            longest = max(longest, length)
            assert bound <= length
            if family in (
                "recolor",
                "fill_enclosed",
                "extend_line",
                "fill_rooms",
                "stamp",
                "count_to_color",
            ):
                assert bound == length
            elif family in ("complete_symmetry", "denoise"):
                assert bound == min(length, 2) and length <= 3 and (after > 0).all()
                assert length < 3 or not one_paste_suffices(before, after)
            elif family == "draw_border":
                rings = len(set(after.ravel().tolist()) - set(before.ravel().tolist()))
                assert bound == rings and length == rings + (length > 1)
            elif family == "crop_to_object":
                assert length == (2 if before[:2, :2].any() and solution[0].operation < COPY else 3)
            else:
                assert length <= 2
    if size == (30, 30):
        long_families = (
            "recolor",
            "fill_enclosed",
            "extend_line",
            "fill_rooms",
            "stamp",
            "draw_border",
            "denoise",
        )
        assert longest >= (3 if family in long_families else 1)


def test_reference_search_finds_shortcuts():
    assert in_one(grid("100"), grid("001"))
    assert not in_one(grid("1200"), grid("0012")) and in_two(grid("1200"), grid("0012"))
    assert not in_two(grid("123/000/000"), grid("321/222/444"))
    assert in_two(grid("000/012/034"), grid("120/340")) is False
    assert in_two(grid("000/120/340"), grid("12/34"))


def test_least_operations_counts_color_and_size_changes():
    assert least_operations(grid("12"), grid("12")) == 0
    assert least_operations(grid("120"), grid("012")) == 1
    assert least_operations(grid("1020"), grid("3040")) == 2
    assert least_operations(grid("1200"), grid("1212")) == 2
    assert least_operations(grid("12300000"), grid("12312300")) == 2
    assert least_operations(grid("1000/2000/3000"), grid("1111/2222/3333")) == 3
    assert least_operations(grid("12/34"), grid("5")) == 2


@st.composite
def edits(draw):
    """Draw a small grid and a few random operations on it."""
    rows, cols = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    cells = draw(st.lists(st.integers(0, 4), min_size=rows * cols, max_size=rows * cols))
    operations = st.one_of(
        st.sampled_from([1, 2, 7, 8, 11, 12, 17, 18]),
        st.sampled_from([COPY, CUT, PASTE, PASTE]),
        st.integers(20, 32),
    )
    steps = draw(st.lists(st.tuples(operations, st.sampled_from(boxes(rows, cols))), min_size=1, max_size=6))
    return np.array(cells, np.int8).reshape(rows, cols), tuple(SolutionStep(op, *box) for op, box in steps)


@settings(max_examples=200, deadline=None)
@given(edits())
def test_least_operations_is_a_lower_bound(edit):
    before, steps = edit
    assert least_operations(before, replay(before, steps)) <= len(steps)


@settings(max_examples=100, deadline=None)
@given(edits())
def test_one_paste_suffices_matches_search(edit):
    before, steps = edit
    after = replay(before, steps[:2])
    by_search = any(np.array_equal(copied, after) for copied, _ in pasted_grids(before))
    assert one_paste_suffices(before, after) == by_search


def test_generation_is_deterministic():
    for family in NAMES:
        assert task_content(generate_task(family, 5)) == task_content(generate_task(family, 5))
    assert [*map(task_content, generate_tasks(("mirror",), 3, 7))] == [
        *map(task_content, generate_tasks(("mirror",), 3, 7))
    ]


def test_tasks_do_not_depend_on_other_families():
    mixed = generate_tasks(("gravity", "mirror"), 6, seed=2)
    single_family = generate_tasks(("mirror",), 3, seed=2)
    assert [task.id for task in mixed][:3] == ["gravity-4000000", "mirror-4000000", "gravity-4000002"]
    assert [task_content(task) for task in mixed[1::2]] == [task_content(task) for task in single_family]
    assert task_content(generate_task("mirror", 4000002)) == task_content(single_family[1])


def test_families_alternate():
    tasks = generate_tasks(num_tasks=2 * len(NAMES) + 1)
    assert [task.family for task in tasks] == [*NAMES, *NAMES, NAMES[0]]


def test_different_seeds_give_different_tasks():
    tasks = [task for seed in range(4) for task in generate_tasks(("recolor", "crop_to_object"), 12, seed)]
    grids = {tuple(pair.input.tobytes() for pair in task.pairs) for task in tasks}
    assert len(grids) == len({task.id for task in tasks}) == 48


@each_family
def test_evaluation_inputs_do_not_occur_in_training(family):
    size = {"max_height": 3, "max_width": 3}
    training = generate_tasks((family,), 8, **size)
    evaluation = generate_tasks((family,), 8, split="evaluation", **size)
    training_inputs = {(pair.input.shape, pair.input.tobytes()) for task in training for pair in task.pairs}
    evaluation_inputs = {
        (pair.input.shape, pair.input.tobytes()) for task in evaluation for pair in task.pairs
    }
    assert not training_inputs & evaluation_inputs
    assert not {task.id for task in training} & {task.id for task in evaluation}


def test_sizes_cover_the_requested_range():
    tasks = generate_tasks(("gravity",), 40, min_height=3, max_height=5, min_width=7, max_width=8)
    shapes = {pair.input.shape for task in tasks for pair in task.pairs}
    assert shapes == {(h, w) for h in (3, 4, 5) for w in (7, 8)}
    assert generate_task("gravity", 0, height=12, min_size=4, max_size=4).demos[0].input.shape == (12, 4)


def test_number_of_pairs_is_configurable():
    task = generate_task("denoise", 1, num_demos=5, num_tests=2)
    assert (len(task.demos), len(task.tests), len(task.solutions)) == (5, 2, 7)
    assert generate_task("denoise", 1, num_demos=0).demos == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generate_task("recolour", 0), "unknown task family 'recolour'; did you mean 'recolor'"),
        (lambda: generate_tasks(("gravty",)), "did you mean 'gravity'"),
        (lambda: generate_task("xyzzy", 0), "unknown task family 'xyzzy'; choose from recolor"),
        (lambda: generate_task("mirror", 0, height=2), "mirror needs a height of at least 3, got at most 2"),
        (lambda: generate_task("mirror", 0, width=31), "width must be between 3 and 30, got 31"),
        (lambda: generate_task("mirror", 0, max_size=40), "min_size and max_size must satisfy 3 <= min"),
        (lambda: generate_task("mirror", 0, min_size=8, max_size=7), "got 8 and 7"),
        (lambda: generate_tasks(max_height=2), "min_height and max_height must satisfy"),
        (lambda: generate_tasks(min_width=0), "min_width and max_width must satisfy"),
        (lambda: generate_task("mirror", -1), "seed must not be negative, got -1"),
        (lambda: generate_task("mirror", 0, num_demos=0, num_tests=0), "at least one pair"),
        (lambda: generate_tasks(num_tasks=0), "num_tasks must be between 1 and"),
        (lambda: generate_tasks(("mirror", "mirror")), "occurs twice"),
        (lambda: generate_task("draw_border", 0, height=3, width=3, num_demos=300), "use fewer pairs"),
    ],
)
def test_invalid_arguments_are_reported(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_family_rejects_grids_below_min_size():
    wide = TaskFamily("wide", "A test.", FAMILIES["gravity"].sample_rule, min_size=5)
    with pytest.raises(ValueError, match="wide: width must be between 5 and 30, got 4"):
        wide.generate(np.random.default_rng(0), 6, 4)


def test_generating_1000_tasks_takes_less_than_two_seconds():
    # Run in a separate process, without the runtime type checking that the tests enable.
    code = """
import time
from phalanx.arc.generators import generate_tasks
start = time.process_time()
generate_tasks(num_tasks=1000, min_height=10, min_width=10)
print(time.process_time() - start)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(process.stdout) < 2.0


def test_registered_family_needs_unique_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "mine", FAMILIES["recolor"])
    with pytest.raises(ValueError, match="there already is a task family 'mine'"):
        register_family(dataclasses.replace(FAMILIES["recolor"], name="mine"))
    monkeypatch.delitem(FAMILIES, "mine")
    assert register_family(dataclasses.replace(FAMILIES["recolor"], name="mine")) is FAMILIES["mine"]
    assert generate_task("mine", seed=1).family == "mine"
