"""Streams of token samples: puzzle servers, environments, files, a replay buffer and a window that plans it.

All public names are here, each loaded when first asked for; batches of samples that all exist are in
`phalanx.tokens`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
