"""Drop-in replacement for `jaxarc.agents`."""

from phalanx.arc.random_agent import (
    RandomAgent as RandomAgent,
    VectorizedRandomAgent as VectorizedRandomAgent,
)
