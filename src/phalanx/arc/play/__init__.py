"""Terminal application for solving ARC tasks interactively. Requires the `play` extra."""

from phalanx.lazy_imports import import_lazily

__getattr__, __dir__, __all__ = import_lazily(__name__, __file__)
