# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .buffer import ReplayBuffer as ReplayBuffer
from .config import (
    BufferEvictionPolicy as BufferEvictionPolicy,
    ReplayBufferConfig as ReplayBufferConfig,
    SampleFilter as SampleFilter,
)
from .files import SampleFileError as SampleFileError
from .rows import BufferSnapshot as BufferSnapshot
from .sampling import Handles as Handles, ReplayDraw as ReplayDraw
from .stats import ReplayStats as ReplayStats
