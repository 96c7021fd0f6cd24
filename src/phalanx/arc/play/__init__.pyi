# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .recording import DemonstrationFile as DemonstrationFile
from .session import PlaySession as PlaySession, Puzzle as Puzzle
