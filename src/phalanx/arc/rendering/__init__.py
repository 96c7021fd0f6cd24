"""Draws ARC grids, tasks, states and episodes as images and in the terminal."""

from phalanx.lazy_imports import import_lazily

__getattr__, __dir__, __all__ = import_lazily(__name__, __file__)
