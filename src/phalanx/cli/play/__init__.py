"""`phalanx play`: a person solves tasks in the terminal, and saves what they did as demonstrations.

The command is in `command`, the game in `session`; only `application`, `panes` and `grids` need Textual.
"""
