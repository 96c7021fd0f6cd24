"""Client for a puzzle server."""

from phalanx.puzzles.server_client import client as _client, protocol as _protocol
from phalanx.puzzles.server_client.protocol import (
    PuzzleCompletion as PuzzleCompletion,
    PuzzleDifficulty as PuzzleDifficulty,
    PuzzleGame as PuzzleGame,
    PuzzleHint as PuzzleHint,
    PuzzleObservation as PuzzleObservation,
    PuzzleStats as PuzzleStats,
)

PuzzleResult = _protocol.CommandResult
TelnetGymClient = _client.PuzzleClient
TelnetClientConfig = _client.PuzzleClientConfig
