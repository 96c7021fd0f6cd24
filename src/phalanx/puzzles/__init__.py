"""Procedurally generated text puzzles."""

from phalanx.puzzles.env import PuzzleEnvironment, PuzzleVectorEnvironment
from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.kinds import puzzle_kind, puzzle_kinds
from phalanx.puzzles.splitmix64 import SplitMix64

__all__ = [
    "Puzzle",
    "PuzzleEnvironment",
    "PuzzleKind",
    "PuzzleVectorEnvironment",
    "SplitMix64",
    "puzzle_kind",
    "puzzle_kinds",
]
