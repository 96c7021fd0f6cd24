"""The replay buffer: samples in arrays, drawn by priority, evicted, counted exactly, saved whole.

All public names are here, each loaded when first asked for; plans over a buffer are in `phalanx.streams`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
