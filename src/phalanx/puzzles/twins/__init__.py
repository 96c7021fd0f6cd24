"""Makers and solvers of puzzles in Python: the twins of `src/native/puzzle_*.cc`, draw by draw, and slower.

They serve where the compiled extension does not; `phalanx.puzzles.engines` chooses. What the puzzles mean is
in `phalanx.puzzles.kinds`.
"""
