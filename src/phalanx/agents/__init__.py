"""Agents: what chooses actions, for one environment or a whole batch.

The environments that they act in are in `phalanx.arc` and its neighbors.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
