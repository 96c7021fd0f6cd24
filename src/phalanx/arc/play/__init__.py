"""Terminal application for solving ARC tasks interactively. Requires the package extra `play`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
