"""An environment for ARC tasks, in which the agent solves a task by editing a grid."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
