"""The ARC task that all environments step."""

from typing import Any


def checkerboard_task(size: int) -> dict[str, Any]:
    """Return a task in ARC's JSON format whose grids fill a canvas: rectangles that must be recolored."""

    def pair(shift: int) -> dict[str, Any]:
        third = max(1, size // 3)
        cells = [
            [((row // third + column // third + shift) % 4) for column in range(size)] for row in range(size)
        ]
        return {"input": cells, "output": [[9 - cell if cell else 0 for cell in line] for line in cells]}

    return {"train": [pair(shift) for shift in range(3)], "test": [pair(3)]}
