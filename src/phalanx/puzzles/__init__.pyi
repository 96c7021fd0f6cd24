# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .catalog import puzzle_kind as puzzle_kind, puzzle_kinds as puzzle_kinds
from .draws import Draws as Draws
from .environment import PuzzleBatch as PuzzleBatch, PuzzleEnvironment as PuzzleEnvironment
from .kind import Puzzle as Puzzle, PuzzleKind as PuzzleKind
