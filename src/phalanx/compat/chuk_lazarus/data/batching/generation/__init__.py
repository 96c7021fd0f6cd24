"""Batch files and length caches."""

from phalanx.compat.chuk_lazarus.data.batching.generation.io import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.generation.length_cache import *  # noqa: F403
