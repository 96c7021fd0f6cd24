"""Buckets, sampler and metrics."""

from phalanx.compat.chuk_lazarus.data.batching.core.buckets import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.core.metrics import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.core.sampler import *  # noqa: F403
