"""Network building blocks shared by all domains: layers and action distributions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
