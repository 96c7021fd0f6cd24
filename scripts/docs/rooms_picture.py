"""`docs/images/rooms.svg`: every room of the package with its sub-rooms and modules, as they lie in the tree.

Drawn from the folders themselves, so that it cannot be out of date; how data flows is in
`architecture_picture`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from architecture_picture import FONT, rectangle, text

from phalanx.core.drawing import ACCENT, BORDER, CARD, MUTED, SHEET, TEXT

PACKAGE = Path(__file__).parents[2] / "src" / "phalanx"
LAYERS = (
    ("cli",),
    ("agents",),
    ("adapters", "runs", "streams"),
    ("arc", "proofs", "puzzles", "tokens", "logs"),
    ("core",),
)
"""From the top down: a room imports from rooms further down only. `make lint` holds the code to it."""

_WIDTH, _MARGIN, _GAP, _LINE = 1200, 16, 12, 15
_CHARACTERS_A_PIXEL = 1 / 5.9


class Room(NamedTuple):
    """A package: its modules, and the packages in it."""

    name: str
    modules: tuple[str, ...]
    rooms: tuple["Room", ...]


def room(folder: Path) -> Room:
    """A folder of the package as a room."""
    modules = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("__"))
    inner = sorted(path.parent for path in folder.glob("*/__init__.py"))
    return Room(folder.name, tuple(modules), tuple(room(path) for path in inner))


def draw() -> str:
    """The picture as SVG."""
    elements: list[str] = []
    top = float(_MARGIN)
    for layer in LAYERS:
        width = (_WIDTH - 2 * _MARGIN - _GAP * (len(layer) - 1)) / len(layer)
        cards = [_lines(room(PACKAGE / name), width) for name in layer]
        height = 34 + _LINE * max(len(lines) for lines in cards)
        for number, (name, lines) in enumerate(zip(layer, cards, strict=True)):
            elements += _card(_MARGIN + number * (width + _GAP), top, width, height, name, lines)
        top += height + _GAP
    height = top - _GAP + _MARGIN
    return "\n".join([*_opening(height), *elements, "</svg>"]) + "\n"


def _opening(height: float) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:g}" viewBox="0 0 {_WIDTH} '
        f'{height:g}" font-family="{FONT}" role="img" style="max-width:100%;height:auto">'
    )
    yield "<title>The rooms of Phalanx and their modules</title>"
    yield rectangle(0.5, 0.5, _WIDTH - 1, height - 1, 14, SHEET, BORDER)


def _card(x: float, y: float, width: float, height: float, name: str, lines: list[str]) -> Iterator[str]:
    yield rectangle(x, y, width, height, 9, CARD, ACCENT)
    yield text(x + 12, y + 20, name, 14, TEXT, bold=True)
    for number, line in enumerate(lines):
        yield text(x + 12, y + 38 + _LINE * number, line, 11, MUTED)


def _lines(this: Room, width: float) -> list[str]:
    """Modules, then each sub-room with its own, wrapped to the width."""
    found = _wrapped("", this.modules, width)
    for inner in this.rooms:
        found += _wrapped(f"{inner.name}/ ", inner.modules or ["(one page)"], width)
        for deeper in inner.rooms:
            found += _wrapped(f"{inner.name}/{deeper.name}/ ", deeper.modules or ["(one page)"], width)
    return found


def _wrapped(heading: str, names: tuple[str, ...] | list[str], width: float) -> list[str]:
    most = int((width - 24) * _CHARACTERS_A_PIXEL)
    lines: list[str] = []
    current = heading
    for number, name in enumerate(names):
        piece = name + ("" if number == len(names) - 1 else ", ")
        if len(current) + len(piece) > most and current.strip():
            lines.append(current.rstrip())
            current = "    " if heading else ""
        current += piece
    return [*lines, current] if current.strip() else lines
