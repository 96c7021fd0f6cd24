"""Palettes: distinguishable colors for color-blind readers, and readable ink on every color."""

import numpy as np
import pytest

from phalanx.arc.rendering.palette import ARC, PALETTES, SAFE, Palette, palette_named, relative_luminance, rgb

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def oklab(linear: np.ndarray) -> np.ndarray:
    """Convert linear RGB to Ottosson's OKLab, in which distances match perceived differences."""
    to_lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.cbrt(linear @ to_lms.T) @ to_lab.T


def smallest_distance(palette: Palette, vision: str) -> float:
    """Return the perceived distance of the two most similar colors (100 for black and white)."""
    srgb = np.array([rgb(color) for color in palette.colors]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    perceived = oklab(np.clip(linear @ VISIONS[vision].T, 0, 1))
    distances = 100 * np.linalg.norm(perceived[:, None] - perceived[None], axis=-1)
    return float(distances[np.triu_indices(10, 1)].min())


@pytest.mark.parametrize("vision", VISIONS)
def test_safe_colors_are_distinguishable_with_any_color_vision(vision: str) -> None:
    assert smallest_distance(SAFE, vision) > 11.5


def test_arc_colors_are_not_distinguishable_with_color_blindness() -> None:
    assert smallest_distance(ARC, "normal") > 11.5
    assert smallest_distance(ARC, "deuteranopia") < 4
    assert smallest_distance(ARC, "protanopia") < 6
    assert smallest_distance(ARC, "tritanopia") < 6


@pytest.mark.parametrize("palette", PALETTES.values(), ids=list(PALETTES))
def test_ink_has_sufficient_contrast_on_every_color(palette: Palette) -> None:
    for value, color in enumerate(palette.colors):
        dark, light = sorted((relative_luminance(color), relative_luminance(palette.ink(value))))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_ink_is_white_on_black_and_black_on_yellow() -> None:
    assert ARC.ink(0) == "#FFFFFF"
    assert ARC.ink(4) == "#000000"


def test_unknown_palette_is_reported_with_choices() -> None:
    with pytest.raises(ValueError, match="unknown palette 'neon'; choose from arc, safe"):
        palette_named("neon")
