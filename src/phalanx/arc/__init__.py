"""ARC grid puzzles that step in formation: tasks, actions, states and the environment.

Drawing is in `phalanx.arc.render`, task families in `phalanx.arc.generators`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
