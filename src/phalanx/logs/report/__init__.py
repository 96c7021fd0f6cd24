"""The report: a run directory, or several side by side, as one HTML page that needs no network.

What a run directory holds is written by the handlers and the trainer; nothing here changes it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
