"""The kinds of puzzles, one module each, and what those with a board of cells share.

They are found by name in `phalanx.puzzles.catalog`; how they are made and solved fast is in `src/native`.
"""
