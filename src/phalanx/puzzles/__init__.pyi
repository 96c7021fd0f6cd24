# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .catalog import puzzle_kind as puzzle_kind, puzzle_kinds as puzzle_kinds
from .env import PuzzleEnvironment as PuzzleEnvironment, PuzzleVectorEnvironment as PuzzleVectorEnvironment
from .kind import Puzzle as Puzzle, PuzzleKind as PuzzleKind
from .splitmix64 import SplitMix64 as SplitMix64
