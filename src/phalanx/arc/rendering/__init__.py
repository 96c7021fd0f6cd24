"""Draws ARC grids, tasks, states and episodes as images and in the terminal."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
