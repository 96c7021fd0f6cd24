# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .arcade.client import TelnetClientConfig as TelnetClientConfig, TelnetGymClient as TelnetGymClient
from .arcade.errors import (
    ArcadeConnectionError as ArcadeConnectionError,
    ArcadeUnavailableError as ArcadeUnavailableError,
    CommandError as CommandError,
    UnknownGameError as UnknownGameError,
)
from .arcade.gym_stream import (
    GymConfig as GymConfig,
    GymEpisodeStream as GymEpisodeStream,
    MockGymStream as MockGymStream,
)
from .arcade.pool import (
    EpisodeSpec as EpisodeSpec,
    PoolConfig as PoolConfig,
    PuzzlePool as PuzzlePool,
    episode_seed as episode_seed,
)
from .arcade.puzzles import (
    PuzzleCompletion as PuzzleCompletion,
    PuzzleDifficulty as PuzzleDifficulty,
    PuzzleGame as PuzzleGame,
    PuzzleHint as PuzzleHint,
    PuzzleObservation as PuzzleObservation,
    PuzzleResult as PuzzleResult,
    PuzzleStats as PuzzleStats,
    command_for_hint as command_for_hint,
)
from .arcade.text_games import (
    ArcadeGame as ArcadeGame,
    ArcadeTextBatch as ArcadeTextBatch,
    arcade_environment as arcade_environment,
)
from .base import (
    AsyncSampleStream as AsyncSampleStream,
    SampleStream as SampleStream,
    StreamMetrics as StreamMetrics,
)
from .environment_stream import EnvironmentStream as EnvironmentStream
from .offline_stream import (
    AsyncOfflineDatasetStream as AsyncOfflineDatasetStream,
    OfflineDatasetStream as OfflineDatasetStream,
    write_samples as write_samples,
)
from .replay.buffer import ReplayBuffer as ReplayBuffer
from .replay.config import (
    BufferEvictionPolicy as BufferEvictionPolicy,
    ReplayBufferConfig as ReplayBufferConfig,
    SampleFilter as SampleFilter,
)
from .replay.files import SampleFileError as SampleFileError
from .replay.rows import BufferSnapshot as BufferSnapshot
from .replay.sampling import Handles as Handles, ReplayDraw as ReplayDraw
from .replay.stats import ReplayStats as ReplayStats
from .rolling_window import (
    RollingBatchPlanWindow as RollingBatchPlanWindow,
    WhenCovered as WhenCovered,
    WindowConfig as WindowConfig,
    WindowState as WindowState,
)
from .tokenizers import (
    ArcTokenizer as ArcTokenizer,
    EpisodeTokenizer as EpisodeTokenizer,
    KnownEpisodes as KnownEpisodes,
    ProofTokenizer as ProofTokenizer,
    TokenRows as TokenRows,
    known_episodes as known_episodes,
)
from .types import (
    EpisodeStatus as EpisodeStatus,
    SampleSource as SampleSource,
    StreamSample as StreamSample,
    StreamState as StreamState,
)
