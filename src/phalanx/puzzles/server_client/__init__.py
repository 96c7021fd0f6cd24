"""Client, text environments and token samples for the games of an external puzzle server."""

from phalanx.puzzles.server_client.client import (
    PuzzleClient as PuzzleClient,
    PuzzleClientConfig as PuzzleClientConfig,
)
from phalanx.puzzles.server_client.env import (
    PuzzleServerEnvConfig as PuzzleServerEnvConfig,
    PuzzleServerEnvironment as PuzzleServerEnvironment,
    PuzzleServerVectorEnvironment as PuzzleServerVectorEnvironment,
)
from phalanx.puzzles.server_client.episode_pool import (
    ConnectionPoolConfig as ConnectionPoolConfig,
    EpisodeSpec as EpisodeSpec,
    PuzzleEpisodePool as PuzzleEpisodePool,
    episode_seed as episode_seed,
    episode_specs as episode_specs,
)
from phalanx.puzzles.server_client.episodes import (
    CollectConfig as CollectConfig,
    EpisodeStep as EpisodeStep,
    PuzzleEpisode as PuzzleEpisode,
    PuzzleSampleStream as PuzzleSampleStream,
    PuzzleServerRewardValues as PuzzleServerRewardValues,
    episode_samples as episode_samples,
    move_prompt as move_prompt,
    rollout_episode as rollout_episode,
)
from phalanx.puzzles.server_client.protocol import (
    CommandResult as CommandResult,
    InvalidCommandError as InvalidCommandError,
    NoCurrentPuzzleError as NoCurrentPuzzleError,
    ProtocolError as ProtocolError,
    PuzzleCompletion as PuzzleCompletion,
    PuzzleDifficulty as PuzzleDifficulty,
    PuzzleGame as PuzzleGame,
    PuzzleHint as PuzzleHint,
    PuzzleObservation as PuzzleObservation,
    PuzzleServerConnectionError as PuzzleServerConnectionError,
    PuzzleServerUnavailableError as PuzzleServerUnavailableError,
    PuzzleStartError as PuzzleStartError,
    PuzzleStats as PuzzleStats,
    UnknownGameNameError as UnknownGameNameError,
    command_for_hint as command_for_hint,
)
