"""Text that environments render for a terminal becomes images."""

import numpy as np
import pytest


def test_text_is_drawn_in_cells_of_equal_size() -> None:
    pytest.importorskip("PIL")
    from phalanx.cli.render import _draw_text

    image = _draw_text("\x1b[31mAi\x1b[0m.\n. x")
    assert (image.shape, image.dtype) == ((40, 32, 3), np.uint8)
    dark = image.min(axis=2) < 220
    cells = dark[4:36, 4:28].reshape(2, 16, 3, 8).any(axis=(1, 3))
    assert cells.tolist() == [[True, True, True], [True, False, True]]
