"""Horizontal bars in plain ASCII, lined up and kept within a terminal's width.

What the bars stand for is decided in `histogram`, `efficiency` and `report`; pictures are in `charts`.
"""

from collections.abc import Sequence
from typing import NamedTuple

SIDES = 30
"""Columns that labels and notes may take beside the bars; where they need more, the bars give way."""


class Bar(NamedTuple):
    """One line: a label, a bar as long as the value, a note."""

    label: str
    value: float
    note: str


def bar_lines(bars: Sequence[Bar], width: int = 50, full: float | None = None) -> list[str]:
    """Lines of at most `width` + 30 columns, `full` (or the largest value) as long as the bars can be.

    >>> print(*bar_lines([Bar("a", 4, "4"), Bar("bb", 2, "2")], width=4), sep=chr(10))
     a |####| 4
    bb |##  | 2
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 column, got {width}")
    label = max((len(bar.label) for bar in bars), default=0)
    note = max((len(bar.note) for bar in bars), default=0)
    room = max(1, min(width, width + SIDES - label - note - len(" || ")))
    top = max((bar.value for bar in bars), default=0) if full is None else full
    return [
        f"{bar.label:>{label}} |{_marks(bar.value, top, room):<{room}}| {bar.note:>{note}}".rstrip()
        for bar in bars
    ]


def _marks(value: float, top: float, room: int) -> str:
    """Something that is there but too little for a mark shows as a dot."""
    count = min(room, round(room * value / top)) if top > 0 else 0
    return "#" * count if count or value <= 0 else "."


def percent(share: float, digits: int = 1) -> str:
    """A share from 0 to 1 in per cent; only a true 1 reads 100.

    >>> percent(0.9999), percent(1.0)
    ('99.9%', '100.0%')
    """
    most = 100.0 if share >= 1 else 100 - 10.0**-digits
    return f"{min(most, round(100 * share, digits)):.{digits}f}%"
