"""Procedurally generated text puzzles."""

from phalanx.puzzles.env import (
    PuzzleEnvironment as PuzzleEnvironment,
    PuzzleVectorEnvironment as PuzzleVectorEnvironment,
)
from phalanx.puzzles.kind import Puzzle as Puzzle, PuzzleKind as PuzzleKind
from phalanx.puzzles.kinds import puzzle_kind as puzzle_kind, puzzle_kinds as puzzle_kinds
from phalanx.puzzles.splitmix64 import SplitMix64 as SplitMix64
