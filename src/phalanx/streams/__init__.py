"""Streams of token samples: puzzle servers, environments, files, a replay buffer and a window that plans it.

All public names are here, each loaded when first asked for; batches of samples that all exist are in
`phalanx.tokens`.
"""

import lazy_loader

from phalanx.tokens.moved import with_moved

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_moved(
    _load,
    __name__,
    {
        "StreamConfig": "give OfflineDatasetStream or GymEpisodeStream its settings",
        "GymTransport": "a GymConfig names a server that speaks TCP, the only transport there was",
        "GymOutputMode": "the server is always asked for JSON",
        "GymStep": "a step is a StreamSample with step_index and reward",
        "GymEpisode": "an episode's steps are StreamSamples with one episode_id",
        "DifficultyProfile": "PuzzleObservation.difficulty_profile is a dictionary",
    },
)
