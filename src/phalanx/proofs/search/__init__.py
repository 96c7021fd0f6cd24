"""Proof search: indexed programs, resolution on two engines, the environment, and the exact prover.

Policies that search are in `phalanx.agents`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
