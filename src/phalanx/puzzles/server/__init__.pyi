# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .client import PuzzleClient as PuzzleClient, PuzzleClientConfig as PuzzleClientConfig
from .env import (
    PuzzleServerConfig as PuzzleServerConfig,
    PuzzleServerEnvironment as PuzzleServerEnvironment,
    PuzzleServerVectorEnvironment as PuzzleServerVectorEnvironment,
)
from .episodes import (
    EpisodeStep as EpisodeStep,
    PuzzleEpisode as PuzzleEpisode,
    StepRewards as StepRewards,
    episode_samples as episode_samples,
    move_prompt as move_prompt,
    rollout_episode as rollout_episode,
)
from .errors import (
    CommandError as CommandError,
    NoPuzzleError as NoPuzzleError,
    PuzzleServerConnectionError as PuzzleServerConnectionError,
    PuzzleServerUnavailableError as PuzzleServerUnavailableError,
    StartError as StartError,
    UnknownGameError as UnknownGameError,
)
from .gym_stream import (
    CollectConfig as CollectConfig,
    MockGymStream as MockGymStream,
    PuzzleSampleStream as PuzzleSampleStream,
)
from .pool import (
    ConnectionPoolConfig as ConnectionPoolConfig,
    EpisodeSpec as EpisodeSpec,
    PuzzlePool as PuzzlePool,
    episode_seed as episode_seed,
    episode_specs as episode_specs,
)
from .protocol import (
    PuzzleCompletion as PuzzleCompletion,
    PuzzleDifficulty as PuzzleDifficulty,
    PuzzleGame as PuzzleGame,
    PuzzleHint as PuzzleHint,
    PuzzleObservation as PuzzleObservation,
    PuzzleResult as PuzzleResult,
    PuzzleStats as PuzzleStats,
    command_for_hint as command_for_hint,
)
