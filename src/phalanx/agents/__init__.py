"""Agents: what chooses actions, for one environment or a whole batch.

The environments that they act in are in `phalanx.arc` and its neighbours.
"""

from phalanx.agents.random import RandomAgent, VectorizedRandomAgent

__all__ = ["RandomAgent", "VectorizedRandomAgent"]
