"""What pictures of proofs are made of: colours, widths of text, boxes with an atom in them, and the sheet.

What is put where is decided in `drawing`.
"""

import re
from typing import Any, NamedTuple

import drawsvg as draw

SANS = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MONO = "'JetBrains Mono', 'SF Mono', Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
MARGIN = 22

# A light sheet with its own border reads on dark pages too.
SHEET, CARD, BORDER = "#FCFCFD", "#FFFFFF", "#DFE3EA"
TEXT, MUTED, LINE = "#1B2330", "#667085", "#B6BECB"
GOOD, GOOD_TINT = "#12805C", "#E3F5EE"
BAD, BAD_TINT = "#B42318", "#FDECEA"
ACCENT, ACCENT_TINT = "#3B5BDB", "#EDF1FE"

_MONO_EMS, _SANS_EMS = 0.61, 0.58
"""Upper estimates: every sign of the fixed fonts is this wide, those of the others are on average."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Look(NamedTuple):
    """The colours of a box."""

    fill: str
    stroke: str
    ink: str


QUERY = Look(ACCENT, ACCENT, "#FFFFFF")
NEXT = Look(ACCENT_TINT, ACCENT, TEXT)
PLAIN = Look(CARD, LINE, TEXT)
FACT = Look(GOOD_TINT, GOOD, TEXT)
PROVED = Look(GOOD, GOOD, "#FFFFFF")
FAILED = Look(BAD, BAD, "#FFFFFF")
RUNNING = Look("#E8EBF1", "#E8EBF1", MUTED)


def clean(text: str) -> str:
    """The text without what XML cannot hold."""
    return _NOT_XML.sub("�", text)


def mono_width(text: str, size: float) -> float:
    """How wide a text of fixed width is drawn at most."""
    return len(text) * size * _MONO_EMS


def sans_width(text: str, size: float) -> float:
    """How wide a short text is drawn, about."""
    return len(text) * size * _SANS_EMS


def shortened(text: str, letters: int) -> str:
    """The text, or as much of it as so many letters hold, with an ellipsis.

    >>> shortened("derivationally_related", 10)
    'derivatio…'
    """
    return text if len(text) <= letters else text[: letters - 1] + "…"


def line(
    text: str,
    size: float,
    x: float,
    y: float,
    *,
    ink: str = TEXT,
    mono: bool = False,
    bold: bool = False,
    anchor: str = "start",
) -> Any:
    """A line of text on the baseline y."""
    family = {"font_family": MONO} if mono else {}
    return draw.Text(
        clean(text), size, short(x), short(y), fill=ink, text_anchor=anchor,
        font_weight=600 if bold else 400, **family,
    )  # fmt: skip


def box(text: str, x: float, y: float, width: float, height: float, look: Look, **more: Any) -> Any:
    """A rounded box with a text of fixed width in its middle; `more` are attributes of the group."""
    size = more.pop("size", 13)
    radius = more.pop("radius", 8)
    group = draw.Group(**more)
    group.append(
        draw.Rectangle(
            short(x), short(y), short(width), short(height),
            rx=radius, fill=look.fill, stroke=look.stroke, stroke_width=1.2,
        )
    )  # fmt: skip
    if not text:
        return group
    middle = y + height / 2 + size * 0.35
    group.append(
        draw.Text(
            clean(text), size, short(x + width / 2), short(middle),
            fill=look.ink, text_anchor="middle", font_family=MONO,
        )
    )  # fmt: skip
    return group


def badge(text: str, right: float, y: float, look: Look) -> Any:
    """A short text in a round badge that ends at `right`."""
    width = badge_width(text)
    group = draw.Group(class_="badge")
    group.append(draw.Rectangle(short(right - width), y, short(width), 22, rx=11, fill=look.fill))
    group.append(line(text, 12, right - width / 2, y + 15.2, ink=look.ink, bold=True, anchor="middle"))
    return group


def badge_width(text: str) -> float:
    """How wide a badge is."""
    return sans_width(text, 12) + 22


def sheet(width: float, height: float, title: str, parts: list[Any]) -> draw.Drawing:
    """The finished drawing."""
    drawing = draw.Drawing(
        short(width), short(height), font_family=SANS, role="img", style="max-width:100%;height:auto",
        id_prefix="phalanx",
    )  # fmt: skip
    drawing.append(draw.Title(clean(title)))
    drawing.append(
        draw.Rectangle(
            0.5, 0.5, short(width - 1), short(height - 1), rx=14, fill=SHEET, stroke=BORDER, stroke_width=1
        )
    )
    for part in parts:
        drawing.append(part)
    return drawing


def short(value: float) -> float:
    """A coordinate with one digit behind the point, or none."""
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded
