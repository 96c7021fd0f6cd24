"""Streams, replay buffer and rolling windows."""

from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.streaming.offline_stream import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.streaming.protocols import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.streaming.replay_buffer import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.streaming.rolling_window import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.streaming.telnet_client import *  # noqa: F403
from phalanx.compat.chuk_lazarus.data.batching.streaming.types import *  # noqa: F403
from phalanx.compat.renamed import renamed_module_getattr

__getattr__ = renamed_module_getattr(
    __name__,
    {
        "GymTransport": "GymConfig, which has the address of a server; it uses TCP",
        "GymOutputMode": "GymConfig; the server is always asked for JSON",
        "GymStep": "StreamSample, one for each step",
        "GymEpisode": "the samples with the same episode_id",
        "PuzzleType": "PuzzleGame",
    },
)
