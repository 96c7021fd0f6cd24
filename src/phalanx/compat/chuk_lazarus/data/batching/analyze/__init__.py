"""Analysis of lengths and buckets."""

from phalanx.compat.chuk_lazarus.data.batching.analyze.efficiency import *  # noqa: F403
