# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .client import TelnetClientConfig as TelnetClientConfig, TelnetGymClient as TelnetGymClient
from .env import (
    ArcadeGame as ArcadeGame,
    ArcadeTextBatch as ArcadeTextBatch,
    arcade_environment as arcade_environment,
)
from .episodes import (
    EpisodeStep as EpisodeStep,
    PuzzleEpisode as PuzzleEpisode,
    StepRewards as StepRewards,
    episode_samples as episode_samples,
    move_prompt as move_prompt,
    play_episode as play_episode,
)
from .errors import (
    ArcadeConnectionError as ArcadeConnectionError,
    ArcadeUnavailableError as ArcadeUnavailableError,
    CommandError as CommandError,
    NoPuzzleError as NoPuzzleError,
    StartError as StartError,
    UnknownGameError as UnknownGameError,
)
from .gym_stream import (
    GymConfig as GymConfig,
    GymEpisodeStream as GymEpisodeStream,
    MockGymStream as MockGymStream,
)
from .pool import (
    EpisodeSpec as EpisodeSpec,
    PoolConfig as PoolConfig,
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
