"""The puzzle arcade: a telnet client, a pool of connections, and streams of the episodes that are played.

All public names are here, each loaded when first asked for; other streams are in `phalanx.streams`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
