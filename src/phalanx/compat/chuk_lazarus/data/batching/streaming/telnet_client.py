"""Client for a puzzle server."""

from phalanx.puzzles.server_client import client as _client
from phalanx.puzzles.server_client.protocol import (
    PuzzleCompletion as PuzzleCompletion,
    PuzzleDifficulty as PuzzleDifficulty,
    PuzzleGame as PuzzleGame,
    PuzzleHint as PuzzleHint,
    PuzzleObservation as PuzzleObservation,
    PuzzleResult as PuzzleResult,
    PuzzleStats as PuzzleStats,
)

TelnetGymClient = _client.PuzzleClient
TelnetClientConfig = _client.PuzzleClientConfig
