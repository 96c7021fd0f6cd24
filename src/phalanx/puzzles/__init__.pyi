# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .catalog import puzzle_kind as puzzle_kind, puzzle_kinds as puzzle_kinds
from .env import PuzzleBatch as PuzzleBatch, PuzzleEnvironment as PuzzleEnvironment
from .kind import Puzzle as Puzzle, PuzzleKind as PuzzleKind
from .splitmix64 import Draws as Draws
