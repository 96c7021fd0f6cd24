"""Streams of token samples: puzzle servers, environments, files, a replay buffer and a window that plans it.

All public names are here, each loaded when first asked for; batches of samples that all exist are in
`phalanx.tokens`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from phalanx.streams.protocols import AsyncSampleStream, SampleStream
from phalanx.streams.types import EpisodeStatus, SampleSource, StreamMetrics, StreamSample, StreamState

if TYPE_CHECKING:
    from phalanx.streams.arc_tokens import ArcTokenizer
    from phalanx.streams.environment_stream import EnvironmentStream
    from phalanx.streams.episode_tokens import EpisodeTokenizer, TokenRows
    from phalanx.streams.gym_stream import GymConfig, GymEpisodeStream, MockGymStream
    from phalanx.streams.hints import command_for_hint
    from phalanx.streams.offline_stream import OfflineDatasetStream, write_samples
    from phalanx.streams.pool import EpisodeSpec, PoolConfig, PuzzlePool, episode_seed
    from phalanx.streams.proof_tokens import ProofTokenizer
    from phalanx.streams.replay_buffer import ReplayBuffer
    from phalanx.streams.replay_config import BufferEvictionPolicy, ReplayBufferConfig, SampleFilter
    from phalanx.streams.replay_files import SampleFileError
    from phalanx.streams.replay_sampling import Handles, ReplayDraw
    from phalanx.streams.replay_snapshot import BufferSnapshot
    from phalanx.streams.replay_stats import ReplayStats
    from phalanx.streams.rolling_window import RollingBatchPlanWindow, WhenCovered, WindowConfig, WindowState
    from phalanx.streams.telnet_client import (
        PuzzleCompletion,
        PuzzleDifficulty,
        PuzzleGame,
        PuzzleHint,
        PuzzleObservation,
        PuzzleResult,
        PuzzleStats,
        TelnetClientConfig,
        TelnetGymClient,
    )
    from phalanx.streams.telnet_errors import (
        ArcadeConnectionError,
        ArcadeUnavailableError,
        CommandError,
        UnknownGameError,
    )

# Loaded when asked for, so that a user of one stream does not pay for the imports of the others.
_HOMES = {
    "ArcTokenizer": "arc_tokens",
    "ArcadeConnectionError": "telnet_errors",
    "ArcadeUnavailableError": "telnet_errors",
    "BufferEvictionPolicy": "replay_config",
    "BufferSnapshot": "replay_snapshot",
    "CommandError": "telnet_errors",
    "EnvironmentStream": "environment_stream",
    "EpisodeSpec": "pool",
    "EpisodeTokenizer": "episode_tokens",
    "GymConfig": "gym_stream",
    "GymEpisodeStream": "gym_stream",
    "Handles": "replay_sampling",
    "MockGymStream": "gym_stream",
    "OfflineDatasetStream": "offline_stream",
    "PoolConfig": "pool",
    "ProofTokenizer": "proof_tokens",
    "PuzzleCompletion": "telnet_client",
    "PuzzleDifficulty": "telnet_client",
    "PuzzleGame": "telnet_client",
    "PuzzleHint": "telnet_client",
    "PuzzleObservation": "telnet_client",
    "PuzzlePool": "pool",
    "PuzzleResult": "telnet_client",
    "PuzzleStats": "telnet_client",
    "ReplayBuffer": "replay_buffer",
    "ReplayBufferConfig": "replay_config",
    "ReplayDraw": "replay_sampling",
    "ReplayStats": "replay_stats",
    "RollingBatchPlanWindow": "rolling_window",
    "SampleFileError": "replay_files",
    "SampleFilter": "replay_config",
    "TelnetClientConfig": "telnet_client",
    "TelnetGymClient": "telnet_client",
    "TokenRows": "episode_tokens",
    "UnknownGameError": "telnet_errors",
    "WhenCovered": "rolling_window",
    "WindowConfig": "rolling_window",
    "WindowState": "rolling_window",
    "command_for_hint": "hints",
    "episode_seed": "pool",
    "write_samples": "offline_stream",
}

__all__ = [
    "ArcTokenizer",
    "ArcadeConnectionError",
    "ArcadeUnavailableError",
    "AsyncSampleStream",
    "BufferEvictionPolicy",
    "BufferSnapshot",
    "CommandError",
    "EnvironmentStream",
    "EpisodeSpec",
    "EpisodeStatus",
    "EpisodeTokenizer",
    "GymConfig",
    "GymEpisodeStream",
    "Handles",
    "MockGymStream",
    "OfflineDatasetStream",
    "PoolConfig",
    "ProofTokenizer",
    "PuzzleCompletion",
    "PuzzleDifficulty",
    "PuzzleGame",
    "PuzzleHint",
    "PuzzleObservation",
    "PuzzlePool",
    "PuzzleResult",
    "PuzzleStats",
    "ReplayBuffer",
    "ReplayBufferConfig",
    "ReplayDraw",
    "ReplayStats",
    "RollingBatchPlanWindow",
    "SampleFileError",
    "SampleFilter",
    "SampleSource",
    "SampleStream",
    "StreamMetrics",
    "StreamSample",
    "StreamState",
    "TelnetClientConfig",
    "TelnetGymClient",
    "TokenRows",
    "UnknownGameError",
    "WhenCovered",
    "WindowConfig",
    "WindowState",
    "command_for_hint",
    "episode_seed",
    "write_samples",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx.streams' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"phalanx.streams.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
