"""Token batching of chuk-lazarus: buckets, sampler, plans, packing, batch files and analysis."""

from phalanx.compat.chuk_lazarus.data.batching.analyze import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.core import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.generation import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.planning import *  # noqa: F403
