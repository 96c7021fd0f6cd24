"""The Textual app for ARC puzzles, and the error messages of its command."""

import asyncio
import colorsys
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from rich._palettes import EIGHT_BIT_PALETTE
from rich.color import ColorSystem
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from phalanx.arc.operations import OPERATIONS, Operation
from phalanx.arc.play.app import PlayApp
from phalanx.arc.play.grids import GridView, PaletteBar, WorkingGridView, _cell_style, terminal_palette
from phalanx.arc.play.keys import FILL, FLOOD, MOVE, PASTE, TOOLS, key_text
from phalanx.arc.play.panes import (
    HelpScreen,
    OperationPanel,
    OperationsScreen,
    PairView,
    UnsavedEpisodeDialog,
)
from phalanx.arc.play.recording import EpisodeSampleFile
from phalanx.arc.play.session import PlayTestPair, play_config
from phalanx.arc.rendering.palette import palette_named
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from phalanx.cli.play import _summary
from phalanx.compat.chuk_lazarus.data.batching.streaming import OfflineDatasetStream

pytestmark = pytest.mark.slow

PAIR = GridPair(as_grid([[1, 2, 0], [0, 0, 0]]), as_grid([[1, 2, 0], [0, 0, 5]]))
TASKS = [ArcTask("one", (PAIR, PAIR), (PAIR,)), ArcTask("two", (PAIR,), (PAIR,))]
WIDE, NARROW = (120, 40), (80, 24)

Play = Callable[[PlayApp, Pilot], Any]


@pytest.fixture
def create_app(tmp_path: Path) -> Callable[..., PlayApp]:
    """Return a function that creates the app; its file is `demos.jsonl` in `tmp_path`."""

    def create(selection: Any = "bbox", **options: Any) -> PlayApp:
        file = EpisodeSampleFile(tmp_path / "demos.jsonl")
        return PlayApp([PlayTestPair(task) for task in TASKS], play_config(selection), file, **options)

    return create


def run(app: PlayApp, play: Play, size: tuple[int, int] = NARROW) -> PlayApp:
    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await play(app, pilot)

    asyncio.run(go())
    return app


def grid(app: PlayApp) -> list[list[int]]:
    cells: list[list[int]] = app.query_one(WorkingGridView).cells.tolist()
    return cells


def shown_text(app: PlayApp, part: str = "message") -> str:
    return str(app.query_one(f"#{part}", Static).render())


async def click(pilot: Pilot, row: int, col: int, action: str = "click", **keys: Any) -> None:
    region = pilot.app.query_one(WorkingGridView).region_of(row, col)
    await getattr(pilot, action)(WorkingGridView, offset=(region.x + 1, region.y), **keys)
    await pilot.pause()


async def drag(pilot: Pilot, start: tuple[int, int], end: tuple[int, int]) -> None:
    await click(pilot, *start, action="mouse_down")
    await click(pilot, *end, action="hover")
    await click(pilot, *end, action="mouse_up")


async def click_operation(pilot: Pilot, name: str) -> None:
    panel = pilot.app.query_one(OperationPanel)
    line = next(index for index, entry in enumerate(panel.entries) if entry[1] == name)
    await pilot.click(OperationPanel, offset=(6, line + 1))
    await pilot.pause()


def test_puzzle_is_solved_and_saved_with_keyboard(create_app: Any, tmp_path: Path) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        assert "right" not in shown_text(app, "title")  # similarity is shown only if enabled
        await pilot.press("5", "down", "l", "right", "space")
        assert grid(app) == [[1, 2, 0], [0, 0, 5]]
        assert "row 2, column 3" in str(app.query_one("#board-frame").border_subtitle)
        await pilot.press("s")
        assert shown_text(app) == "SOLVED in 2 steps. w: save, n: next task."
        assert app.query_one("#message").has_class("solved")
        await pilot.press("w", "w")
        assert shown_text(app) == "SOLVED in 2 steps. n: next task."

    app = run(create_app(), play)
    samples = list(OfflineDatasetStream(tmp_path / "demos.jsonl"))
    assert [sample.success for sample in samples] == [True, True]
    assert samples[0].dataset_id == "play-one" and samples[0].total_steps == 2
    assert _summary(app) == f"solved 1 task; 1 episode of 2 steps saved in {tmp_path / 'demos.jsonl'}"


def test_puzzle_is_solved_with_mouse(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.click(PaletteBar, offset=(4 * 5 + 1, 0))
        assert shown_text(app, "tool") == "Fill gray" and app.color == 5
        await click(pilot, 1, 2)
        assert grid(app) == [[1, 2, 0], [0, 0, 5]]
        await click_operation(pilot, "Submit")
        assert app.session.solved

    run(create_app(), play, WIDE)


def test_drag_selects_box_and_click_fills_it(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await drag(pilot, (1, 2), (0, 1))
        assert app.board.cursor.box == (0, 1, 1, 2) and not app.session.actions
        assert "2×2 selected" in str(app.query_one("#board-frame").border_subtitle)
        await pilot.press("4")
        await click(pilot, 1, 1)
        assert grid(app) == [[1, 4, 4], [0, 4, 4]] and len(app.session.actions) == 1
        await click(pilot, 1, 0)
        assert grid(app) == [[1, 4, 4], [4, 4, 4]] and app.board.cursor.is_single
        # A click on an operation applies it to the selection; Paste waits for a cell.
        await drag(pilot, (0, 0), (0, 1))
        await click_operation(pilot, "Copy")
        await click_operation(pilot, "Paste")
        assert app.tool is PASTE
        await click(pilot, 1, 1)
        assert grid(app) == [[1, 4, 4], [4, 1, 4]]

    run(create_app(), play, WIDE)


def test_undo_reverts_actions_and_submissions(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("3", "space", "s")
        assert shown_text(app).startswith("NOT SOLVED. u: undo the last step")
        assert app.query_one("#message").has_class("failed")
        await pilot.press("space")  # ignored: the episode has ended
        assert len(app.session.actions) == 2
        await pilot.press("u")
        assert not app.query_one("#message").has_class("failed") and not app.session.ended
        await pilot.press("u", "u")
        assert grid(app) == PAIR.input.tolist()
        await pilot.press("U")
        assert grid(app) == [[3, 2, 0], [0, 0, 0]]
        await pilot.press("2", "space", "r", "w")
        assert grid(app) == PAIR.input.tolist() and not app.session.actions
        assert not app.file.path.exists()

    run(create_app(), play)


def test_arrow_keys_move_selected_cells(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("shift+right", "m", "down", "right")
        assert app.tool is MOVE and grid(app) == [[0, 0, 0], [0, 1, 2]]
        assert app.board.cursor.box == (1, 1, 1, 2)
        await pilot.press("escape", "ctrl+up")
        assert app.tool is FILL and grid(app) == [[0, 0, 2], [0, 1, 0]]

    run(create_app(), play)


def test_grid_is_resized_to_selected_cell(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("z")
        assert app.board.display_shape == (30, 30)
        await click(pilot, 2, 3)
        assert grid(app) == [[1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
        assert app.tool is FILL and app.board.display_shape == (3, 4)
        await pilot.press("z", "up", "up", "up", "left", "left", "enter")
        assert grid(app) == [[1, 2]]
        assert (app.board.cursor.row, app.board.cursor.col) == (0, 1)

    run(create_app(), play)


def test_single_cells_are_added_to_selection(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("7")
        await click(pilot, 0, 0, control=True)
        await click(pilot, 1, 2, control=True)
        await pilot.press("up", "i", "space")
        assert grid(app) == [[7, 2, 7], [0, 0, 7]] and len(app.session.actions) == 1

    run(create_app("mask"), play)


def test_every_operation_has_keys(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        selected_key = ""
        for info in OPERATIONS:
            first, *rest = key_text(info.id).split()
            # A tool stays selected, so its key is not pressed again for each color.
            await pilot.press(*([first] if first != selected_key or not rest else []), *rest)
            selected_key = first
            assert app.session.actions, info
            assert int(app.session.actions[-1].operation) == info.id, info
            app.session.restart()

    run(create_app(), play)


def test_every_operation_is_listed(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {info.name for info in OPERATIONS} <= titles
        await pilot.press("a")
        assert isinstance(app.screen, OperationsScreen)
        assert app.screen.query_one(OptionList).option_count == len(OPERATIONS)
        await pilot.press(*["down"] * int(Operation.FLOOD_FILL_3), "enter")
        assert (app.tool, app.color) == (FLOOD, 3) and not app.session.actions
        await pilot.press("down", "space")
        assert grid(app) == [[1, 2, 3], [3, 3, 3]]
        for info in OPERATIONS:
            app.session.restart()
            app.tool = FILL
            app.action_choose(info.id)
            operations = [int(action.operation) for action in app.session.actions]
            assert operations == [info.id] or (not operations and app.tool.operation(app.color) == info.id)
        app.session.restart()
        for tool in TOOLS:
            await click_operation(pilot, tool.name)
            assert app.tool is tool

    run(create_app(), play, WIDE)


def test_layout_fits_wide_and_narrow_terminals(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        assert app.query_one(OperationPanel).display and app.board.scale == 3
        await pilot.resize_terminal(*NARROW)
        await pilot.pause()
        assert not app.query_one(OperationPanel).display
        for part in ("#title", "#input", "#board", "PaletteBar", "Footer"):
            region = app.query(part).first().region
            assert region.width > 0 and region.right <= 80 and region.bottom <= 24, part
        assert all(pair.region.right <= 40 for pair in app.query(PairView))
        await click(pilot, 1, 2)
        assert grid(app) == [[1, 2, 0], [0, 0, 1]]
        await pilot.press("z", "right", "space")
        assert app.board.cells.shape == (2, 4)

    run(create_app(), play, WIDE)


def test_large_demonstrations_are_drawn_with_half_blocks(create_app: Any) -> None:
    large = GridPair(as_grid([[1] * 15] * 15), as_grid([[2] * 15] * 14))
    app = create_app()
    app.tasks = [PlayTestPair(ArcTask("large", (large,), (large,))), *app.tasks]
    app.index = len(app.tasks) - 1

    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("n")
        await pilot.pause()
        assert app.query_one(PairView).grids[0].scale == 0
        view = app.query_one("#input", GridView)
        assert (view.size.width, view.size.height) == (15, 8)
        assert "▀" in view.render_line(7).text and view.region.width == 15

    run(app, play)


def test_help_opens_and_closes(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("?")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("5", "space", "u", "s")  # not handled by the screen below
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen) and not app.session.actions

    run(create_app(), play)


def test_similarity_is_shown_if_enabled(create_app: Any) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        assert "83.3% of the cells are correct" in shown_text(app, "title")

    run(create_app(show_similarity=True), play)


def test_leaving_unsaved_solution_asks_for_confirmation(create_app: Any, tmp_path: Path) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("5", "down", "right", "right", "space", "s", "n")
        assert isinstance(app.screen, UnsavedEpisodeDialog)
        await pilot.press("escape")
        assert app.index == 0 and app.session.solved
        await pilot.press("n", "l")
        await pilot.pause()
        assert app.index == 1 and not app.session.actions and "two" in shown_text(app, "title")
        assert not (tmp_path / "demos.jsonl").exists()
        await pilot.press("down", "right", "right", "space", "s", "q")
        assert isinstance(app.screen, UnsavedEpisodeDialog)
        await pilot.press("w")
        await pilot.pause()
        assert app._exit

    app = run(create_app(), play)
    assert app.solved == {0, 1}
    assert len((tmp_path / "demos.jsonl").read_text().splitlines()) == 2


def test_failed_save_does_not_end_the_game(create_app: Any, tmp_path: Path) -> None:
    async def play(app: PlayApp, pilot: Pilot) -> None:
        await pilot.press("s")
        (tmp_path / "demos.jsonl").write_text("mine\n")
        await pilot.press("w")
        assert app.saved_episodes == 0 and app.is_running

    run(create_app(), play)
    assert (tmp_path / "demos.jsonl").read_text() == "mine\n"


def hue(number: int) -> float:
    """Return the hue of a color of the 256-color palette in degrees."""
    triplet = EIGHT_BIT_PALETTE[number]
    return 360 * colorsys.rgb_to_hsv(triplet.red, triplet.green, triplet.blue)[0]


@pytest.mark.parametrize("name", ["arc", "safe"])
def test_256_color_palette_has_distinguishable_colors(name: str) -> None:
    palette = terminal_palette(palette_named(name), "256")
    shown = {}
    for color in range(10):
        styles = [_cell_style(palette, color, other, False) for other in (False, True)]
        numbers = [style.bgcolor.downgrade(ColorSystem.EIGHT_BIT).number for style in styles if style.bgcolor]
        shown[color] = numbers
        first, second = numbers
        difference = abs(hue(first) - hue(second)) % 360
        assert first != second and min(difference, 360 - difference) < 15, (
            f"{palette.names[color]}: {numbers}"
        )
    all_numbers = [number for pair in shown.values() for number in pair]
    assert len(set(all_numbers)) == 20
    if name == "arc":
        assert shown[9] == [88, 52], "maroon and darker maroon, and no purple"


def test_palette_depends_on_terminal_color_system(
    create_app: Callable[..., PlayApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "color_system", property(lambda console: "256"))
    assert create_app().palette.name == "arc-256" and create_app(palette="safe").palette.name == "safe-256"
    monkeypatch.setattr(Console, "color_system", property(lambda console: "truecolor"))
    assert create_app().palette is palette_named("arc")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command detect a terminal."""
    monkeypatch.setattr("phalanx.cli.play._is_terminal", lambda: True)


def test_command_requires_a_terminal(phalanx: Any) -> None:
    result = phalanx("play", "arc")
    assert result.code == 2 and result.err.startswith("phalanx: phalanx play needs a terminal")


@pytest.mark.usefixtures("terminal")
def test_command_reports_missing_extra(phalanx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "phalanx.arc.play.app")
    result = phalanx("play", "arc")
    assert (result.code, result.err) == (
        2,
        "phalanx: phalanx play needs textual: pip install 'phalanx[play]'\n",
    )


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "x", "--data", "TASK"), "no task 'x' among the 1 selected tasks"),
        (("--data", "nowhere"), "nowhere: no such file or folder, and no dataset of that name"),
        (("--out", "demos.csv"), "the file must end in .jsonl, got 'demos.csv'"),
        (("--grids", "input,colors"), "grids must be some of input, working, target, got 'colors'"),
    ],
)
def test_invalid_arguments_are_reported(phalanx: Any, tmp_path: Path, arguments: Any, message: str) -> None:
    path = tmp_path / "task.json"
    path.write_text(json.dumps(TASKS[0].to_dict()))
    result = phalanx("play", "arc", *(path if argument == "TASK" else argument for argument in arguments))
    assert result.code == 2 and message in result.err and "Traceback" not in result.err


@pytest.mark.usefixtures("terminal")
def test_command_runs_app_and_prints_summary(
    phalanx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "task.json"
    path.write_text(json.dumps(TASKS[0].to_dict()))
    apps: list[PlayApp] = []
    monkeypatch.setattr(PlayApp, "run", lambda app: apps.append(app))
    result = phalanx(
        "play",
        "arc",
        "--task",
        "task",
        "--data",
        path,
        "--format",
        "mask",
        "--no-submit",
        "--max-steps",
        9,
        "--show-similarity",
    )
    assert (result.code, result.out) == (0, "solved 0 tasks; nothing was saved\n")
    config = apps[0].config
    assert config.action.selection_format == "mask" and config.episode.max_episode_steps == 9
    assert not config.episode.require_submit and apps[0].tasks == [PlayTestPair(apps[0].tasks[0].task)]
