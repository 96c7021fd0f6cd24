"""Colours: the ten that ARC is published in, ten for colour-blind readers, and the ink of drawings.

Nothing is drawn here; `cells` and `terminal` paint with what this module names.
"""

import dataclasses
from typing import Literal

from phalanx.arc.operations import NUM_COLORS

PaletteName = Literal["arc", "safe"]


@dataclasses.dataclass(frozen=True)
class Palette:
    """One colour for each of the cell values 0 to 9, as `#RRGGBB`."""

    name: str
    """What `palette_named` calls it."""
    colors: tuple[str, ...]
    """The fill of cell value i at place i."""
    names: tuple[str, ...]
    """What people call them."""

    def __post_init__(self) -> None:
        if len(self.colors) != NUM_COLORS or len(self.names) != NUM_COLORS:
            raise ValueError(f"palette {self.name!r} must name {NUM_COLORS} colours, got {len(self.colors)}")

    def ink(self, color: int) -> str:
        """Black or white: whichever reads better on a cell of this value."""
        light = relative_luminance(self.colors[color])
        # The WCAG contrast ratio against white and against black; equal at a luminance of about 0.18.
        return "#000000" if (light + 0.05) ** 2 > 1.05 * 0.05 else "#FFFFFF"


def relative_luminance(color: str) -> float:
    """How light a `#RRGGBB` colour is, from 0 (black) to 1 (white), as WCAG defines it.

    >>> relative_luminance("#FFFFFF")
    1.0
    """
    red, green, blue = (_linear(part / 255) for part in rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def rgb(color: str) -> tuple[int, int, int]:
    """The three bytes of a `#RRGGBB` colour.

    >>> rgb("#FF8000")
    (255, 128, 0)
    """
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


ARC = Palette(
    "arc",
    (
        "#000000",
        "#0074D9",
        "#FF4136",
        "#2ECC40",
        "#FFDC00",
        "#AAAAAA",
        "#F012BE",
        "#FF851B",
        "#7FDBFF",
        "#870C25",
    ),
    ("black", "blue", "red", "green", "yellow", "grey", "magenta", "orange", "azure", "maroon"),
)

# Found by a search that keeps each hue near ARC's and maximises the smallest distance of any two colours in
# OKLab and CIELAB, for normal sight and for simulated protanopia, deuteranopia and tritanopia.
SAFE = Palette(
    "safe",
    (
        "#000000",
        "#2271A7",
        "#E11A36",
        "#ACE0A9",
        "#FAF96C",
        "#9E9E9E",
        "#D104F3",
        "#FB8611",
        "#5DBDF4",
        "#9B0C45",
    ),
    (
        "black",
        "blue",
        "red",
        "pale green",
        "pale yellow",
        "grey",
        "violet",
        "orange",
        "sky blue",
        "maroon",
    ),
)

PALETTES: dict[str, Palette] = {palette.name: palette for palette in (ARC, SAFE)}


def palette_named(name: str) -> Palette:
    """A palette by its name: `arc`, or `safe` for colour-blind readers.

    >>> palette_named("safe").names[3]
    'pale green'
    """
    if name not in PALETTES:
        raise ValueError(f"unknown palette {name!r}; choose from {', '.join(PALETTES)}")
    return PALETTES[name]


# The ink of everything around the grids: a light sheet with its own border reads on dark pages too.
SHEET = "#FCFCFD"
CARD = "#FFFFFF"
BORDER = "#DFE3EA"
TEXT = "#1B2330"
MUTED = "#667085"
GRID_EDGE = "#39414F"
GOOD = "#12805C"
GOOD_TINT = "#E3F5EE"
BAD = "#B42318"
BAD_TINT = "#FDECEA"
ACCENT = "#3B5BDB"
TRACK = "#E8EBF1"


Number = float | int


def percent(value: Number) -> str:
    """A share in per cent, never rounded up to a full 100.

    >>> percent(0.9996), percent(1.0)
    ('99.9%', '100%')
    """
    return "100%" if value == 1 else f"{min(value * 100, 99.9):.1f}%"


def signed(value: Number) -> str:
    """A reward with its sign.

    >>> signed(-0.01), signed(10.0), signed(0.0)
    ('−0.01', '+10', '0')
    """
    digits = f"{abs(value):.3f}".rstrip("0").rstrip(".")
    return "0" if digits == "0" else f"{'+' if value > 0 else '−'}{digits}"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "step"), count(3, "step")
    ('1 step', '3 steps')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def left_out(steps: int) -> str:
    """What stands in place of steps that are not shown.

    >>> left_out(27)
    '… 27 steps left out …'
    """
    return f"… {count(steps, 'step')} left out …"


def shown(frames: int, most: int) -> tuple[int, int]:
    """Which frames of a long episode are shown: those before the first number and those from the second on.

    >>> shown(10, 24), shown(100, 24)
    ((10, 10), (12, 88))
    """
    if frames < 1:
        raise ValueError("an episode to draw has at least one frame")
    if most < 2:
        raise ValueError(f"max_frames must be at least 2 (the beginning and the end), got {most}")
    return (frames, frames) if frames <= most else (most - most // 2, frames - most // 2)
