"""Regression tests for known bugs of earlier ARC environments (JaxARC 1.0.3, ARCLE 0.2.6)."""

import numpy as np
import pytest

from phalanx.arc.config import ActionConfig, ArcConfig, EpisodeConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from tests.helpers.arc_grids import mask, selection_text, task, text
from tests.helpers.arc_rollouts import BACKENDS, Player, Starts, read, skip_without, working

CANVAS = (30, 30)
OTHER_GRID = "98989"
UP, DOWN, LEFT, RIGHT, CLOCKWISE, COUNTERCLOCKWISE, FLIP_HORIZONTAL, FLIP_VERTICAL = range(20, 28)
COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE, SUBMIT, NEXT_DEMO = range(28, 36)
NEXT_TEST = 37
EMPTY = ""
ALL = np.ones(CANVAS, bool)


def serpentine() -> np.ndarray:
    """Return a 30x30 grid of zeros with a one-cell-wide path of 465 cells of color 1."""
    cells = np.zeros(CANVAS, int)
    cells[0::2] = 1
    cells[1::4, 29] = 1
    cells[3::4, 0] = 1
    return cells


TASKS = [
    task("dot", [("000/010/000", OTHER_GRID)]),
    task("bar", [("0000/0120/0000", OTHER_GRID)]),
    task("edge", [("12/34", OTHER_GRID)]),
    task("line", [("99999/91239/99999/99999", OTHER_GRID)]),
    task("zeros", [("1009/9999", OTHER_GRID)]),
    task("grow", [("12", "12/00")]),
    task(
        "pairs",
        [("1", OTHER_GRID), ("22", OTHER_GRID), ("333", OTHER_GRID)],
        [("4444", OTHER_GRID), ("55555", "555555")],
    ),
    task("small target", [("12/34", "1")]),
    ArcTask("serpentine", (GridPair(as_grid(serpentine()), as_grid([[9]])),), ()),
    task("one color", [("111/111/111", OTHER_GRID)]),
    task("nearly", [("11", "12")], [("33", "34"), ("666", "444")]),
]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


@pytest.fixture(scope="module")
def player(backend: str) -> Player:
    """Return a player in training mode with mask actions."""
    config = ArcConfig(
        action=ActionConfig(selection_format="mask"), episode=EpisodeConfig(max_episode_steps=1000)
    )
    return Player(backend, config, TASKS)


@pytest.fixture(scope="module")
def evaluation_player(backend: str) -> Player:
    """Return a player in evaluation mode with point actions, seven steps and few operations."""
    config = ArcConfig(
        action=ActionConfig(selection_format="point", allowed_operations=(3, 4, 5, SUBMIT, NEXT_TEST)),
        episode=EpisodeConfig(mode="evaluation", max_episode_steps=7),
    )
    return Player(backend, config, [one for one in TASKS if one.tests])


@pytest.mark.parametrize(
    ("operation", "grid"),
    [(UP, "010/000/000"), (DOWN, "000/000/010"), (LEFT, "000/100/000"), (RIGHT, "000/001/000")],
)
def test_moves_are_not_inverted(player: Player, operation: int, grid: str) -> None:
    state, *_ = player.play(player.start("dot"), (operation, "/.#"))
    assert working(state) == grid


@pytest.mark.parametrize(
    ("operation", "grid"), [(UP, "34/00"), (DOWN, "00/12"), (LEFT, "20/40"), (RIGHT, "01/03")]
)
def test_moved_object_does_not_wrap_around(player: Player, operation: int, grid: str) -> None:
    state, *_ = player.play(player.start("edge"), (operation, "##/##"))
    assert working(state) == grid


@pytest.mark.parametrize(
    ("operation", "grid"),
    [(CLOCKWISE, "99999/91009/92999/93999"), (COUNTERCLOCKWISE, "99999/93009/92999/91999")],
)
def test_object_of_any_shape_rotates_in_place(player: Player, operation: int, grid: str) -> None:
    state, *_ = player.play(player.start("line"), (operation, "/.###"))
    assert working(state) == grid
    assert selection_text(read(state, "selected")[0]) == "/.#/.#/.#"


@pytest.mark.parametrize(
    ("operation", "grid"),
    [
        (DOWN, "0009/1009"),
        (CLOCKWISE, "1009/0999"),
        (FLIP_HORIZONTAL, "0019/9999"),
        (FLIP_VERTICAL, "1009/9999"),
    ],
)
def test_cells_of_color_0_belong_to_the_object(player: Player, operation: int, grid: str) -> None:
    state, *_ = player.play(player.start("zeros"), (operation, "###"))
    assert working(state) == grid


def test_copied_cells_of_color_0_are_pasted(player: Player) -> None:
    state, *_ = player.play(player.start("zeros"), (COPY, "###"), (PASTE, "/.#"))
    assert working(state) == "1009/9100"


def test_resize_can_reach_a_larger_output(player: Player) -> None:
    state, _, reward, done, info = player.play(player.start("grow"), (RESIZE, "##/##"))
    assert working(state) == "12/00"
    assert done
    assert bool(info.solved[0])
    assert reward == pytest.approx(0.5 - 0.01 + 10)


def test_resize_takes_width_from_bounding_box(player: Player) -> None:
    state, *_ = player.play(player.start("edge"), (RESIZE, "####/#"))
    assert working(state) == "1200/3400"


def test_episode_starts_from_input_of_sampled_pair(player: Player) -> None:
    states = player.starts.states
    tasks, pairs = read(states, "task_index").tolist(), read(states, "pair_index").tolist()
    grids, inputs = read(states, "working_grid"), read(states, "input_grid")
    for row in range(200):
        expected = text(TASKS[tasks[row]].demos[pairs[row]].input)
        assert text(grids[row]) == expected
        assert text(inputs[row]) == expected


def test_evaluation_starts_from_first_test_input(evaluation_player: Player) -> None:
    grids = {text(cells) for cells in read(evaluation_player.starts.states, "working_grid")[:200]}
    assert grids == {"4444", "33"}


def test_evaluation_requires_every_test_grid_to_be_solved(evaluation_player: Player) -> None:
    first, second = (4, (0, 1)), [(4, (0, column)) for column in range(3)]
    start = evaluation_player.start("nearly", pair=1)
    state, _, reward, done, info = evaluation_player.play(start, first, (NEXT_TEST, (0, 0)), *second)
    assert working(state) == "444"
    assert not done and not info.solved[0] and info.similarity[0] == 0
    state, _, reward, done, info = evaluation_player.play(state, (SUBMIT, (0, 0)))
    assert done and bool(info.solved[0])
    assert reward == pytest.approx(10 - 0.01)
    # One correct grid of two does not solve the task.
    state, _, reward, done, info = evaluation_player.play(start, first, (SUBMIT, (0, 0)))
    assert done and not info.solved[0]
    assert reward == pytest.approx(-0.01)


def test_evaluation_does_not_reward_similarity(evaluation_player: Player) -> None:
    start = evaluation_player.play(evaluation_player.start("nearly", pair=1), (NEXT_TEST, (0, 0)))[0]
    state, _, better, _, _ = evaluation_player.play(start, (4, (0, 0)))
    assert float(state.similarity_score[0]) == 0
    _, _, idle, _, _ = evaluation_player.play(start, (5, (0, 0)))
    assert better == idle == pytest.approx(-0.01)


def test_grid_larger_than_target_is_not_solved(player: Player) -> None:
    start = player.start("small target")
    assert float(start.similarity_score[0]) == 0.25
    _, _, reward, done, info = player.play(start, (SUBMIT, EMPTY))
    assert done
    assert bool(info.terminated[0])
    assert not bool(info.solved[0])
    assert reward == pytest.approx(-0.01)


def test_flood_fill_reaches_all_465_cells_of_a_serpentine(player: Player) -> None:
    assert serpentine().sum() == 465
    start = mask("#", CANVAS)
    state, *_ = player.play(player.start("serpentine"), (17, start))
    np.testing.assert_array_equal(read(state, "working_grid")[0], np.where(serpentine() == 1, 7, 0))


def test_flood_fill_does_not_leak_through_the_padding_after_clear(player: Player) -> None:
    start = player.start("one color")
    state, *_ = player.play(start, (CLEAR, EMPTY), (5, ".#/.#/.#"), (17, "#"))
    assert working(state) == "750/750/750"


def test_clear_does_not_change_cells_outside_the_grid(player: Player) -> None:
    for cells in (EMPTY, ALL):
        state, observation, *_ = player.play(player.start("one color"), (CLEAR, cells))
        assert working(state) == text(np.asarray(observation)[0]) == "000/000/000"


def test_copy_input_restores_size(player: Player) -> None:
    state, *_ = player.play(player.start("edge"), (RESIZE, "/..#"), (CLEAR, EMPTY), (COPY_INPUT, EMPTY))
    assert working(state) == "12/34"
    assert (int(state.height[0]), int(state.width[0])) == (2, 2)


def test_operation_35_switches_pair_without_submitting(player: Player) -> None:
    state, _, _, done, info = player.play(player.start("pairs"), (NEXT_DEMO, EMPTY))
    assert not done
    assert working(state) == "22"
    assert int(info.operation_type[0]) == 35


@pytest.mark.parametrize("operation", [-1, 42, 99, 1000])
def test_unknown_operation_is_penalized_and_not_clipped(player: Player, operation: int) -> None:
    start = player.start("edge")
    state, _, reward, done, info = player.play(start, (operation, "##"))
    assert not done
    assert working(state) == "12/34"
    assert not read(state, "selected").any()
    assert reward == -1.0
    assert int(info.operation_type[0]) == -1
    assert int(state.step_count[0]) == 1


def test_allowed_operations_are_enforced(evaluation_player: Player) -> None:
    state, _, reward, _, info = evaluation_player.play(evaluation_player.start("pairs", pair=3), (7, (0, 0)))
    assert working(state) == "4444"
    assert reward == -1.0
    assert int(info.operation_type[0]) == -1
    state, _, reward, _, info = evaluation_player.play(state, (3, (0, 0)))
    assert working(state) == "3444"
    assert reward == pytest.approx(-0.01)
    assert int(info.operation_type[0]) == 3


@pytest.mark.parametrize("point", [(-1, 0), (0, 30), (30, 0), (99, 99)])
def test_point_outside_canvas_is_penalized_and_not_clipped(
    evaluation_player: Player, point: tuple[int, int]
) -> None:
    state, _, reward, _, info = evaluation_player.play(evaluation_player.start("pairs", pair=3), (5, point))
    assert working(state) == "4444"
    assert reward == -1.0
    assert int(info.operation_type[0]) == -1


def test_episode_is_truncated_at_max_episode_steps(evaluation_player: Player) -> None:
    state = evaluation_player.start("pairs", pair=3)
    for operation in (3, 4, 5, 3, 4, 99):
        state, _, _, done, info = evaluation_player.play(state, (operation, (0, 1)))
        assert not done
        assert not bool(info.truncated[0])
    state, _, _, done, info = evaluation_player.play(state, (5, (0, 1)))
    assert done
    assert bool(info.truncated[0])
    assert not bool(info.terminated[0])
    assert int(info.step_count[0]) == 7
    assert working(state) == "4544"


def test_default_episode_has_100_steps() -> None:
    assert ArcConfig().episode.max_episode_steps == 100


def test_point_pastes_entire_object(player: Player) -> None:
    state, *_ = player.play(player.start("bar"), (COPY, "/.##"), (PASTE, "#"))
    assert working(state) == "1200/0120/0000"


def test_later_steps_do_not_change_earlier_states(player: Player) -> None:
    start = player.start("edge")
    first, observation, *_ = player.play(start, (5, "#"))
    player.play(first, (6, "##/##"), (CUT, EMPTY), (RESIZE, "####/####"))
    assert working(start) == "12/34"
    assert working(first) == text(np.asarray(observation)[0]) == "52/34"
    assert selection_text(read(first, "selected")[0]) == "#"
    assert int(first.step_count[0]) == 1


def test_fill_never_writes_outside_the_grid(player: Player) -> None:
    state, observation, *_ = player.play(player.start("edge"), (6, ALL))
    assert working(state) == text(np.asarray(observation)[0]) == "66/66"
    grown, *_ = player.play(state, (RESIZE, "/../..#"))
    assert working(grown) == "660/660/000"


def test_sampled_pair_depends_only_on_key(player: Player) -> None:
    repeated = Starts(player.config, player.tasks).states
    states = player.starts.states
    np.testing.assert_array_equal(read(states, "task_index"), read(repeated, "task_index"))
    np.testing.assert_array_equal(read(states, "pair_index"), read(repeated, "pair_index"))
    on_pairs = read(states, "task_index") == player.tasks.index_of("pairs")
    counts = np.bincount(read(states, "pair_index")[on_pairs], minlength=3)
    assert len(counts) == 3
    # About 4096 / 11 samples are expected, a third for each pair.
    assert counts.min() > 80


def test_300_invalid_actions_do_not_overflow_step_count(player: Player) -> None:
    state = player.start("edge")
    for _ in range(300):
        state, _, reward, done, _ = player.play(state, (99, "#"))
        assert not done
        assert reward == -1.0
    assert int(state.step_count[0]) == 300
    state, *_ = player.play(state, (5, "#"))
    assert working(state) == "52/34"


def test_observations_are_in_observation_space(player: Player) -> None:
    environment = ArcEnvironment.create(player.config, player.tasks)
    _, observation, *_ = player.play(player.start("edge"), (9, "#"))
    assert environment.observation_space.contains(np.asarray(observation)[0])
