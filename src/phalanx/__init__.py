"""Phalanx trains agents that reason: environments, token batches and training runs that move as batches.

This module holds the version and nothing else, so that importing it costs nothing; the rooms are
`phalanx.core`, `phalanx.arc` and their neighbours.
"""

__version__ = "0.1.0"
