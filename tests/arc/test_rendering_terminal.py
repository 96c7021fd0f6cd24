"""Terminal rendering: colored blocks, digits without color, selections and narrow terminals."""

import io
import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from phalanx.arc.rendering import (
    StateSnapshot,
    episode_step,
    render_episode,
    render_grid,
    render_pair,
    render_state,
    render_task,
)
from phalanx.arc.rendering.palette import ARC, SAFE, rgb
from phalanx.arc.tasks import ArcTask, GridPair, as_grid

SMALL = as_grid([[0, 1, 2], [3, 4, 5]])
TASK = ArcTask(
    "corner-1",
    (GridPair(SMALL, as_grid([[7]])), GridPair(as_grid([[6]]), SMALL)),
    (GridPair(as_grid([[8, 8]]), None),),
    family="corner",
)
BIG = as_grid(np.arange(900).reshape(30, 30) % 10)


def render_plain(renderable: object, width: int = 80) -> list[str]:
    """Render without color and return the lines."""
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None, legacy_windows=False)
    console.print(renderable)
    return [line.rstrip() for line in console.export_text().splitlines()]


def render_colored(
    renderable: object, width: int = 80, system: str = "truecolor", no_color: bool = False
) -> str:
    """Render with color and return the output with its escape codes."""
    file = io.StringIO()
    console = Console(
        width=width,
        file=file,
        force_terminal=True,
        color_system=system,  # type: ignore[arg-type]
        no_color=no_color,
        legacy_windows=False,
    )
    console.print(renderable)
    return file.getvalue()


def background(color: str) -> str:
    return "48;2;" + ";".join(str(part) for part in rgb(color))


def test_cells_without_color_are_digits_with_stars_for_selection() -> None:
    mask = np.array([[False, True, False], [False, False, True]])
    assert render_plain(render_grid(SMALL, selected=mask)) == [
        "╭─ 2×3 ─╮",
        "│ 0*1 2 │",
        "│ 3 4*5 │",
        "╰───────╯",
    ]


def test_colored_cells_have_brackets_for_selection() -> None:
    mask = np.array([[False, True, False], [False, False, False]])
    output = render_colored(render_grid(SMALL, selected=mask))
    for value in range(6):
        assert output.count(background(ARC.colors[value])) == 1
    assert re.search(re.escape(background(ARC.colors[1])) + r"m\[\]", output)
    assert output.count("[]") == 1
    assert re.search(re.escape(background(ARC.colors[2])) + r"m  \x1b", output)


def test_safe_palette_is_used_in_terminal() -> None:
    output = render_colored(render_grid(SMALL, palette="safe"))
    assert background(SAFE.colors[3]) in output
    assert background(ARC.colors[3]) not in output


def test_16_color_terminal_also_shows_digits() -> None:
    assert "m 4" in render_colored(render_grid(SMALL), system="standard")
    assert "m 4" not in render_colored(render_grid(SMALL), system="256")


def test_no_color_shows_digits_on_color_terminal() -> None:
    output = render_colored(render_grid(SMALL), no_color=True)
    assert " 3 4 5" in output
    assert "48;2" not in output


def test_cells_outside_the_grid_are_not_shown() -> None:
    canvas = np.full((5, 6), -1)
    canvas[:2, :3] = SMALL
    assert render_plain(render_grid(canvas)) == render_plain(render_grid(SMALL))


def test_empty_cells_inside_the_grid_are_blank() -> None:
    assert render_plain(render_grid([[1, -1, 2]]))[1] == "│ 1   2 │"


def test_title_with_square_brackets_is_not_markup() -> None:
    assert render_plain(render_grid(SMALL, title="[red]a"))[0] == "╭─ [red]a 2×3 ─╮"


def test_pair_is_stacked_in_narrow_terminal() -> None:
    pair = GridPair(as_grid(np.zeros((1, 10), np.int8)), as_grid(np.ones((1, 10), np.int8)))
    wide, narrow = render_plain(render_pair(pair), 80), render_plain(render_pair(pair), 40)
    assert len(wide) == 3 and "input 1×10" in wide[0] and "output 1×10" in wide[0]
    assert len(narrow) == 6 and "input 1×10" in narrow[0] and "output 1×10" in narrow[3]


def test_secret_output_is_shown_as_question_mark() -> None:
    assert any("?" in line for line in render_plain(render_pair(TASK.tests[0])))


def test_task_shows_id_family_and_every_pair() -> None:
    shown = "\n".join(render_plain(render_task(TASK)))
    for text in ("corner-1", "corner", "demo 1 input 2×3", "demo 2 output 2×3", "test 1 input 1×2"):
        assert text in shown


@pytest.mark.parametrize("width", [80, 40])
def test_grid_of_30_columns_fits_terminal_width(width: int) -> None:
    lines = render_plain(render_pair(GridPair(BIG, BIG)), width)
    assert max(cell_len(line) for line in lines) <= width
    digits = [line.strip("│").replace(" ", "") for line in lines if line.startswith("│")]
    assert digits == ["0123456789" * 3] * 60


def test_too_narrow_terminal_reports_omitted_columns() -> None:
    lines = render_plain(render_grid(BIG), 22)
    assert lines[1] == "│01234567890123456789│"
    assert "+10 columns" in lines[-2]


def test_state_shows_grids_operation_step_and_status() -> None:
    mask = np.array([[True, False, False], [False, False, False]])
    clipboard = np.array([[9, -1], [9, 9]], np.int8)
    view = StateSnapshot(
        "corner-1 · demo 1 of 2", SMALL, SMALL, as_grid([[7]]), mask, clipboard, 24, 0.5, 3, True, False
    )
    shown = "\n".join(render_plain(render_state(view)))
    for text in (
        "corner-1 · demo 1 of 2",
        "step 3",
        "Rotate clockwise",
        "50.0%",
        "ended",
        "*0",
        "clipboard 2×2",
    ):
        assert text in shown
    assert "target" not in "\n".join(render_plain(render_state(view, show_target=False)))


@pytest.mark.parametrize("width", [80, 40])
def test_episode_names_operations_and_fits_width(width: int) -> None:
    mask = np.array([[False, False, True], [False, False, True]])
    steps = [episode_step(SMALL)]
    steps += [episode_step(SMALL, selected=mask, operation=25, step=1, reward=-0.01, similarity=0.25)]
    steps += [episode_step(SMALL, operation=34, step=2, reward=10.0, similarity=1.0, done=True, solved=True)]
    lines = render_plain(render_episode(steps, title="corner-1"), width)
    shown = "\n".join(lines)
    for text in (
        "0 Start",
        "1 Rotate counter-clockwise",
        "2×1 box at 0, 2",
        "−0.01",
        "2 Submit",
        "+10",
        "solved",
    ):
        assert text in shown
    assert max(cell_len(line) for line in lines) <= width


def test_long_episode_omits_middle_steps() -> None:
    steps = [episode_step(SMALL, operation=31, step=i) for i in range(50)]
    shown = "\n".join(render_plain(render_episode(steps, max_steps=4), 40))
    assert "… 46 steps omitted …" in shown
    assert [int(n) for n in re.findall(r"(\d+) Clear", shown)] == [0, 1, 48, 49]
