# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .demonstrations import DemonstrationFile as DemonstrationFile
from .session import PlaySession as PlaySession, Puzzle as Puzzle
