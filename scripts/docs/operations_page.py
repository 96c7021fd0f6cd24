"""`docs/operations.md`: the table of operations, and a before-and-after picture of each.

What happens in the pictures is in `operation_scenes`; the drawing is that of `phalanx.arc.rendering`.
"""

from collections.abc import Iterator

from operation_scenes import SCENES, mask_of, play

from phalanx.arc.operations import CATEGORIES, OPERATIONS, Operation, OperationInfo
from phalanx.arc.rendering import StateSnapshot
from phalanx.arc.rendering.svg_cells import grid_block
from phalanx.arc.rendering.svg_task import arrow, status_pill
from phalanx.svg import MUTED, SvgBlock, hstack, text_block, to_drawing, vstack

FOLDER = "images/operations"
_CELL = 16

_ABOUT = {
    "fill": "The selected cells take a colour. Nothing outside the grid is painted.",
    "flood fill": "Exactly one cell must be selected; cells that touch at a corner only are not one region.",
    "move": "The selected object moves by one cell, and what it leaves becomes 0. With nothing selected the "
    "whole grid moves.",
    "transform": "The selected object turns or is mirrored within its box; its holes stay holes.",
    "clipboard": "An object is remembered with its shape, and survives a switch of pair.",
    "grid": "The whole grid, its size included.",
    "submit": "Hands the grid in. Solved means that size and content equal the target.",
    "pair": "Work goes on at another pair of the same task; the clipboard is kept.",
}


def picture_name(info: OperationInfo) -> str:
    """An operation's picture, as a file name."""
    return f"{info.id:02d}-{info.name.lower().replace(' ', '-')}.svg"


def draw_operation(info: OperationInfo) -> str:
    """The grid before with the cells that the action names, and the grid after its step, as SVG."""
    before, after = play(info.id)
    cells = SCENES[info.id].cells
    selects = info.category not in ("submit", "pair") and info.id != Operation.COPY_INPUT
    height, width = before.working.shape
    mask = mask_of(cells)[:height, :width] if selects else None
    left = grid_block(before.working, _CELL, selected=mask)
    right = grid_block(after.working, _CELL)
    blocks = [_with_note(left, info, before), arrow(), _with_note(right, info, after)]
    if info.category == "clipboard":
        remembered = grid_block(after.clipboard, 10)
        blocks.append(vstack([text_block("clipboard", 11, fill=MUTED), remembered], 6))
    return to_drawing(hstack(blocks, 12, "middle"), info.name).as_svg() + "\n"


def _with_note(grid: SvgBlock, info: OperationInfo, view: StateSnapshot) -> SvgBlock:
    if info.category == "submit":
        return vstack([grid, status_pill(view.status)], 8, "middle")
    if info.category == "pair":
        return vstack([grid, text_block(view.title.partition(" · ")[2], 11, fill=MUTED)], 8, "middle")
    return grid


def pictures() -> dict[str, str]:
    """Every picture by its path under docs/."""
    return {f"{FOLDER}/{picture_name(info)}": draw_operation(info) for info in OPERATIONS}


def page() -> str:
    """The page's Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# The 42 operations"
    yield ""
    yield (
        "What an action of [the ARC environment](arc.md#actions) can do. Each picture is one real step: on "
        "the left the grid with the selected cells outlined, on the right the grid after it. Ids 0 to 34 are "
        "those of O2ARC and JaxARC; an invalid action changes nothing but the step count."
    )
    yield ""
    yield (
        "This page and its pictures are made by `scripts/docs/generate.py`, which plays every step in the "
        "environment; a test holds them to what the engine does."
    )
    for category in CATEGORIES:
        rows = [info for info in OPERATIONS if info.category == category]
        yield from ("", f"## {category.capitalize()}", "", _ABOUT[category], "")
        yield "| id | operation | what it does | a step |"
        yield "| ---: | --- | --- | --- |"
        for info in rows:
            name = Operation(info.id).name
            picture = f"![{info.name}: before and after]({FOLDER}/{picture_name(info)})"
            yield f"| {info.id} | **{info.name}**<br>`{name}` | {info.text} | {picture} |"
