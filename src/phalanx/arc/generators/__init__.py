"""Generators of ARC tasks with known shortest solutions."""

from phalanx.lazy_imports import import_lazily

__getattr__, __dir__, __all__ = import_lazily(__name__, __file__)
