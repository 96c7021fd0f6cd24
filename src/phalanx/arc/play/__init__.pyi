# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .recording import EpisodeSampleFile as EpisodeSampleFile
from .session import PlaySession as PlaySession, PlayTestPair as PlayTestPair
