"""Create a screenshot of `phalanx play`: `python scripts/docs/play_picture.py docs/images/play.svg`."""

import asyncio
import re
import sys
from pathlib import Path

from phalanx.arc.generators import generate_task
from phalanx.arc.play.app import PlayApp
from phalanx.arc.play.recording import EpisodeSampleFile
from phalanx.arc.play.session import PlayTestPair, play_config
from phalanx.io.atomic import atomic_write

SIZE = (120, 36)
TASK = ("draw_border", 14)
KEYS = ("9", *("down",) * 4, *("shift+right",) * 5, "space", "down", "shift+down", "shift+down")
"""Keys that are pressed before the screenshot."""


async def picture(keys: tuple[str, ...] = KEYS, size: tuple[int, int] = SIZE) -> str:
    """Press keys and return the screen as SVG."""
    game = PlayApp(
        [PlayTestPair(generate_task(*TASK))], play_config(), EpisodeSampleFile(Path("unused.jsonl"))
    )
    async with game.run_test(size=size) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        screen = game.export_screenshot(title="phalanx play arc")
    # Textual loads a font from a network; the documentation must also work offline.
    return re.sub(r"@font-face \{.*?\}\s*", "", screen, flags=re.DOTALL)


if __name__ == "__main__":
    with atomic_write(sys.argv[1], "w") as file:
        file.write(asyncio.run(picture()))
