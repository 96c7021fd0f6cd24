"""Client for a puzzle server."""

from phalanx.puzzles.server_client.client import (
    PuzzleClient as TelnetGymClient,
    PuzzleClientConfig as TelnetClientConfig,
)
from phalanx.puzzles.server_client.protocol import (
    PuzzleCompletion,
    PuzzleDifficulty,
    PuzzleGame,
    PuzzleHint,
    PuzzleObservation,
    PuzzleResult,
    PuzzleStats,
)

__all__ = [
    "PuzzleCompletion",
    "PuzzleDifficulty",
    "PuzzleGame",
    "PuzzleHint",
    "PuzzleObservation",
    "PuzzleResult",
    "PuzzleStats",
    "TelnetClientConfig",
    "TelnetGymClient",
]
