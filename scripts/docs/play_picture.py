"""A picture of a real game for the documents: `python scripts/docs/play_picture.py docs/images/play.svg`.

The game is `phalanx play`'s own; nothing is drawn here.
"""

import asyncio
import re
import sys
from pathlib import Path

from phalanx.arc.generators import generate_task
from phalanx.arc.play.app import PlayApp
from phalanx.arc.play.recording import EpisodeFile
from phalanx.arc.play.session import PlayTask, play_config
from phalanx.io.atomic import atomic_write

SIZE = (120, 36)
TASK = ("draw_border", 14)
KEYS = ("9", *("down",) * 4, *("shift+right",) * 5, "space", "down", "shift+down", "shift+down")
"""What is pressed before the picture is taken."""


async def picture(keys: tuple[str, ...] = KEYS, size: tuple[int, int] = SIZE) -> str:
    """The screen after these keys, as SVG."""
    game = PlayApp([PlayTask(generate_task(*TASK))], play_config(), EpisodeFile(Path("unused.jsonl")))
    async with game.run_test(size=size) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        drawn = game.export_screenshot(title="phalanx play arc")
    # Textual names a font on another machine; documents are read without a network too.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    with atomic_write(sys.argv[1], "w") as file:
        file.write(asyncio.run(picture()))
