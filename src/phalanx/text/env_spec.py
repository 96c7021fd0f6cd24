"""Text environments by name, as every adapter for language models takes them.

The adapters are beside this module; what the names stand for is in `phalanx.puzzles` and the registry.
"""

import re
from collections.abc import Callable
from typing import Any

from phalanx.puzzles.env import PuzzleEnvironment
from phalanx.registry import make
from phalanx.text.env import TextEnvironment

TextFactory = Callable[[], TextEnvironment]
"""Makes one text environment, for one episode at a time."""


def text_env_factory(name: str | TextFactory, **settings: Any) -> TextFactory:
    """What makes the text environments of a name; a mistake in name or settings shows at once.

    A name is a kind of puzzle (`sudoku`, with the settings of `PuzzleEnvironment`) or the id of a registered
    environment that has words (`arc-v2`, `proofs-v1`, your own; with the settings of `phalanx.make`, and
    `text={...}` for those of `TextWrapper`). A function that makes text environments is taken as it is.
    """
    if not isinstance(name, str):
        if settings:
            raise TypeError(f"a function takes no settings, got {', '.join(settings)}")
        return name
    if re.search(r"-v\d+$", name) is None:
        PuzzleEnvironment(name, **settings)
        return lambda: PuzzleEnvironment(name, **settings)
    from phalanx.text.wrapper import TextWrapper

    words = settings.pop("text", {})
    # One environment for all episodes: its programs are compiled once, and its tasks are held once.
    environment = make(name, **settings)
    TextWrapper(environment, **words)
    return lambda: TextWrapper(environment, **words)
