# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .recording import EpisodeFile as EpisodeFile
from .session import PlaySession as PlaySession, PlayTask as PlayTask
