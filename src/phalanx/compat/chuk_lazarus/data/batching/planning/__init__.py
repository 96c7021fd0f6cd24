"""Plans, settings, fingerprints and packing."""

from phalanx.compat.chuk_lazarus.data.batching.planning.batch_plan import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.planning.packing import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.planning.predictability import *  # noqa: F403
