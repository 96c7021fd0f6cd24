"""What a training or an evaluation plays, by name: puzzles, an environment, or games of a server.

What they are is in the modules beside this one.
"""

import re
from collections.abc import Sequence

from phalanx.lm.episodes.environments import EnvironmentSource
from phalanx.lm.episodes.puzzles import PuzzleSource
from phalanx.lm.episodes.source import EpisodeSource
from phalanx.lm.tasks import PromptTokenizer, read_tasks


def is_environment(text: str) -> bool:
    """Whether a name is that of an environment with words, and not of puzzles."""
    return text in ("arc", "proofs") or re.search(r"-v\d+$", text) is not None


def local_source(
    text: str,
    prompter: PromptTokenizer,
    *,
    difficulty: str = "easy",
    turns: str = "single",
    compact: bool = True,
    overrides: Sequence[str] = (),
) -> EpisodeSource:
    """What a name stands for: puzzles of some kinds, or one environment."""
    if is_environment(text):
        return EnvironmentSource(text, prompter, compact=compact, overrides=overrides)
    if overrides:
        raise ValueError(f"{text!r} are puzzles, and have no overrides; an id such as arc-v2 has")
    return PuzzleSource(read_tasks(text, difficulty, turns), prompter, compact=compact)
