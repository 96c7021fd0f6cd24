"""The experiment logger: batches summarised on the device, and handlers that write them down.

Nothing here knows an environment or a trainer; how states are drawn is handed in by the caller.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
