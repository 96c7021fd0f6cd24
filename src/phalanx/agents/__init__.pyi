# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .random import RandomAgent as RandomAgent, VectorizedRandomAgent as VectorizedRandomAgent
