"""Procedural ARC tasks with known shortest solutions: the public names.

Tasks that people made come from files, through `phalanx.arc.readers`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
