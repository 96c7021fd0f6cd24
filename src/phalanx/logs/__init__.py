"""The experiment logger: batches summarized on the device, handlers that write them down, and the report.

All public names are here, each loaded when first asked for; how states are drawn is handed in by the caller.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
