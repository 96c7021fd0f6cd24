"""Puzzles made in process: kinds with maker, rules in words, verifier and solver, as text environments.

All public names are here, each loaded when first asked for; puzzles of a server are in `phalanx.streams`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
