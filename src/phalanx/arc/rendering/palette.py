"""Color palettes for cells: the official ARC colors, and a palette for color-blind readers."""

import dataclasses
from typing import Literal

PaletteName = Literal["arc", "safe"]


@dataclasses.dataclass(frozen=True)
class Palette:
    """One `#RRGGBB` color for each cell value from 0 to 9."""

    name: str
    """Name of the palette."""
    colors: tuple[str, ...]
    """Color of each cell value, as `#RRGGBB`."""
    names: tuple[str, ...]
    """English names of the colors."""

    def ink(self, color: int) -> str:
        """Return the text color (black or white) that has more contrast with the color of a cell value."""
        light = relative_luminance(self.colors[color])
        # The WCAG contrast ratio against white and against black; equal at a luminance of about 0.18.
        return "#000000" if (light + 0.05) ** 2 > 1.05 * 0.05 else "#FFFFFF"


def relative_luminance(color: str) -> float:
    """Compute the relative luminance of a `#RRGGBB` color as defined by WCAG, from 0 (black) to 1 (white).

    >>> relative_luminance("#FFFFFF")
    1.0
    """
    shares = (part / 255 for part in rgb(color))
    linear = (s / 12.92 if s <= 0.04045 else float(((s + 0.055) / 1.055) ** 2.4) for s in shares)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def rgb(color: str) -> tuple[int, int, int]:
    """Convert `#RRGGBB` to three integers.

    >>> rgb("#FF8000")
    (255, 128, 0)
    """
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


ARC = Palette(
    "arc",
    (
        "#000000", "#0074D9", "#FF4136", "#2ECC40", "#FFDC00",
        "#AAAAAA", "#F012BE", "#FF851B", "#7FDBFF", "#870C25",
    ),
    ("black", "blue", "red", "green", "yellow", "gray", "magenta", "orange", "azure", "maroon"),
)  # fmt: skip

# The result of a search that keeps each hue near ARC's and maximizes the smallest distance between two colors
# in OKLab and CIELAB, for normal vision and for simulated protanopia, deuteranopia and tritanopia.
SAFE = Palette(
    "safe",
    (
        "#000000", "#2271A7", "#E11A36", "#ACE0A9", "#FAF96C",
        "#9E9E9E", "#D104F3", "#FB8611", "#5DBDF4", "#9B0C45",
    ),
    ("black", "blue", "red", "pale green", "pale yellow", "gray", "violet", "orange", "sky blue", "maroon"),
)  # fmt: skip

PALETTES: dict[str, Palette] = {palette.name: palette for palette in (ARC, SAFE)}


def palette_named(name: str) -> Palette:
    """Return the palette with the given name: `arc` (official colors), or `safe` for color-blind readers.

    >>> palette_named("safe").names[3]
    'pale green'
    """
    if name not in PALETTES:
        raise ValueError(f"unknown palette {name!r}; choose from {', '.join(PALETTES)}")
    return PALETTES[name]


GRID_EDGE = "#39414F"
"""Color of the border around a grid."""
