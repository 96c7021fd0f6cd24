"""Pictures of grids, pairs, tasks, states and episodes: SVG drawings, terminal output and notebook views.

Nothing here changes a state; the figures of training runs belong to `phalanx.logs`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
