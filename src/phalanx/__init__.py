"""Phalanx trains agents that reason: environments, token batches and training runs that move as batches.

Here are the version, `make` and `register` of environments, and `load_policy` of a run; they are loaded when
first asked for, so that importing this costs nothing. All else is in the rooms: `phalanx.core`, ...
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
